"""Joins the fragments of a client's text messages. They reserve memory as requests in frame_intake.py do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from whippet.transports.admission.budget import FREE_BYTES, Account, Claim, step
from whippet.transports.admission.frame_intake import QUEUE_MAX


class TextIntake:
    """The messages of one connection."""

    __slots__ = (
        "_reserved",
        "_resume",
        "_text",
        "began_at",
        "claim",
        "in_progress",
        "on_reclaimed",
        "queue",
        "unparsed",
    )

    def __init__(self, account: Account, resume: Callable[[], None], on_reclaimed: Callable[[], None]) -> None:
        """`resume` is called when the client may be read from again, `on_reclaimed` when others need the memory that it
        holds."""
        self.claim = Claim(account, self)
        self.queue: deque[bytes] = deque()
        """Messages to answer."""
        self.unparsed: memoryview | None = None
        """What was read while the queue was full."""
        self.began_at = 0.0
        """When an unfinished message was first seen; set by the transport, and reset to 0 when the message is
        complete."""
        self.in_progress = 0
        """Bytes of the message that is being answered; set by the transport, which releases them."""
        self.on_reclaimed = on_reclaimed
        self._resume = resume
        self._text = bytearray()
        self._reserved = 0
        """Memory of the unfinished message."""

    @property
    def size(self) -> int:
        """The bytes of the unfinished message so far."""
        return len(self._text)

    @property
    def can_read(self) -> bool:
        return not (self.claim.is_waiting or self.unparsed is not None or len(self.queue) >= QUEUE_MAX)

    def is_late(self, now: float, seconds_max: float) -> bool:
        return bool(self.began_at) and not self.claim.is_waiting and now > self.began_at + seconds_max

    def gather(self, content: memoryview, bytes_max: int, *, is_last: bool) -> None:
        """Adds a piece of a message of at most `bytes_max`. Raises UnicodeDecodeError if it is not text."""
        text, claim = self._text, self.claim
        if is_last and not claim.is_unfinished:
            whole = bytes(content)
            whole.decode()
            claim.count(len(whole))
            self._add(whole)
            return
        text += content
        if len(text) > self._reserved:
            claim.count(len(text) - self._reserved)
            self._reserved = len(text)
        if not is_last:
            claim.is_unfinished = True
            if self._reserved == len(text) and not claim.is_waiting:
                self._ask(bytes_max - len(text))
            return
        self._text, reserved, self._reserved = bytearray(), self._reserved, 0
        self.began_at = 0.0
        claim.is_unfinished = False
        claim.stop_waiting()
        claim.release(reserved - len(text))
        text.decode()
        self._add(bytes(text))

    def _add(self, message: bytes) -> None:
        self.queue.append(message)
        if self.claim.held > FREE_BYTES and not self.claim.account.has_room(0):
            self.claim.reserve(0)

    def _ask(self, left: int) -> None:
        self._reserved += self.claim.reserve(step(len(self._text), left), left) or 0

    def on_room(self, granted: int) -> None:
        self.began_at = 0.0
        self._reserved += granted
        self._resume()

    def keep_unparsed(self, rest: memoryview) -> None:
        self.unparsed = rest
        self.claim.count(len(rest))

    def take_unparsed(self) -> memoryview | None:
        unparsed, self.unparsed = self.unparsed, None
        if unparsed is not None:
            self.claim.release(len(unparsed))
        return unparsed

    def drop(self) -> None:
        """Forgets everything but the message in progress."""
        self.claim.stop_waiting()
        self.queue.clear()
        self.unparsed = None
        self._text, self._reserved = bytearray(), 0
        self.claim.release(self.claim.held - self.in_progress)
        if not self.in_progress:
            self.claim.close()
