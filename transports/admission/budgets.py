"""The rooms of a server, and whose account a client's requests and responses are on.

Clients that have not logged in have a small room of their own, where each address has an account. A user has an account
in each of the others, whatever the number of their connections.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable

from whippet.app.config import Config
from whippet.app.model.sessions import Session
from whippet.transports.admission.budget import Account, Budget

IPV6_NETWORK_BYTES = 8
"""The part of an IPv6 address that one subscriber has for themselves."""


class Budgets:
    def __init__(self, config: Config) -> None:
        limits = config.system.limits
        self.frames = Budget(limits.frames_bytes)
        self.bodies = Budget(config.http.limits.bodies_bytes)
        self.unauthenticated = Budget(limits.unauthenticated_bytes)
        self.responses = Budget(limits.responses_bytes)
        self._all = self.frames, self.bodies, self.unauthenticated, self.responses

    def requests_of(self, session: Session) -> Account:
        """For what comes over a connection that stays."""
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
        """So many are held that somebody may have more than their share."""
        return self.responses.used >= self.responses.limit // 4

    @property
    def is_contended(self) -> bool:
        """Somebody waits for room for a response, or more is held than there is room for."""
        return bool(self.responses.waiting or self.responses.excess)

    def reclaim(self, now: float) -> None:
        """Ends whatever has to be given up for the sake of others; to be asked at intervals."""
        for budget in self._all:
            budget.reclaim(now)


def _key(session: Session) -> Hashable:
    return network_of(session.address.rpartition(":")[0]) if session.login is None else session.login.mark


def network_of(host: str) -> Hashable:
    """A host that has many addresses of IPv6 is one client all the same."""
    if not host.startswith("["):
        return host
    return ipaddress.IPv6Address(host.strip("[]").partition("%")[0]).packed[:IPV6_NETWORK_BYTES]
