"""Shares memory among clients: how much each user may hold, who waits, and who is next.

The same policy applies to all kinds of requests and to responses, on every transport:

1. Bytes count when they arrive, not when they are announced. A large request reserves its memory step by step.
2. An account, which is a user or the address of clients that have not logged in, may hold no more than what is still
   free. So one account alone can have half of a budget, two a third each, and there is always something left for one
   more.
3. A claim of up to `FREE_BYTES` never waits, so that a login or a small message gets through whatever others do.
4. When memory is released, the account that holds the least is served first, and of its claims the one that has waited
   longest.
5. When no waiting claim fits, one claim at a time gets all that it still needs, beyond the limit if necessary, so
   half-received requests cannot block each other forever. The memory in use is at most the limit plus one request.
6. When an account has waited for `RECLAIM_SECONDS` with less than its fair share (the limit divided by the number of
   accounts), or while a claim of another account exceeds the limit, the account that holds the most loses its largest
   unfinished request or unread response.

Nothing here knows about sockets, tasks or the time. The holder of a claim is called when memory is granted, and the
time is passed to `Budget.reclaim`.
"""

from __future__ import annotations

from collections.abc import Hashable
from operator import attrgetter
from typing import Protocol
from weakref import WeakValueDictionary

FREE_BYTES = 16 << 10
"""A claim that holds no more than this never waits. The bytes count all the same."""
RECLAIM_SECONDS = 5.0
RECLAIMED = "it holds more than its share of memory (system.limits), and others wait"
"""The reason to close a connection whose memory others need."""
STEP_BYTES_MIN, STEP_BYTES_MAX = 64 << 10, 2 << 20
"""How much memory a request reserves at once while it arrives."""
_HELD = attrgetter("held")


def step(arrived: int, left: int) -> int:
    """Returns how much to ask for next: as much as has arrived, within limits."""
    return min(max(arrived, STEP_BYTES_MIN), STEP_BYTES_MAX, left)


class Holder(Protocol):
    """The owner of a claim."""

    def on_room(self, granted: int) -> None:
        """Memory was granted and is reserved already. The holder must not do much here: others wait for their
        grants."""

    def on_reclaimed(self) -> None:
        """The claim has to be given up, because others have waited for too long."""


class Budget:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.excess = 0
        """Bytes of responses beyond what there was memory for; see `Claim.hold`."""
        self.waiting: dict[Account, None] = {}
        """Accounts with waiting claims."""
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
        """Grants what fits now. The holder of `asking` is not called: its grant is the result, or None if it has to
        wait. A claim that asks while it is being called waits for the next grant."""
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
        """Reclaims one claim if another account has waited for too long; called at intervals."""
        if not self.waiting:
            return
        active = [account for account in self._accounts.values() if account.held or account.waiting]
        fair = self.limit // len(active)
        for account in self.waiting:
            account.waiting_since = account.waiting_since or now
        beyond = None if self._beyond is None else self._beyond.account
        starving = [account for account in self.waiting if account.held < fair or beyond not in (None, account)]
        if all(now - account.waiting_since < RECLAIM_SECONDS for account in starving):
            return
        largest = max(active, key=_HELD)
        claims = [claim for claim in largest.claims if claim.is_unfinished and claim.held]
        if claims and largest.held > fair and (holder := max(claims, key=_HELD).holder) is not None:
            holder.on_reclaimed()


class Account:
    """What one user, or one address, holds of a budget."""

    __slots__ = ("__weakref__", "budget", "claims", "held", "waiting", "waiting_since")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.held = 0
        self.claims: set[Claim] = set()
        self.waiting: dict[Claim, None] = {}
        """Claims in the order in which they started to wait."""
        self.waiting_since = 0.0
        """When `Budget.reclaim` noticed the wait; 0 if it has not yet."""

    def has_room(self, size: int) -> bool:
        """Returns True if the account, with this much more, would hold no more than is left free for all others."""
        budget = self.budget
        return budget.used + self.held + 2 * size <= budget.limit


class Claim:
    """What one connection, stream or body holds of its account."""

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
        """A claim without a holder only counts."""
        self.free_bytes = free_bytes
        self.account = account
        self.holder = holder
        self.held = self.excess = 0
        self.is_waiting = False
        self.wanted = self.rest = 0
        self.is_unfinished = False
        """The client decides when this is released."""
        self.owed = 0
        """While it is beyond the limit: what it has to release before another claim may exceed it."""
        account.claims.add(self)

    def count(self, size: int) -> None:
        """Counts bytes that have arrived already, without asking."""
        account = self.account
        self.held += size
        account.held += size
        account.budget.used += size

    def hold(self, size: int) -> None:
        """Holds exactly this many bytes, whether or not there is memory for them. What its account has no memory for is
        in excess: that does not count as used, because others, who can do nothing about it, would have to wait for
        it."""
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
        """Asks for `size` bytes more, of the `rest` that is still to come. Returns how much is granted, which may be
        the rest at once; None: the holder is called when it is granted."""
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
        """Reserves as much as there is within these limits. None: the holder is called when the least is granted."""
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
        """Moves the claim, with all that it holds, to the account of the user who has logged in."""
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
        """Releases everything and stops waiting."""
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
