"""The size of datagram that a path carries: a search from the largest size downwards, as pure state.

The engine asks for the next size to probe, sends a padded datagram of that size, and reports whether it arrived.
aioquic itself never tries a larger datagram than its initial one.
"""

from __future__ import annotations

from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE

DATAGRAM_BYTES_MIN = SMALLEST_MAX_DATAGRAM_SIZE
"""Every path that carries QUIC carries datagrams of this size."""
STEPS = (8_952, 1_452, 1_400, 1_280)
"""Sizes to try when the largest does not arrive: those of jumbo frames, Ethernet and tunnels."""
TRIES = 3
"""How many probes of one size may be lost before a smaller size is tried."""
LOST_IN_A_ROW = 3
"""After this many unanswered probe timeouts, the path is assumed to have become narrower."""


class PathProbe:
    __slots__ = ("_initial", "_is_trying", "_sizes", "_tries", "carried", "largest")

    def __init__(self, initial: int, largest: int) -> None:
        self._initial = initial
        self.largest = largest
        self._sizes: list[int] = []
        """The sizes that are still to be tried, the next one last."""
        self._tries = 0
        self._is_trying = False
        self.carried = DATAGRAM_BYTES_MIN
        """The size that the path is known, or assumed, to carry."""

    def limit(self, size: int) -> None:
        """The peer accepts no larger datagrams than this."""
        self.largest = min(self.largest, size)

    def begin(self) -> None:
        """A new path: assume that it carries the initial size, and look for a larger one."""
        self.carried = max(min(self._initial, self.largest), DATAGRAM_BYTES_MIN)
        self._restart()

    def narrow(self) -> None:
        """Nothing gets through any more: fall back to the size that every path carries, and search again."""
        self.carried = DATAGRAM_BYTES_MIN
        self._restart()

    def _restart(self) -> None:
        self._sizes = sorted({size for size in (*STEPS, self.largest) if self.carried < size <= self.largest})
        self._tries = 0

    @property
    def next_size(self) -> int | None:
        """The size to probe now; None while a probe is on its way, or when the search is over."""
        return self._sizes[-1] if self._sizes and not self._is_trying else None

    @property
    def is_over(self) -> bool:
        return not self._sizes

    def on_sent(self) -> None:
        self._is_trying = True

    def on_result(self, size: int, *, arrived: bool, is_current: bool) -> bool:
        """Reports a probe; `is_current` tells whether it was sent on the present path. True if `carried` has grown."""
        self._is_trying = False
        if not is_current or not self._sizes or self._sizes[-1] != size:
            return False
        if arrived:
            self._sizes = []
            self.carried = size
            return True
        self._tries += 1
        if self._tries == TRIES:
            self._sizes.pop()
            self._tries = 0
        return False
