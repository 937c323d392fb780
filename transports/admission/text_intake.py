"""Messages of text, gathered from the fragments that a client sends. They take room as requests in frames.py do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from whippet.transports.admission.budget import FREE_BYTES, Account, Claim, step
from whippet.transports.admission.frame_intake import AHEAD_MAX


class TextIntake:
    """The messages of one connection."""

    __slots__ = ("_reserved", "_resume", "_text", "ahead", "aside", "began_at", "claim", "cut", "in_hand")

    def __init__(self, account: Account, resume: Callable[[], None], cut: Callable[[], None]) -> None:
        """`resume` is called when the client may be read from again, `cut` when it has to be ended for the sake of
        others."""
        self.claim = Claim(account, self)
        self.ahead: deque[bytes] = deque()
        """Messages that are still to be answered."""
        self.aside: memoryview | None = None
        """What was read when there were enough messages ahead already."""
        self.began_at = 0.0
        """When an unfinished message was seen first; set by the transport, and 0 again when the message is there."""
        self.in_hand = 0
        """Bytes of the message that is being answered; set by the transport, which gives them back."""
        self.cut = cut
        self._resume = resume
        self._text = bytearray()
        self._reserved = 0
        """Room that the unfinished message has."""

    @property
    def size(self) -> int:
        """Of the unfinished message, as far as it is there."""
        return len(self._text)

    @property
    def can_read(self) -> bool:
        return not (self.claim.is_waiting or self.aside is not None or len(self.ahead) >= AHEAD_MAX)

    def is_late(self, now: float, seconds_max: float) -> bool:
        return bool(self.began_at) and not self.claim.is_waiting and now > self.began_at + seconds_max

    def gather(self, content: memoryview, bytes_max: int, *, is_last: bool) -> None:
        """A piece of a message that may have so many bytes. UnicodeDecodeError: it is no text."""
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
        self.ahead.append(message)
        if self.claim.held > FREE_BYTES and not self.claim.account.has_room(0):
            self.claim.reserve(0)

    def _ask(self, left: int) -> None:
        self._reserved += self.claim.reserve(step(len(self._text), left), left) or 0

    def on_room(self, granted: int) -> None:
        self.began_at = 0.0
        self._reserved += granted
        self._resume()

    def on_reclaimed(self) -> None:
        self.cut()

    def set_aside(self, rest: memoryview) -> None:
        self.aside = rest
        self.claim.count(len(rest))

    def take_aside(self) -> memoryview | None:
        aside, self.aside = self.aside, None
        if aside is not None:
            self.claim.release(len(aside))
        return aside

    def drop(self) -> None:
        """No more messages: forgets what is not in hand."""
        self.claim.stop_waiting()
        self.ahead.clear()
        self.aside = None
        self._text, self._reserved = bytearray(), 0
        self.claim.release(self.claim.held - self.in_hand)
        if not self.in_hand:
            self.claim.close()
