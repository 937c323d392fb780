"""Makes guessing passwords futile: after several failures a client has to wait before its next password is checked.

1. Failures are counted for the address that they come from and for the user name, whether or not the user exists.
   Failures are forgiven after a while, the oldest first, and then no longer count.
2. Beyond a few free failures, an address waits twice as long after each further one, up to a maximum. The wait is
   counted from its last failure, so attempts in parallel gain nothing: the attempts of an address form a queue, two at
   a time. An attempt whose wait would exceed a client's patience is refused at once, unchecked, with a time after which
   to retry.
3. A user name only causes delays of seconds, and never a refusal: nobody can lock out a user by failing in their name.
   Guessing from very many addresses is limited by these seconds and by the number of hashes computed at a time.
4. At an address where a user has logged in before, neither wait applies to that user: not because of others behind the
   same address, nor because of attempts in the user's name elsewhere. A few failures in a row from there revoke this.
5. A success forgives the failures of the same user at the same address, one by one, and no others: logging in to
   one's own accounts does not make guessing at others' cheaper.

The tables are bounded; the least recently used entry is dropped first. Only 4 survives a restart
(access/known_logins.py): otherwise one bad client would lock out the good ones at the same address. Behind a proxy that
hides the addresses of clients there is only one address, and 4 keeps the users apart. Tokens are not throttled: nobody
can guess 400 random bits, and a program with an expired token must not hold up its neighbours.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from whippet.app.errors import Code, CommandError

_log = logging.getLogger(__name__)

Key = TypeVar("Key")
Value = TypeVar("Value")
Pair = tuple[str, str]
"""An address and a user name."""

AT_A_TIME = 2
"""Concurrent attempts from one address: as many as hashes are computed at a time by default."""


class Limits(NamedTuple):
    """Durations in seconds."""

    free_of_address: int = 10
    free_of_user: int = 5
    free_where_known: int = 5
    """Failures in a row after which an address where a user has logged in before is treated like any other."""
    first_wait_s: float = 0.25
    address_wait_max_s: float = 30.0
    user_wait_max_s: float = 3.0
    patience_s: float = 8.0
    """Clients give up after 30 s; an attempt that would wait longer than this is refused at once."""
    forgiven_after_s: float = 30.0
    """The time after which one failure is forgiven."""
    line_max: int = 1024
    """Attempts from one address that may be in line."""
    remembered_max: int = 10_000
    """Entries of each table."""


USUAL = Limits()


class Throttle:
    """Used from one event loop. The clock is monotonic, in seconds."""

    def __init__(
        self,
        limits: Limits = USUAL,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        known: Iterable[Pair] = (),
        on_known: Callable[[], None] = lambda: None,
    ) -> None:
        """`known` are pairs that have logged in before, as the method `known` returns them; `on_known` is called when
        these change."""
        self._limits = limits
        self._clock = clock
        self._sleep = sleep
        self._addresses = _Failures(limits, limits.free_of_address, limits.address_wait_max_s)
        self._users = _Failures(limits, limits.free_of_user, limits.user_wait_max_s)
        self._known: _Recent[Pair, int] = _Recent(limits.remembered_max)
        """The pairs that have logged in before, with their failures since the last success."""
        for pair in known:
            self._known.put(pair, 0)
        self._on_known = on_known
        self._lines: dict[str | Pair, _Line] = {}

    def known(self) -> list[Pair]:
        """The pairs that have logged in before, the longest unused one first."""
        return self._known.keys()

    async def attempt(self, peer: str, username: str, check: Callable[[], Awaitable[bool]]) -> bool:
        """Returns the result of `check` once it is this attempt's turn. Raises CommandError if the attempt is refused
        unchecked.

        `peer` is the address of a connection with its port. An attempt that is cancelled during the check counts as a
        failure; one that ends with a CommandError does not count.
        """
        address = origin(peer)
        pair = (address, username)
        async with self._in_line(pair if pair in self._known else address):
            if pair not in self._known:
                await self._wait(address, username)
            try:
                right = await check()
            except asyncio.CancelledError:
                self._count_failure(pair)
                raise
            if right:
                self._count_success(pair)
            else:
                self._count_failure(pair)
            return right

    async def _wait(self, address: str, username: str) -> None:
        now = self._clock()
        of_address = self._addresses.wait(address, now)
        if of_address > self._limits.patience_s:
            seconds = math.ceil(of_address)
            raise CommandError(
                Code.TOO_MANY_LOGINS,
                f"too many failed logins from this address: try again in {seconds} s",
                retry_after_s=seconds,
            )
        if wait := max(of_address, self._users.wait(username, now)):
            await self._sleep(wait)

    def _count_failure(self, pair: Pair) -> None:
        address, username = pair
        now = self._clock()
        if self._addresses.add(address, username, now):
            _log.warning("%s has failed to log in many times; each further attempt has to wait", address)
        self._users.add(username, address, now)
        failures = self._known.get(pair)
        if failures is None:
            return
        if failures < self._limits.free_where_known:
            self._known.put(pair, failures + 1)
        else:
            self._known.pop(pair)
            self._on_known()

    def _count_success(self, pair: Pair) -> None:
        address, username = pair
        self._addresses.take_back(address, username)
        self._users.take_back(username, address)
        is_new = pair not in self._known
        self._known.put(pair, 0)
        if is_new:
            self._on_known()

    @contextlib.asynccontextmanager
    async def _in_line(self, name: str | Pair) -> AsyncIterator[None]:
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line()
        if line.length >= self._limits.line_max:
            raise CommandError(
                Code.TRANSIENT_NOT_ACCEPTED,
                f"{self._limits.line_max} logins from this address are waiting, which is the limit",
            )
        line.length += 1
        try:
            async with line.turns:
                yield
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[name]


class _Line:
    """The attempts that wait for a turn. Removed when it is empty."""

    __slots__ = ("length", "turns")

    def __init__(self) -> None:
        self.length = 0
        self.turns = asyncio.Semaphore(AT_A_TIME)


class _Recent(Generic[Key, Value]):
    """A table that keeps the entries that were used last."""

    def __init__(self, length_max: int) -> None:
        self._entries: OrderedDict[Key, Value] = OrderedDict()
        self._length_max = length_max

    def get(self, key: Key) -> Value | None:
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: Key, value: Value) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._length_max:
            self._entries.popitem(last=False)

    def pop(self, key: Key) -> Value | None:
        return self._entries.pop(key, None)

    def keys(self) -> list[Key]:
        """The longest unused one first."""
        return list(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)


class _Ledger:
    """Failures that are not forgiven yet, the oldest first. Each entry is the other half of the pair that has
    failed."""

    __slots__ = ("entries", "forgiven_to", "last_at")

    def __init__(self, now: float) -> None:
        self.entries: deque[str] = deque()
        self.last_at = now
        self.forgiven_to = now
        """Failures are forgiven up to this time."""


class _Failures:
    """The failures of each address or user name, and the waits that follow from them."""

    def __init__(self, limits: Limits, free: int, wait_max_s: float) -> None:
        self._ledgers: _Recent[str, _Ledger] = _Recent(limits.remembered_max)
        self._limits = limits
        self._free = free
        self._wait_max_s = wait_max_s
        self._counted_max = free + math.ceil(math.log2(max(wait_max_s / limits.first_wait_s, 1)))
        """With this many the longest wait is reached; more would only take longer to be forgiven."""

    def wait(self, key: str, now: float) -> float:
        """Seconds from now until the next attempt may be checked."""
        ledger = self._ledgers.get(key)
        if ledger is None:
            return 0.0
        self._forgive(ledger, now)
        return max(self._pause(len(ledger.entries)) - (now - ledger.last_at), 0.0)

    def add(self, key: str, other: str, now: float) -> bool:
        """Returns True if this was the failure after which waiting begins."""
        ledger = self._ledgers.get(key) or _Ledger(now)
        self._forgive(ledger, now)
        before = len(ledger.entries)
        # Beyond the maximum, failures are not recorded: so no success can take back more than was counted.
        if before < self._counted_max:
            ledger.entries.append(other)
        ledger.last_at = now
        self._ledgers.put(key, ledger)
        return self._pause(before) == 0 < self._pause(len(ledger.entries))

    def take_back(self, key: str, other: str) -> None:
        ledger = self._ledgers.get(key)
        if ledger is not None:
            ledger.entries = deque(each for each in ledger.entries if each != other)

    def _forgive(self, ledger: _Ledger, now: float) -> None:
        seconds = self._limits.forgiven_after_s
        while ledger.entries and now - ledger.forgiven_to >= seconds:
            ledger.entries.popleft()
            ledger.forgiven_to += seconds
        if not ledger.entries:
            ledger.forgiven_to = now

    def _pause(self, failures: int) -> float:
        """The time between two attempts."""
        beyond = failures - self._free
        return 0.0 if beyond < 0 else min(self._limits.first_wait_s * 2.0**beyond, self._wait_max_s)

    def __len__(self) -> int:
        return len(self._ledgers)


def origin(peer: str) -> str:
    """The origin of a connection: its address without the port; for IPv6 the /64 network, which is one customer's."""
    host = peer.rpartition(":")[0].strip("[]") if peer.count(":") == 1 or peer.startswith("[") else peer
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
