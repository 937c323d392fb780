"""Guessing is futile, and nobody is locked out by what others do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from tests.app.access.support.world import LIMITS, refusal
from tests.storage.support.world import settled
from tests.support.clocks import Seconds
from whippet.app.access.throttle import AT_A_TIME, USUAL, Limits, Throttle, _Recent, origin
from whippet.app.errors import Code, CommandError


async def right() -> bool:
    return True


async def wrong() -> bool:
    return False


async def never() -> bool:
    raise AssertionError("a password was checked")


def throttled(limits: Limits = LIMITS) -> tuple[Throttle, Seconds]:
    time = Seconds()
    return Throttle(limits, clock=time, sleep=time.sleep), time


async def fail(throttle: Throttle, times: int, peer: str = "10.0.0.1:1", username: str = "alice") -> None:
    for _ in range(times):
        assert not await throttle.attempt(peer, username, wrong)


async def test_the_first_failures_are_free_and_then_each_wait_doubles() -> None:
    throttle, time = throttled()
    await fail(throttle, 3)
    assert time.slept == []
    await fail(throttle, 4)
    assert [round(seconds) for seconds in time.slept] == [1, 2, 4, 8]


def test_the_default_limits_are_as_documented() -> None:
    assert (
        Limits(
            free_of_address=10,
            free_of_user=5,
            free_where_known=5,
            first_wait_s=0.25,
            address_wait_max_s=30.0,
            user_wait_max_s=3.0,
            patience_s=8.0,
            forgiven_after_s=30.0,
            line_max=1024,
            remembered_max=10_000,
        )
        == USUAL
    )


async def test_an_attempt_with_a_wait_longer_than_a_clients_patience_is_refused_unchecked() -> None:
    throttle, time = throttled()
    await fail(throttle, 7)
    with pytest.raises(CommandError, match="try again in 16 s") as refused:
        await throttle.attempt("10.0.0.1:2", "bob", never)
    assert (refused.value.code, refused.value.retry_after_s) == (Code.TOO_MANY_LOGINS, 16)
    time.now += 8
    await fail(throttle, 1)
    assert time.slept[-1] == pytest.approx(8, abs=0.5)


async def test_the_wait_has_a_maximum() -> None:
    throttle, time = throttled()
    for _ in range(50):
        time.now += 16
        await fail(throttle, 1)
    time.now += 16
    time.slept.clear()
    await fail(throttle, 1)
    assert time.slept == []


async def test_refused_attempts_do_not_prolong_the_wait() -> None:
    throttle, time = throttled()
    await fail(throttle, 7)
    for _ in range(100):
        await refusal(throttle.attempt("10.0.0.1:2", "alice", never))
    time.now += 16
    assert await throttle.attempt("10.0.0.1:2", "alice", right)


async def test_failures_are_forgiven_with_time() -> None:
    throttle, time = throttled()
    await fail(throttle, 7)
    time.now += 8 * LIMITS.forgiven_after_s
    time.slept.clear()
    await fail(throttle, 3)
    assert time.slept == []


async def test_attempts_in_parallel_gain_nothing() -> None:
    """However many connections guess at once: only the free attempts, those in progress, and the few that wait."""

    throttle, time = throttled()
    looked_at = 0

    async def guess() -> bool:
        nonlocal looked_at
        looked_at += 1
        await asyncio.sleep(0)
        return False

    tasks = [throttle.attempt(f"10.0.0.1:{port}", f"user{port}", guess) for port in range(500)]
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, CommandError)]
    assert len(refused) + looked_at == 500
    assert looked_at <= LIMITS.free_of_address + AT_A_TIME + 5
    assert sum(time.slept) >= LIMITS.patience_s


async def test_two_attempts_of_an_address_run_at_a_time_and_all_get_their_turn() -> None:
    throttle, _ = throttled()
    under_way = most = 0

    async def check() -> bool:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return True

    fleet = [throttle.attempt(f"10.0.0.1:{port}", "service", check) for port in range(1, 200)]
    assert await asyncio.gather(*fleet) == [True] * 199
    assert most == AT_A_TIME == 2
    assert throttle._lines == {}


async def test_a_waiting_attempt_does_not_delay_other_addresses() -> None:
    asleep = asyncio.Event()

    async def sleep(seconds: float) -> None:
        asleep.set()
        await asyncio.Event().wait()

    throttle = Throttle(LIMITS, clock=Seconds(), sleep=sleep)
    await fail(throttle, 3, username="mallory")
    held = asyncio.create_task(throttle.attempt("10.0.0.1:1", "mallory", never))
    await asleep.wait()
    assert await throttle.attempt("10.0.0.2:1", "alice", right)
    assert not held.done()
    held.cancel()


async def test_the_line_of_waiting_attempts_is_limited() -> None:
    throttle, _ = throttled(LIMITS._replace(line_max=3))
    going = asyncio.Event()

    async def check() -> bool:
        await going.wait()
        return True

    tasks = [asyncio.create_task(throttle.attempt("10.0.0.1:1", "alice", check)) for _ in range(3)]
    await settled()
    assert await refusal(throttle.attempt("10.0.0.1:1", "alice", never)) == Code.TRANSIENT_NOT_ACCEPTED
    going.set()
    assert await asyncio.gather(*tasks) == [True] * 3


async def test_a_success_takes_back_failures() -> None:
    throttle, time = throttled()
    for _ in range(20):
        await fail(throttle, 2)
        assert await throttle.attempt("10.0.0.1:1", "alice", right)
    await fail(throttle, 3, peer="10.0.0.1:2", username="bob")
    await fail(throttle, 3, peer="10.0.0.2:1", username="alice")
    assert time.slept == []


async def test_a_success_takes_back_exactly_the_failures_of_the_same_user() -> None:
    throttle, time = throttled()
    await fail(throttle, 2, username="bob")
    await fail(throttle, 1)
    assert await throttle.attempt("10.0.0.1:1", "alice", right)
    time.slept.clear()
    await fail(throttle, 1, username="bob")
    assert time.slept == []
    await fail(throttle, 1, username="carol")
    assert [round(seconds) for seconds in time.slept] == [1], "three failures of bob are left"


async def test_a_known_address_becomes_unknown_after_failures_in_a_row() -> None:
    throttle, time = throttled()
    assert await throttle.attempt("10.0.0.1:1", "alice", right)
    await fail(throttle, 7, username="mallory")
    time.slept.clear()
    await fail(throttle, 3)
    assert time.slept == []
    assert await refusal(throttle.attempt("10.0.0.1:1", "alice", never)) == Code.TOO_MANY_LOGINS


async def test_a_success_at_a_known_address_resets_the_count_of_failures() -> None:
    throttle, time = throttled()
    assert await throttle.attempt("10.0.0.1:1", "alice", right)
    await fail(throttle, 7, username="mallory")
    time.slept.clear()
    for _ in range(5):
        await fail(throttle, 2)
        assert await throttle.attempt("10.0.0.1:1", "alice", right)
    assert time.slept == []


@pytest.mark.parametrize(("longest", "counted"), [(16.0, 7), (1.0, 3), (2.0, 4), (9.0, 7)])
async def test_no_failures_are_counted_beyond_the_longest_wait(longest: float, counted: int) -> None:
    """Otherwise it would take longer to be forgiven, the longer somebody else has guessed."""
    throttle, time = throttled(LIMITS._replace(address_wait_max_s=longest, patience_s=16.0))
    await fail(throttle, 30, username="mallory")
    time.now += (counted - LIMITS.free_of_address + 1) * LIMITS.forgiven_after_s
    time.slept.clear()
    await fail(throttle, 1)
    assert time.slept == []
    await fail(throttle, 1, username="bob")
    assert [round(seconds) for seconds in time.slept] == [1]


def test_a_table_drops_the_longest_unused_entry() -> None:
    table: _Recent[str, int] = _Recent(3)
    for name in ("one", "two", "three"):
        table.put(name, 1)
    assert table.get("one") == 1
    table.put("two", 2)
    table.put("four", 1)
    assert [name in table for name in ("one", "two", "three", "four")] == [True, True, False, True]
    assert table.get("three") is None
    assert len(table) == 3
    assert table.pop("one") == 1
    assert table.pop("one") is None


async def test_logging_in_to_an_own_account_does_not_make_guessing_cheaper() -> None:
    throttle, time = throttled()
    looked_at = 0

    async def guess() -> bool:
        nonlocal looked_at
        looked_at += 1
        return False

    for _ in range(100):
        assert await throttle.attempt("10.0.0.1:1", "mallory", right)
        await refusal(throttle.attempt("10.0.0.1:1", "alice", guess))
    assert looked_at < 10
    assert sum(time.slept) > 10


async def guesses_of_an_attacker_with_accounts(accounts: int, seconds: float) -> int:
    """The number of passwords of alice that are checked while each account fails and succeeds as often as it can."""
    throttle, time = throttled(Limits())
    looked_at = 0

    async def guess() -> bool:
        nonlocal looked_at
        looked_at += 1
        return False

    started = time.now
    while time.now - started < seconds:
        for number in range(accounts):
            for check in (*[wrong] * 4, right):
                await refusal(throttle.attempt("10.0.0.1:1", f"mallory {number}", check))
        await refusal(throttle.attempt("10.0.0.1:1", "alice", guess))
        time.now += 0.5
    return looked_at


async def test_logging_in_to_own_accounts_takes_back_no_failures_about_others() -> None:
    alone = await guesses_of_an_attacker_with_accounts(0, 600)
    assert alone < 50
    for accounts in (1, 2, 5):
        assert await guesses_of_an_attacker_with_accounts(accounts, 600) <= alone


async def test_a_success_takes_back_only_failures_of_its_own_user() -> None:
    throttle, time = throttled()
    assert await throttle.attempt("10.0.0.1:1", "mallory", right)
    await fail(throttle, 2, username="mallory")
    time.now += 2 * LIMITS.forgiven_after_s
    await fail(throttle, 3, username="alice")
    assert await throttle.attempt("10.0.0.1:1", "mallory", right)
    time.slept.clear()
    await fail(throttle, 1, username="bob")
    assert len(time.slept) == 1


async def test_a_failure_beyond_the_maximum_is_neither_counted_nor_taken_back() -> None:
    throttle, time = throttled()
    assert await throttle.attempt("10.0.0.1:1", "mallory", right)
    for number in range(20):
        time.now += 16
        await fail(throttle, 1, username=f"user {number}")
    for _ in range(LIMITS.free_where_known):
        await fail(throttle, 1, username="mallory")
    assert await throttle.attempt("10.0.0.1:1", "mallory", right)
    assert await refusal(throttle.attempt("10.0.0.1:1", "alice", never)) == Code.TOO_MANY_LOGINS


async def test_known_logins_are_reported_and_restored() -> None:
    reported: list[list[tuple[str, str]]] = []
    time = Seconds()
    first = Throttle(LIMITS, clock=time, sleep=time.sleep, on_known=lambda: reported.append(first.known()))
    for name in ("alice", "bob", "alice"):
        assert await first.attempt("10.0.0.1:1", name, right)
    await fail(first, LIMITS.free_where_known + 1, username="bob")
    assert reported == [[("10.0.0.1", "alice")], [("10.0.0.1", "alice"), ("10.0.0.1", "bob")], [("10.0.0.1", "alice")]]
    after = Throttle(LIMITS, clock=time, sleep=time.sleep, known=reported[-1])
    await fail(after, 7, username="mallory")
    assert await after.attempt("10.0.0.1:1", "alice", right)
    assert await refusal(after.attempt("10.0.0.1:1", "bob", never)) == Code.TOO_MANY_LOGINS


async def test_failing_in_a_users_name_never_locks_that_user_out() -> None:
    throttle, time = throttled()
    for host in range(200):
        await fail(throttle, 1, peer=f"10.1.{host}.1:1", username="alice")
    time.slept.clear()
    assert await throttle.attempt("10.0.0.7:1", "alice", right)
    assert sum(time.slept) <= LIMITS.user_wait_max_s


async def test_guessing_at_one_user_from_many_addresses_is_slowed() -> None:
    throttle, time = throttled()
    for host in range(20):
        await fail(throttle, 1, peer=f"10.1.{host}.1:1", username="alice")
    assert len(time.slept) == 20 - LIMITS.free_of_user
    assert time.slept[-1] == pytest.approx(LIMITS.user_wait_max_s, abs=0.1)


async def test_users_do_not_wait_at_known_addresses_for_failures_of_others() -> None:
    throttle, time = throttled()
    assert await throttle.attempt("10.0.0.1:1", "alice", right)
    await fail(throttle, 7, peer="10.0.0.1:2", username="mallory")
    for host in range(50):
        await fail(throttle, 1, peer=f"10.1.{host}.1:1", username="alice")
    time.slept.clear()
    assert await throttle.attempt("10.0.0.1:3", "alice", right)
    assert time.slept == []


async def test_a_known_address_is_treated_like_any_other_after_a_few_failures() -> None:
    throttle, time = throttled()
    assert await throttle.attempt("10.0.0.1:1", "alice", right)
    await fail(throttle, 3)
    assert time.slept == []
    await fail(throttle, 4)
    assert [round(seconds) for seconds in time.slept] == [1, 2, 4, 8]


async def test_an_attempt_that_is_cancelled_during_the_check_counts_as_failed() -> None:
    throttle, time = throttled()

    async def forever() -> bool:
        await asyncio.Event().wait()
        return True

    for _ in range(4):
        task = asyncio.create_task(throttle.attempt("10.0.0.1:1", "alice", forever))
        await settled()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await fail(throttle, 1)
    assert len(time.slept) >= 1


async def test_an_attempt_that_could_not_be_checked_does_not_count() -> None:
    throttle, time = throttled()

    async def overloaded() -> bool:
        raise CommandError(Code.TRANSIENT_NOT_ACCEPTED)

    for _ in range(20):
        assert await refusal(throttle.attempt("10.0.0.1:1", "alice", overloaded)) == Code.TRANSIENT_NOT_ACCEPTED
    assert time.slept == []


async def test_the_tables_are_bounded() -> None:
    throttle, _ = throttled(LIMITS._replace(remembered_max=50))
    checks: list[Callable[[], Awaitable[bool]]] = [right, wrong]
    for number in range(300):
        await throttle.attempt(f"10.2.{number % 256}.{number // 256}:1", f"user{number}", checks[number % 2])
    assert len(throttle._addresses) <= 50
    assert len(throttle._users) <= 50
    assert len(throttle._known) <= 50


async def test_an_address_that_has_to_wait_is_logged_only_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    throttle, _ = throttled()
    with caplog.at_level(logging.WARNING):
        await fail(throttle, 7)
    assert [record.getMessage() for record in caplog.records] == [
        "10.0.0.1 has failed to log in many times; each further attempt has to wait"
    ]


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("10.0.0.1:5000", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("[::1]:5000", "::/64"),
        ("[2001:db8:1:2:3:4:5:6]:5000", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:9::1", "2001:db8:1:2::/64"),
        ("[fe80::1%eth0]:5000", "fe80::/64"),
        ("[::ffff:10.0.0.1]:5000", "10.0.0.1"),
        ("localhost:5000", "localhost"),
        ("", ""),
    ],
)
def test_addresses_are_compared_without_port_and_ipv6_ones_by_network(peer: str, expected: str) -> None:
    assert origin(peer) == expected
