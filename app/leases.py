"""Leases: memberships of consumer groups for clients that have no connection to hold one.

1. A lease is a session like the others: a client that is a member of one group. It uses the commands that connections
   use, so groups, statistics and listings of clients need no special case.
2. It belongs to its user and has a name that cannot be guessed. It lapses when it is not used for a while; then it
   leaves its group, as a closed connection does. It does not lapse while a request is in progress.
3. Requests on one lease are executed one after the other, as on a connection: two polls at the same time would return
   the same messages.
4. Leases do not survive a restart, as no membership does. A client that uses a lost lease gets an error, and acquires
   another one.

The duration and the number of leases are bounded. For the event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator
from functools import partial

from whippet.app.commands import groups, requests, responses
from whippet.app.commands.registry import execute
from whippet.app.config.listeners import HttpLeases
from whippet.app.gateway import Gateway
from whippet.app.model.identity import Login
from whippet.app.model.sessions import Session, Transport

_log = logging.getLogger(__name__)

NAME_BYTES = 18


class LeaseGone(Exception):
    """There is no such lease, or no longer."""

    def __init__(self) -> None:
        super().__init__(
            "There is no such lease: it has lapsed, was released, has lost its group, or is from before a restart of "
            "the server; acquire a new one"
        )


class TooManyLeases(Exception):
    """The text of the error names the setting."""


class ExpiryOutOfBounds(Exception):
    """The text of the error names the bounds."""


class Lease:
    __slots__ = ("active_requests", "expiry", "id", "login", "session", "timer", "turn", "until")

    def __init__(self, session: Session, login: Login, expiry: float) -> None:
        self.id = secrets.token_urlsafe(NAME_BYTES)
        self.session = session
        self.login = login
        self.expiry = expiry
        """In seconds."""
        self.until = 0.0
        """When it lapses, in the time of the event loop."""
        self.timer: asyncio.TimerHandle | None = None
        self.turn = asyncio.Lock()
        self.active_requests = 0
        """Includes those that wait for their turn."""


class Leases:
    def __init__(self, gateway: Gateway, limits: HttpLeases) -> None:
        self._gateway = gateway
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._by_id: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    async def acquire(
        self, login: Login, address: str, membership: requests.JoinConsumerGroup, expiry: float | None = None
    ) -> Lease:
        """`expiry` is in seconds; None is the default."""
        lasts = self._checked(expiry)
        self._check_limits(login)
        session = Session(Transport.HTTP, address, self._gateway.clock(), _no_lease_yet)
        session.login = login
        lease = Lease(session, login, lasts)
        # The sessions of its user may be ended at any time.
        session.end = partial(self.release, lease)
        self._gateway.sessions.add(session)
        self._by_id[lease.id] = lease
        try:
            await execute(self._gateway, session, membership)
        except BaseException:
            self.release(lease)
            raise
        self._renew(lease)
        self._watch(lease)
        return lease

    def find(self, lease_id: str, login: Login) -> Lease:
        """Does not extend the lease."""
        lease = self._by_id.get(lease_id)
        if lease is None or lease.login != login:
            raise LeaseGone
        return lease

    @contextlib.asynccontextmanager
    async def using(self, lease_id: str, login: Login) -> AsyncIterator[Lease]:
        """Waits for this request's turn. The lease gets its full time again when the request ends."""
        lease = self.find(lease_id, login)
        lease.active_requests += 1
        try:
            async with lease.turn:
                self.find(lease_id, login)
                self._renew(lease)
                yield lease
        finally:
            lease.active_requests -= 1
            self._renew(lease)

    async def assignment(self, lease: Lease, group: requests.SyncConsumerGroup) -> responses.GroupAssignment:
        """Returns the partitions that the lease may poll in its group. Raises LeaseGone if it is a member of another
        group, or if the group was deleted."""
        found: responses.GroupAssignment | None = await execute(self._gateway, lease.session, group)
        if found is None:
            if not lease.session.groups:
                self.release(lease)
            raise LeaseGone
        return found

    def expires_at(self, lease: Lease) -> int:
        """In us since 1970."""
        return self._gateway.clock() + round((lease.until - self._loop.time()) * 1_000_000)

    def release(self, lease: Lease) -> None:
        """Leaves the group. Idempotent."""
        if self._by_id.pop(lease.id, None) is None:
            return
        if lease.timer is not None:
            lease.timer.cancel()
        groups.leave_all(self._gateway, lease.session)
        self._gateway.sessions.remove(lease.session)

    def close(self) -> None:
        for lease in list(self._by_id.values()):
            self.release(lease)

    def _checked(self, expiry: float | None) -> float:
        limits = self._limits
        if expiry is None:
            return limits.expiry
        if not limits.expiry_min <= expiry <= limits.expiry_max:
            raise ExpiryOutOfBounds(
                f"a lease lasts from {limits.expiry_min:g} s (http.leases.expiry_min) to {limits.expiry_max:g} s "
                "(http.leases.expiry_max)"
            )
        return expiry

    def _check_limits(self, login: Login) -> None:
        limits = self._limits
        if len(self._by_id) >= limits.leases:
            raise TooManyLeases(f"the server has as many leases as are allowed (http.leases.leases = {limits.leases})")
        if sum(lease.login.mark == login.mark for lease in self._by_id.values()) >= limits.leases_per_user:
            raise TooManyLeases(
                f"the user has as many leases as are allowed (http.leases.leases_per_user = {limits.leases_per_user})"
            )

    def _renew(self, lease: Lease) -> None:
        lease.until = self._loop.time() + lease.expiry
        lease.session.last_heartbeat = self._gateway.clock()

    def _watch(self, lease: Lease) -> None:
        """The timer is set once per expiry, not at each use."""
        if lease.id not in self._by_id:
            return
        now = self._loop.time()
        if lease.active_requests:
            self._renew(lease)
        elif now >= lease.until:
            _log.info("%s: the lease of the client has lapsed", lease.session.address)
            self.release(lease)
            return
        lease.timer = self._loop.call_at(lease.until, self._watch, lease)


def _no_lease_yet() -> None:
    """Stands in until the lease exists."""
