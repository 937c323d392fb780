"""Memory that clients share: how much of it each user may hold, who waits, and who goes on next.

The same policy holds for every kind of request and for responses, on every transport:

1. Bytes count when they are there, not when they are announced. A large request takes its room step by step.
2. An account, which is a user or the address of clients that have not logged in, may hold as much as is left free for
   all others. One account alone can have half of a room, two a third each, and there is always something left for one
   more.
3. A claim of up to `FREE_BYTES` never waits, so that a login or a small message gets through whatever others do.
4. When room is given back, the account that holds least is served first, and in it the claim that has waited longest.
5. When nobody who waits fits, one claim at a time is given all that it still needs, beyond the limit if need be. So
   requests that are all half received cannot block each other for ever. The memory in use is at most the limit and one
   request.
6. When an account has waited for `RECLAIM_SECONDS` with less than its fair share, which is the limit divided by the
   number of accounts, the account that holds most has to give up its largest unfinished request or unread response.

Nothing here knows sockets, tasks or the time. Whoever has a claim is called when there is room for it, and the time is
handed to `Room.reclaim`.
"""

from __future__ import annotations

from collections.abc import Hashable
from operator import attrgetter
from typing import Protocol
from weakref import WeakValueDictionary

FREE_BYTES = 16 << 10
"""Held by one claim, these never wait. They count all the same."""
RECLAIM_SECONDS = 5.0
RECLAIMED = "it holds more than its share of memory (system.limits), and others wait"
"""Why a connection is closed then."""
STEP_BYTES_MIN, STEP_BYTES_MAX = 64 << 10, 2 << 20
"""How much room something that arrives takes at once."""
_HELD = attrgetter("held")


def step(arrived: int, left: int) -> int:
    """How much room to ask for next: as much again as there is already, within bounds."""
    return min(max(arrived, STEP_BYTES_MIN), STEP_BYTES_MAX, left)


class Holder(Protocol):
    """Whoever a claim belongs to."""

    def on_room(self, granted: int) -> None:
        """There is room now, which is taken already. It must not do much: others wait for their turn behind it."""

    def on_reclaimed(self) -> None:
        """The claim has to be given up, because others have waited for too long."""


class Budget:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.excess = 0
        """Responses hold so many bytes beyond what there was room for; see `Claim.hold`."""
        self.waiting: dict[Account, None] = {}
        """Accounts with claims that wait."""
        self._accounts: WeakValueDictionary[Hashable, Account] = WeakValueDictionary()
        self._beyond: Claim | None = None
        """The claim that may exceed the limit; see rule 5."""
        self._is_serving = False

    def account(self, key: Hashable) -> Account:
        found = self._accounts.get(key)
        if found is None:
            found = self._accounts[key] = Account(self)
        return found

    def serve(self, asking: Claim | None = None) -> int | None:
        """Grants what fits now. Whoever is asking is not called, but told by what this returns: how much it got; None:
        it has to wait. A claim that asks while it is being called waits for its next turn."""
        told: int | None = None
        if self._is_serving:
            return None
        self._is_serving = True
        try:
            while self.waiting:
                account = min(self.waiting, key=_HELD)
                claim = next(iter(account.waiting))
                granted = claim.wanted
                if not account.has_room(granted):
                    if self._beyond is not None:
                        break
                    granted = max(claim.rest, granted)
                    self._beyond = claim
                    claim.owed = claim.held + granted
                claim.stop_waiting()
                claim.count(granted)
                if claim is asking:
                    told = granted
                elif claim.holder is not None:
                    claim.holder.on_room(granted)
        finally:
            self._is_serving = False
        return told

    def end_beyond(self, claim: Claim) -> None:
        if self._beyond is claim:
            self._beyond = None
            self.serve()

    def reclaim(self, now: float) -> None:
        """Ends one claim if somebody else has waited for too long; to be asked at intervals."""
        if not self.waiting:
            return
        active = [account for account in self._accounts.values() if account.held or account.waiting]
        fair = self.limit // len(active)
        for account in self.waiting:
            account.waiting_since = account.waiting_since or now
        starving = [account for account in self.waiting if account.held < fair]
        if all(now - account.waiting_since < RECLAIM_SECONDS for account in starving):
            return
        largest = max(active, key=_HELD)
        claims = [claim for claim in largest.claims if claim.is_unfinished and claim.held]
        if claims and largest.held > fair and (holder := max(claims, key=_HELD).holder) is not None:
            holder.on_reclaimed()


class Account:
    """What one user holds of a room, or one address."""

    __slots__ = ("__weakref__", "budget", "claims", "held", "waiting", "waiting_since")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.held = 0
        self.claims: set[Claim] = set()
        self.waiting: dict[Claim, None] = {}
        """In the order in which they began to wait."""
        self.waiting_since = 0.0
        """As it was noticed by `Room.reclaim`; 0: it was not."""

    def has_room(self, size: int) -> bool:
        """With that much more it would hold no more than is left free for all others."""
        budget = self.budget
        return budget.used + self.held + 2 * size <= budget.limit


class Claim:
    """What one connection, one stream or one body holds of its account."""

    __slots__ = (
        "account",
        "excess",
        "free_bytes",
        "held",
        "holder",
        "is_unfinished",
        "is_waiting",
        "owed",
        "rest",
        "wanted",
    )

    def __init__(self, account: Account, holder: Holder | None = None, *, free_bytes: int = FREE_BYTES) -> None:
        """Without a holder it only counts."""
        self.free_bytes = free_bytes
        self.account = account
        self.holder = holder
        self.held = self.excess = 0
        self.is_waiting = False
        self.wanted = self.rest = 0
        self.is_unfinished = False
        """It depends on the client when this is given back."""
        self.owed = 0
        """While it is beyond the limit: what it has to give back before another one may be."""
        account.claims.add(self)

    def count(self, size: int) -> None:
        """Bytes that are there already, so nobody asks whether there is room for them."""
        account = self.account
        self.held += size
        account.held += size
        account.budget.used += size

    def hold(self, size: int) -> None:
        """It has so many bytes, whatever there was room for. What its account has no room for is in excess: that is not
        counted as used, because others, who can do nothing about it, would have to wait for it."""
        if size <= self.held and not self.excess:
            self.release(self.held - size)
            return
        budget = self.account.budget
        spare = (budget.limit - budget.used - self.account.held) // 2
        fitting = min(size, self.held + max(spare, 0))
        budget.excess += size - fitting - self.excess
        self.excess = size - fitting
        if fitting > self.held:
            self.count(fitting - self.held)
        else:
            self.release(self.held - fitting)

    def reserve(self, size: int, rest: int = 0) -> int | None:
        """Asks for room for `size` bytes more, of the `rest` that is still to come. Returns how much there is room for,
        which may be the rest at once; None: the holder is told when it is its turn."""
        account = self.account
        budget = account.budget
        if self.held + size <= self.free_bytes or (not budget.waiting and account.has_room(size)):
            self.count(size)
            return size
        self.wanted, self.rest, self.is_waiting = size, rest, True
        account.waiting[self] = None
        budget.waiting[account] = None
        return budget.serve(self)

    def reserve_up_to(self, most: int, least: int) -> int | None:
        """As much as there is room for, within these bounds; None: the holder is told when there is the least."""
        account = self.account
        budget = account.budget
        granted = (budget.limit - budget.used - account.held) // 2
        if budget.waiting or granted < least:
            return self.reserve(least, least)
        granted = min(granted, most)
        self.count(granted)
        return granted

    def release(self, size: int) -> None:
        account = self.account
        budget = account.budget
        self.held -= size
        account.held -= size
        budget.used -= size
        if self.owed:
            self.owed = max(self.owed - size, 0)
            if not self.owed:
                budget.end_beyond(self)
        if budget.waiting:
            if self.is_waiting and self.held + self.wanted <= self.free_bytes:
                self.stop_waiting()
                self.count(self.wanted)
                if self.holder is not None:
                    self.holder.on_room(self.wanted)
            budget.serve()

    def stop_waiting(self) -> None:
        if not self.is_waiting:
            return
        self.is_waiting = False
        account = self.account
        del account.waiting[self]
        account.waiting_since = 0.0
        if not account.waiting:
            del account.budget.waiting[account]

    def move(self, account: Account) -> None:
        """To the account of the user who has logged in, with all that it holds."""
        was_waiting, held, excess = self.is_waiting, self.held, self.excess
        if account is self.account:
            return
        self.close()
        self.account = account
        account.claims.add(self)
        self.count(held)
        self.excess = excess
        account.budget.excess += excess
        if was_waiting and (granted := self.reserve(self.wanted, self.rest)) is not None and self.holder is not None:
            self.holder.on_room(granted)

    def close(self) -> None:
        """Gives back what there is, and waits no more."""
        if self.is_waiting:
            self.stop_waiting()
        account = self.account
        budget = account.budget
        account.claims.discard(self)
        budget.excess -= self.excess
        self.owed = self.excess = 0
        if self.held:
            self.release(self.held)
        budget.end_beyond(self)
