"""The policy by which clients share memory, without sockets or a clock: who is served, and how soon."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippet.transports.admission.budget import FREE_BYTES, RECLAIM_SECONDS, Account, Budget, Claim

KIB, MIB = 1 << 10, 1 << 20
LIMIT = 64 * MIB


class Client:
    """Sends requests one after the other; each reserves its memory in steps."""

    def __init__(self, account: Account, *, is_unfinished: bool = True) -> None:
        self.claim = Claim(account, self)
        self.claim.is_unfinished = is_unfinished
        self.granted: list[int] = []
        self.is_reclaimed = False
        self.then: Callable[[], object] | None = None

    def on_room(self, granted: int) -> None:
        self.granted.append(granted)
        if self.then is not None:
            self.then()

    def on_reclaimed(self) -> None:
        self.is_reclaimed = True
        self.claim.close()

    def fill(self, step: int = MIB) -> None:
        """Holds as much as it gets without waiting."""
        while self.claim.reserve(step, step) is not None:
            pass


def crowded(room: Budget) -> Client:
    """One claim holds the whole budget, and another one exceeds the limit already."""
    blocking, beyond = Client(room.account("blocking")), Client(room.account("beyond"))
    blocking.claim.count(room.limit)
    assert beyond.claim.reserve(FREE_BYTES + 1) == FREE_BYTES + 1
    blocking.then = lambda: beyond
    return blocking


def test_one_account_can_have_half_of_a_budget_and_leaves_room_for_one_more() -> None:
    room = Budget(LIMIT)
    held = []
    for name in range(4):
        client = Client(room.account(name))
        while client.claim.account.has_room(MIB):
            assert client.claim.reserve(MIB) == MIB
        held.append(client.claim.held // MIB)
    assert held == [32, 16, 8, 4]


def test_an_account_is_shared_by_all_its_claims() -> None:
    room = Budget(LIMIT)
    clients = [Client(room.account("same")) for _ in range(100)]
    while any(client.claim.reserve(MIB) for client in clients if room.account("same").has_room(MIB)):
        pass
    assert room.used == LIMIT // 2
    assert Client(room.account("other")).claim.reserve(MIB) == MIB


def test_small_claims_never_wait() -> None:
    room = Budget(LIMIT)
    for name in range(40):
        Client(room.account(name)).fill()
    for account in (room.account(0), room.account("new")):
        assert Client(account).claim.reserve(FREE_BYTES) == FREE_BYTES


def test_the_account_that_holds_least_is_served_first() -> None:
    room = Budget(LIMIT)
    greedy, other = Client(room.account("greedy")), Client(room.account("other"))
    for client in (greedy, other):
        while client.claim.account.has_room(MIB):
            client.claim.reserve(MIB)
    holder = Client(room.account("holder"))
    assert holder.claim.reserve(64 * MIB, 64 * MIB) == 64 * MIB, "one at a time may go beyond the limit"
    for client in (greedy, other):
        assert client.claim.reserve(MIB, MIB) is None
    newcomer = Client(room.account("newcomer"))
    assert newcomer.claim.reserve(MIB, MIB) is None
    order: list[str] = []
    for name, client in (("greedy", greedy), ("other", other), ("newcomer", newcomer)):
        client.then = lambda name=name: order.append(name)
    holder.claim.release(64 * MIB)
    assert order == ["newcomer"] or order[0] == "newcomer"


def test_within_an_account_the_longest_waiting_claim_is_served_first() -> None:
    room = Budget(LIMIT)
    blocking = crowded(room)
    waiting = [Client(room.account("b")) for _ in range(3)]
    assert [each.claim.reserve(MIB) for each in waiting] == [None] * 3
    order: list[int] = []
    for number, each in enumerate(waiting):
        each.then = lambda number=number: order.append(number)
    blocking.claim.close()
    assert order == [0, 1, 2]
    assert [each.granted for each in waiting] == [[MIB]] * 3


def test_requests_that_are_all_half_received_do_not_block_each_other() -> None:
    """Eight requests of a quarter of the budget each. Without rule 5 none of them would ever be complete."""
    room, size, step = Budget(LIMIT), LIMIT // 4, MIB
    clients = [Client(room.account("same")) for _ in range(8)]
    arriving = dict.fromkeys(clients, 0)
    whole = 0
    waiting: set[Client] = set()
    while arriving:
        for client in list(arriving):
            if client in waiting:
                if not client.granted:
                    continue
                waiting.discard(client)
                arriving[client] += client.granted.pop()
            elif (granted := client.claim.reserve(min(step, size - arriving[client]), size - arriving[client])) is None:
                waiting.add(client)
            else:
                arriving[client] += granted
            if arriving[client] == size:
                del arriving[client]
                client.claim.close()
                whole += 1
        assert room.used <= LIMIT + size
        assert len(waiting) < len(arriving) or any(each.granted for each in waiting) or not arriving
    assert whole == 8
    assert room.used == 0


def test_one_claim_at_a_time_may_exceed_the_limit() -> None:
    room = Budget(MIB)
    first, second = Client(room.account(1)), Client(room.account(2))
    assert first.claim.reserve(MIB, 5 * MIB) == 5 * MIB
    assert second.claim.reserve(MIB, 5 * MIB) is None
    first.claim.release(4 * MIB)
    assert second.granted == [], "it continues once the first has released everything"
    first.claim.release(MIB)
    assert second.granted == [5 * MIB]
    second.claim.close()
    assert room.used == 0


def test_a_waiting_claim_is_granted_once_it_holds_little_itself() -> None:
    room = Budget(MIB)
    blocking = crowded(room)
    busy = Client(room.account(1))
    busy.claim.count(100 * KIB)
    assert busy.claim.reserve(0) is None
    busy.claim.release(90 * KIB)
    assert busy.granted == [0]
    assert blocking.claim.held == MIB


def test_a_login_moves_what_a_claim_holds_to_the_user() -> None:
    strangers, users = Budget(LIMIT), Budget(LIMIT)
    client = Client(strangers.account("127.0.0.1"))
    client.claim.count(5 * MIB)
    client.claim.move(users.account(7))
    assert (strangers.used, users.used, client.claim.held) == (0, 5 * MIB, 5 * MIB)
    assert not strangers.account("127.0.0.1").claims
    client.claim.close()
    assert users.used == 0


def test_a_waiting_claim_keeps_waiting_in_the_budget_it_moves_to() -> None:
    strangers, users = Budget(MIB), Budget(MIB)
    blocking = crowded(strangers)
    client = Client(strangers.account("y"))
    assert client.claim.reserve(MIB, MIB) is None
    client.claim.move(users.account(1))
    assert client.granted == [MIB]
    assert not strangers.waiting
    assert blocking.claim.held == MIB


def test_unused_accounts_are_dropped() -> None:
    room = Budget(LIMIT)
    for name in range(1000):
        client = Client(room.account(name))
        client.claim.reserve(MIB)
        client.claim.close()
    del client
    gc.collect()
    assert len(room._accounts) == 0


# ---------------------------------------------------------------------------------------------------------- reclaiming


def test_an_account_above_its_fair_share_loses_a_request_when_others_have_waited() -> None:
    room = Budget(LIMIT)
    greedy = [Client(room.account("greedy")) for _ in range(5)]
    for client in greedy:
        client.claim.count(20 * MIB)
    honest = Client(room.account("honest"))
    beyond = Client(room.account("greedy"))
    assert beyond.claim.reserve(MIB, MIB) == MIB, "the one that may go beyond the limit goes no further"
    assert honest.claim.reserve(MIB, MIB) is None
    room.reclaim(100.0)
    room.reclaim(100.0 + RECLAIM_SECONDS - 0.1)
    assert not any(client.is_reclaimed for client in greedy)
    now = 100.0 + RECLAIM_SECONDS
    while not honest.granted:
        room.reclaim(now)
        now += 1
    assert sum(client.is_reclaimed for client in greedy) == 2
    assert now - 100.0 <= RECLAIM_SECONDS + 5


def test_an_account_with_its_fair_share_does_not_wait_for_ever_for_one_that_exceeds_the_limit() -> None:
    room = Budget(LIMIT)
    honest, greedy = Client(room.account("honest")), Client(room.account("greedy"))
    honest.claim.count(3 * LIMIT // 4)
    assert greedy.claim.reserve(LIMIT, 7 * LIMIT) == 7 * LIMIT
    assert honest.claim.reserve(LIMIT // 4, LIMIT // 4) is None
    for now in range(100, 106):
        room.reclaim(now)
    assert greedy.is_reclaimed
    assert honest.granted == [LIMIT // 4]


def test_no_account_loses_a_request_to_its_own_other_requests() -> None:
    room = Budget(LIMIT)
    client, other = Client(room.account("same")), Client(room.account("same"))
    client.claim.count(LIMIT)
    Client(room.account("same")).claim.reserve(MIB, MIB)
    assert other.claim.reserve(MIB, MIB) is None
    for now in range(100, 200):
        room.reclaim(now)
    assert not client.is_reclaimed


def test_complete_requests_are_not_reclaimed() -> None:
    room = Budget(LIMIT)
    working, receiving = Client(room.account("a"), is_unfinished=False), Client(room.account("a"))
    working.claim.count(LIMIT)
    receiving.claim.count(2 * MIB)
    Client(room.account("a")).claim.reserve(MIB, MIB)
    waiting = Client(room.account("b"))
    assert waiting.claim.reserve(MIB, MIB) is None
    for now in range(100, 200):
        room.reclaim(now)
    assert not working.is_reclaimed
    assert receiving.is_reclaimed


# ----------------------------------------------------------------------------------------------------------- at random


@settings(deadline=None)
@given(
    hostile=st.integers(1, 12),
    claims=st.integers(1, 6),
    step=st.sampled_from([64 * KIB, MIB, 2 * MIB]),
    wanted=st.integers(1, 4 * MIB),
    seed=st.integers(0, 2**32),
)
def test_an_honest_client_is_served_while_hostile_clients_hold_memory(
    hostile: int, claims: int, step: int, wanted: int, seed: int
) -> None:
    """Each hostile account has several claims that take all they get and release nothing until they have to. The honest
    client waits no longer than the time after which memory is reclaimed, and a second for each hostile claim; it never
    needs their cooperation."""
    rng, room = random.Random(seed), Budget(LIMIT)
    holders = [Client(room.account(name)) for name in range(hostile) for _ in range(claims)]
    rng.shuffle(holders)
    for holder in holders:
        holder.then = lambda holder=holder: holder.claim.is_waiting or holder.claim.reserve(step, 16 * MIB)
        while holder.claim.reserve(step, 16 * MIB) is not None:
            pass
        assert room.used <= LIMIT + 16 * MIB
    honest = Client(room.account("honest"))
    if honest.claim.reserve(wanted, wanted) is None:
        seconds = 0
        while not honest.granted:
            room.reclaim(100.0 + seconds)
            seconds += 1
            assert seconds <= RECLAIM_SECONDS + len(holders) + 1
            assert room.used <= LIMIT + 16 * MIB
    assert honest.claim.held >= wanted


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.sampled_from(["take", "count", "back", "close", "move"]), st.integers(1, 20 * MIB)
        ),
        max_size=200,
    )
)
def test_the_books_of_a_budget_balance_after_any_operations(steps: list[tuple[int, str, int]]) -> None:
    budgets = Budget(LIMIT), Budget(LIMIT // 4)
    clients = [Client(budgets[number % 2].account(number // 2)) for number in range(6)]
    for number, what, size in steps:
        claim = clients[number].claim
        match what:
            case "take" if not claim.is_waiting:
                claim.reserve(size, size)
            case "count":
                claim.count(min(size, KIB))
            case "back" if claim.held:
                claim.release(min(size, claim.held))
            case "close":
                claim.close()
                clients[number] = Client(claim.account)
            case "move":
                claim.move(budgets[size % 2].account(size % 3))
        for room in budgets:
            accounts = {each.claim.account for each in clients if each.claim.account.budget is room}
            assert room.used == sum(account.held for account in accounts)
            assert set(room.waiting) == {account for account in accounts if account.waiting}
        assert all(each.claim.held >= 0 for each in clients)
    for client in clients:
        client.claim.close()
    assert [room.used for room in budgets] == [0, 0]
    assert [room._beyond for room in budgets] == [None, None]


@pytest.mark.parametrize("waiting", [1, 10, 1000])
def test_one_release_serves_all_claims_that_fit(waiting: int) -> None:
    room = Budget(LIMIT)
    blocking = crowded(room)
    clients = [Client(room.account(number)) for number in range(waiting)]
    for client in clients:
        assert client.claim.reserve(FREE_BYTES + 1, FREE_BYTES + 1) is None
    blocking.claim.close()
    assert all(client.granted for client in clients)
