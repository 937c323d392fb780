"""Turns the bytes of a client into whole requests of the binary protocols.

1. The beginning of a request tells its length. Until that is known its bytes are kept in `part`.
2. A complete request is copied out of the read buffer. An incomplete one gets a buffer of its own, into which the rest
   can be read directly. It reserves memory as its bytes arrive, each time as much as it has already.
3. A request that is too large, or that needs a login first, is skipped; its response is decided already.
4. Requests wait in `queue` until the transport executes them. When there are `QUEUE_MAX`, the rest of the bytes is
   kept unparsed.
5. A client must not be read from (`can_read` is False) while it waits for memory, while its queue is full, and while
   there are unparsed bytes.

This module never asks for the time: the transport sets `began_at` when it first sees an unfinished request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from whippet.app.errors import Code
from whippet.storage.batch import Readable
from whippet.transports.admission.budget import FREE_BYTES, STEP_BYTES_MAX, Account, Claim, step

QUEUE_MAX = 128
"""Requests that a connection may send ahead; then it is not read from."""
HUGE_PAGES_FROM = 4 << 20
"""From this size on numpy asks for pages of 2 MiB, so that the first byte takes a whole one."""
RATE = 1 << 20
"""Bytes that must arrive of an unfinished request for each second beyond the time that every request has."""


class Framing(Protocol):
    """What a protocol knows about the first bytes of a request."""

    def measure(self, data: memoryview) -> int:
        """Returns the length of the request; 0 if there are too few bytes to tell. Raises CommandError if it is
        none."""

    def refusal(self, data: memoryview, length: int) -> Code | None:
        """Returns the error for a request that has to be skipped, or None."""

    def encode_refusal(self, data: memoryview, code: Code) -> list[Readable]:
        """Returns the response to a request that is skipped."""


class PartialFrame:
    """A request of which only a part has arrived. Memory is reserved up to `reserved`."""

    __slots__ = ("claim", "filled", "frame", "length", "part", "reserved")

    def __init__(self, claim: Claim, length: int, there: Readable) -> None:
        """Asks for memory for what comes next. Until that is granted there is no frame."""
        self.claim = claim
        self.length = length
        self.filled = self.reserved = len(there)
        self.frame: memoryview | None = None
        self.part: Readable = there
        claim.count(len(there))
        claim.is_unfinished = True
        if self.is_whole or not self.ask():
            self.part = bytes(there)

    @property
    def is_whole(self) -> bool:
        return self.filled == self.length

    def ask(self) -> bool:
        """Returns whether more memory was granted; otherwise the claim waits."""
        left = self.length - self.reserved
        arrived = STEP_BYTES_MAX if self.length >= HUGE_PAGES_FROM else self.filled
        granted = self.claim.reserve(step(arrived, left), left)
        if granted is not None:
            self.on_room(granted)
        return granted is not None

    def on_room(self, granted: int) -> None:
        self.reserved += granted
        if self.frame is None:
            # Not zeroed: that would take time, and memory for bytes that were announced but have not arrived.
            self.frame = np.empty(self.length, dtype=np.uint8).data
            self.frame[: self.filled] = self.part
            self.part = b""

    def fill(self, data: Readable) -> None:
        """Adds bytes that were read into another buffer, at most those that are missing. They count even without memory
        for them."""
        end = self.filled + len(data)
        if end > self.reserved:
            self.claim.count(end - self.reserved)
            self.reserved = end
        if self.frame is None:
            self.part = bytes(self.part) + bytes(data)
        else:
            self.frame[self.filled : end] = data
        self.filled = end

    def finish(self) -> memoryview:
        self.claim.is_unfinished = False
        if self.frame is None:
            return memoryview(bytearray(self.part))
        return self.frame


class FrameIntake:
    """The requests of one connection that carries a byte stream."""

    __slots__ = (
        "_begin",
        "_refusal",
        "_resume",
        "_skip",
        "_skipped",
        "_unparsed",
        "arriving",
        "began_at",
        "claim",
        "framing",
        "in_progress",
        "is_closed",
        "on_reclaimed",
        "part",
        "queue",
    )

    def __init__(
        self,
        account: Account,
        begin: Callable[[memoryview], Framing | None],
        resume: Callable[[], None],
        on_reclaimed: Callable[[], None],
    ) -> None:
        """`begin` receives the first bytes and returns the protocol; None if they are too few, or of no protocol.
        `resume` is called when the client may be read from again, `on_reclaimed` when others need the memory that it
        holds."""
        self.claim = Claim(account, self)
        self.framing: Framing | None = None
        self.queue: deque[memoryview | list[Readable]] = deque()
        """Requests to answer, and the responses to those that were skipped."""
        self.arriving: PartialFrame | None = None
        self.part = b""
        """The beginning of a request whose length is unknown."""
        self.began_at = 0.0
        """When an unfinished request was first seen; set by the transport, and reset to 0 when the request is
        complete."""
        self.in_progress = 0
        """Bytes of the request that is being executed; set by the transport, which releases them."""
        self.is_closed = False
        self._begin = begin
        self._resume = resume
        self.on_reclaimed = on_reclaimed
        self._skip = self._skipped = 0
        self._refusal: list[Readable] = []
        self._unparsed: memoryview | None = None

    @property
    def is_unfinished(self) -> bool:
        """An incomplete request has begun."""
        return self.arriving is not None or bool(self.part) or bool(self._skip)

    @property
    def is_empty(self) -> bool:
        """There is nothing of any request, and the next one may be executed."""
        busy = self.queue or self.part or self._skip or self.is_closed
        return not busy and self.arriving is None and self._unparsed is None

    @property
    def is_waiting(self) -> bool:
        """It is not the client's fault that nothing arrives."""
        return self.claim.is_waiting

    @property
    def can_read(self) -> bool:
        return not (self.claim.is_waiting or self._unparsed is not None or len(self.queue) >= QUEUE_MAX)

    def is_late(self, now: float, seconds_max: float) -> bool:
        """Whether the unfinished request has taken too long for its size so far."""
        arrived = self._skipped if self.arriving is None else self.arriving.filled
        return bool(self.began_at) and not self.is_waiting and now > self.began_at + seconds_max + arrived / RATE

    # ------------------------------------------------------------------------------------------------------- receiving

    def receive(self, data: memoryview) -> None:
        """Parses bytes that were not read into the buffer of `arriving`; they may be overwritten afterwards. Raises
        CommandError if this is no request, so that the next one cannot be found either."""
        if self.arriving is not None:
            missing = data[: self.arriving.length - self.arriving.filled]
            self.arriving.fill(missing)
            self._check_progress()
            data = data[len(missing) :]
        elif self.part:
            data = memoryview(self.part + bytes(data))
            self.part = b""
        if data:
            self._parse(data)

    def received(self, size: int) -> None:
        """Counts bytes that were read into the buffer of `arriving`."""
        assert self.arriving is not None
        self.arriving.filled += size
        self._check_progress()

    def _check_progress(self) -> None:
        arriving = self.arriving
        assert arriving is not None
        if arriving.is_whole:
            self.arriving = None
            self.began_at = 0.0
            self.claim.stop_waiting()
            self.queue.append(arriving.finish())
            self._limit_queue()
        elif arriving.filled == arriving.reserved and not self.claim.is_waiting:
            arriving.ask()

    def _parse(self, data: memoryview) -> None:
        position, size, queue, claim = 0, len(data), self.queue, self.claim
        while position < size and not self.is_closed:
            if len(queue) >= QUEUE_MAX:
                claim.count(size - position)
                # Bytes that were kept before need no copy.
                self._unparsed = data[position:] if self._is_own(data) else memoryview(bytes(data[position:]))
                break
            if self._skip:
                position += self._skip_some(size - position)
                continue
            rest = data[position:]
            framing = self.framing
            if framing is None:
                framing = self.framing = self._begin(rest)
                if framing is None:
                    self._keep_head(rest)
                    break
            length = framing.measure(rest)
            if not length:
                self._keep_head(rest)
                break
            if (code := framing.refusal(rest, length)) is not None:
                self._skip, self._skipped, self._refusal = length, 0, framing.encode_refusal(rest, code)
                continue
            if size - position < length:
                self.arriving = PartialFrame(claim, length, rest)
                break
            queue.append(memoryview(bytearray(rest[:length])))
            self.began_at = 0.0
            claim.count(length)
            position += length
        if claim.held > FREE_BYTES:
            self._limit_queue()

    def _is_own(self, data: memoryview) -> bool:
        """Nobody overwrites it."""
        return isinstance(data.obj, bytes)

    def _keep_head(self, rest: memoryview) -> None:
        if not self.is_closed:
            self.part = bytes(rest)

    def _skip_some(self, there: int) -> int:
        skipped = min(self._skip, there)
        self._skip -= skipped
        self._skipped += skipped
        if not self._skip:
            self._skipped = 0
            self.began_at = 0.0
            self.queue.append(self._refusal)
        return skipped

    def _limit_queue(self) -> None:
        """Stops reading from a connection that holds more than its share in queued requests."""
        claim = self.claim
        if claim.held > FREE_BYTES and self.arriving is None and not (claim.is_waiting or claim.account.has_room(0)):
            claim.reserve(0)

    # ------------------------------------------------------------------------------------------- resuming and ending

    def on_room(self, granted: int) -> None:
        self.began_at = 0.0
        if self.arriving is not None:
            self.arriving.on_room(granted)
        self._resume()

    def resume_parsing(self) -> None:
        """Parses the bytes that were kept, when the queue has room again."""
        unparsed, self._unparsed = self._unparsed, None
        if unparsed is not None:
            self.claim.release(len(unparsed))
            self._parse(unparsed)

    def close(self) -> None:
        """Accepts no more requests; those in the queue may still be answered."""
        self.is_closed = True
        self.claim.stop_waiting()

    def drop(self) -> None:
        """Forgets everything but the request in progress, because the client is gone."""
        self.close()
        self.queue.clear()
        self.arriving = self._unparsed = None
        self.part = b""
        self.claim.release(self.claim.held - self.in_progress)
        if not self.in_progress:
            self.claim.close()
