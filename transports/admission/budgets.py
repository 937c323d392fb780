"""The budgets of a server, and whose account a client's requests and responses are counted in.

Clients that have not logged in share a small budget, in which each address has an account. In the other budgets each
user has one, however many connections they have.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable

from whippet.app.config import Config
from whippet.app.model.sessions import Session
from whippet.transports.admission.budget import Account, Budget

IPV6_NETWORK_BYTES = 8
"""The part of an IPv6 address that identifies one subscriber."""


class Budgets:
    def __init__(self, config: Config) -> None:
        limits = config.system.limits
        self.frames = Budget(limits.frames_bytes)
        self.bodies = Budget(config.http.limits.bodies_bytes)
        self.unauthenticated = Budget(limits.unauthenticated_bytes)
        self.responses = Budget(limits.responses_bytes)
        self._all = self.frames, self.bodies, self.unauthenticated, self.responses

    def requests_of(self, session: Session) -> Account:
        """The account of requests on connections that stay open."""
        return self._account(self.frames, session)

    def bodies_of(self, session: Session) -> Account:
        return self._account(self.bodies, session)

    def responses_to(self, session: Session) -> Account:
        return self.responses.account(_key(session))

    def _account(self, budget: Budget, session: Session) -> Account:
        return (self.unauthenticated if session.login is None else budget).account(_key(session))

    @property
    def used(self) -> int:
        return sum(budget.used for budget in self._all)

    @property
    def are_responses_many(self) -> bool:
        """Responses hold so much memory that some account may exceed its share."""
        return self.responses.used >= self.responses.limit // 4

    @property
    def is_contended(self) -> bool:
        """A claim waits for memory for a response, or responses exceed the limit."""
        return bool(self.responses.waiting or self.responses.excess)

    def reclaim(self, now: float) -> None:
        """Reclaims memory that others have waited for; called at intervals."""
        for budget in self._all:
            budget.reclaim(now)


def _key(session: Session) -> Hashable:
    return network_of(session.address.rpartition(":")[0]) if session.login is None else session.login.mark


def network_of(host: str) -> Hashable:
    """A host with many IPv6 addresses counts as one client."""
    if not host.startswith("["):
        return host
    return ipaddress.IPv6Address(host.strip("[]").partition("%")[0]).packed[:IPV6_NETWORK_BYTES]
