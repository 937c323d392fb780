"""Requests of the binary protocols, cut out of the bytes that a client sends.

1. The beginning of a request says how long it is. Until that is known its bytes are kept in `part`.
2. A request that is all there is copied out of what was read. One that is not gets a buffer of its own, into which the
   rest can be read directly. It takes room for that as its bytes arrive: each time as much again as there is already.
3. A request that is too large, or needs a login first, is read past; its response is decided already.
4. Requests wait in `ahead` until the transport carries them out. With `AHEAD_MAX` of them the rest of what was read is
   set aside.
5. A client is not to be read from (`can_read`) while it waits for room, while it has enough ahead, and while there is
   something set aside.

The time is never asked for here: the transport notes in `began_at` when it has seen an unfinished request first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from whippet.app.errors import Code
from whippet.storage.batch import Readable
from whippet.transports.admission.budget import FREE_BYTES, STEP_BYTES_MAX, Account, Claim, step

AHEAD_MAX = 128
"""Requests that a connection may send before their turn; then it is not read from."""
HUGE_PAGES_FROM = 4 << 20
"""From this size on numpy asks for pages of 2 MiB, of which the first byte takes all."""
RATE = 1 << 20
"""Bytes that an unfinished request has to bring for each second beyond the time that every request has."""


class Framing(Protocol):
    """What a protocol says about the bytes with which a request begins."""

    def measure(self, data: memoryview) -> int:
        """How long the request is; 0: so few bytes do not tell. CommandError: it is none."""

    def refusal(self, data: memoryview, length: int) -> Code | None:
        """Why it is read past instead of being received, if it is."""

    def encode_refusal(self, data: memoryview, code: Code) -> list[Readable]:
        """The response to a request that is read past."""


class PartialFrame:
    """A request that is not all there. Its buffer has room as far as `reserved`."""

    __slots__ = ("claim", "filled", "frame", "length", "part", "reserved")

    def __init__(self, claim: Claim, length: int, there: Readable) -> None:
        """Asks for room for what comes next. As long as there is none, it has no frame."""
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
        """Whether there is room for more; else the claim waits for it."""
        left = self.length - self.reserved
        arrived = STEP_BYTES_MAX if self.length >= HUGE_PAGES_FROM else self.filled
        granted = self.claim.reserve(step(arrived, left), left)
        if granted is not None:
            self.on_room(granted)
        return granted is not None

    def on_room(self, granted: int) -> None:
        self.reserved += granted
        if self.frame is None:
            # Not zeroed: that takes time, and memory for what was announced and has not come.
            self.frame = np.empty(self.length, dtype=np.uint8).data
            self.frame[: self.filled] = self.part
            self.part = b""

    def fill(self, data: Readable) -> None:
        """What was read elsewhere, and is no more than is missing. It counts as it is if there is no room for it."""
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
    """The requests of one connection that is a stream of bytes."""

    __slots__ = (
        "_aside",
        "_begin",
        "_refusal",
        "_resume",
        "_skip",
        "_skipped",
        "ahead",
        "arriving",
        "began_at",
        "claim",
        "cut",
        "framing",
        "in_hand",
        "is_closed",
        "part",
    )

    def __init__(
        self,
        account: Account,
        begin: Callable[[memoryview], Framing | None],
        resume: Callable[[], None],
        cut: Callable[[], None],
    ) -> None:
        """`begin` is handed the first bytes, and returns what is spoken here; None: they are too few, or nothing is.
        `resume` is called when the client may be read from again, `cut` when others need the room that it holds."""
        self.claim = Claim(account, self)
        self.framing: Framing | None = None
        self.ahead: deque[memoryview | list[Readable]] = deque()
        """Requests that are still to be answered, and responses to those that were read past."""
        self.arriving: PartialFrame | None = None
        self.part = b""
        """The beginning of a request whose length is not known."""
        self.began_at = 0.0
        """When an unfinished request was seen first; set by the transport, and 0 again when the request is there."""
        self.in_hand = 0
        """Bytes of the request that is being carried out; set by the transport, which gives them back."""
        self.is_closed = False
        self._begin = begin
        self._resume = resume
        self.cut = cut
        self._skip = self._skipped = 0
        self._refusal: list[Readable] = []
        self._aside: memoryview | None = None

    @property
    def is_unfinished(self) -> bool:
        """A request has begun that is not there."""
        return self.arriving is not None or bool(self.part) or bool(self._skip)

    @property
    def is_waiting(self) -> bool:
        """It is not the client's fault that nothing comes."""
        return self.claim.is_waiting

    @property
    def can_read(self) -> bool:
        return not (self.claim.is_waiting or self._aside is not None or len(self.ahead) >= AHEAD_MAX)

    def is_late(self, now: float, seconds_max: float) -> bool:
        """The unfinished request has taken too long, for as much as has come of it."""
        arrived = self._skipped if self.arriving is None else self.arriving.filled
        return bool(self.began_at) and not self.is_waiting and now > self.began_at + seconds_max + arrived / RATE

    # ------------------------------------------------------------------------------------------------------- receiving

    def receive(self, data: memoryview) -> None:
        """Bytes that were not read to where `arriving` has room for them. They may be overwritten afterwards.
        CommandError: this is no request, and where the next one begins nobody can tell."""
        if self.arriving is not None:
            missing = data[: self.arriving.length - self.arriving.filled]
            self.arriving.fill(missing)
            self._look()
            data = data[len(missing) :]
        elif self.part:
            data = memoryview(self.part + bytes(data))
            self.part = b""
        if data:
            self._take_apart(data)

    def received(self, size: int) -> None:
        """So much was read to where `arriving` has room for it."""
        assert self.arriving is not None
        self.arriving.filled += size
        self._look()

    def _look(self) -> None:
        arriving = self.arriving
        assert arriving is not None
        if arriving.is_whole:
            self.arriving = None
            self.began_at = 0.0
            self.claim.stop_waiting()
            self.ahead.append(arriving.finish())
            self._watch()
        elif arriving.filled == arriving.reserved and not self.claim.is_waiting:
            arriving.ask()

    def _take_apart(self, data: memoryview) -> None:
        position, size, ahead, claim = 0, len(data), self.ahead, self.claim
        while position < size and not self.is_closed:
            if len(ahead) >= AHEAD_MAX:
                claim.count(size - position)
                # What was set aside before needs no copy.
                self._aside = data[position:] if self._is_own(data) else memoryview(bytes(data[position:]))
                break
            if self._skip:
                position += self._skip_some(size - position)
                continue
            rest = data[position:]
            framing = self.framing
            if framing is None:
                framing = self.framing = self._begin(rest)
                if framing is None:
                    self._keep(rest)
                    break
            length = framing.measure(rest)
            if not length:
                self._keep(rest)
                break
            if (code := framing.refusal(rest, length)) is not None:
                self._skip, self._skipped, self._refusal = length, 0, framing.encode_refusal(rest, code)
                continue
            if size - position < length:
                self.arriving = PartialFrame(claim, length, rest)
                break
            ahead.append(memoryview(bytearray(rest[:length])))
            self.began_at = 0.0
            claim.count(length)
            position += length
        if claim.held > FREE_BYTES:
            self._watch()

    def _is_own(self, data: memoryview) -> bool:
        """Nobody writes over it."""
        return isinstance(data.obj, bytes)

    def _keep(self, rest: memoryview) -> None:
        if not self.is_closed:
            self.part = bytes(rest)

    def _skip_some(self, there: int) -> int:
        skipped = min(self._skip, there)
        self._skip -= skipped
        self._skipped += skipped
        if not self._skip:
            self._skipped = 0
            self.began_at = 0.0
            self.ahead.append(self._refusal)
        return skipped

    def _watch(self) -> None:
        """With more than its share in requests that are there, a connection is not read from."""
        claim = self.claim
        if claim.held > FREE_BYTES and self.arriving is None and not (claim.is_waiting or claim.account.has_room(0)):
            claim.reserve(0)

    # --------------------------------------------------------------------------------------------------------- go on

    def on_room(self, granted: int) -> None:
        self.began_at = 0.0
        if self.arriving is not None:
            self.arriving.on_room(granted)
        self._resume()

    def on_reclaimed(self) -> None:
        self.cut()

    def take_up(self) -> None:
        """There are few requests ahead: those that were set aside come first."""
        aside, self._aside = self._aside, None
        if aside is not None:
            self.claim.release(len(aside))
            self._take_apart(aside)

    def close(self) -> None:
        """No more requests; those ahead may still be answered."""
        self.is_closed = True
        self.claim.stop_waiting()

    def drop(self) -> None:
        """Nobody is there any more: forgets what is not in hand."""
        self.close()
        self.ahead.clear()
        self.arriving = self._aside = None
        self.part = b""
        self.claim.release(self.claim.held - self.in_hand)
        if not self.in_hand:
            self.claim.close()
