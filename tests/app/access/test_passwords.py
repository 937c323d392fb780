"""Passwords: hashed off the event loop, a few at a time, with the same work for unknown users."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import argon2
import pytest
from argon2.exceptions import VerifyMismatchError

from tests.app.access.support.world import CHEAP, refusal
from tests.storage.support.world import settled
from tests.support.running import HANGS_S
from whippet.app.access.passwords import USUAL, Passwords, intact
from whippet.app.errors import Code


class Slow(Passwords):
    """Every computation waits for permission, and records its thread."""

    def __init__(self, *, concurrency: int = 2, waiting_max: int = 4) -> None:
        super().__init__(CHEAP, concurrency=concurrency, waiting_max=waiting_max)
        self.going = threading.Event()
        self.threads: list[threading.Thread] = []

    def _matches(self, stored: str, password: str) -> bool:
        self.threads.append(threading.current_thread())
        assert self.going.wait(HANGS_S)
        return super()._matches(stored, password)


@pytest.fixture
def slow() -> Iterator[Slow]:
    passwords = Slow()
    yield passwords
    passwords.going.set()
    passwords.close()


async def test_only_the_right_password_matches() -> None:
    passwords = Passwords(CHEAP)
    stored = await passwords.hash("correct horse")
    assert await passwords.verify(stored, "correct horse")
    assert not await passwords.verify(stored, "correct horsf")
    assert not await passwords.verify(stored, "")
    passwords.close()


async def test_two_hashes_of_one_password_differ_and_do_not_contain_it() -> None:
    passwords = Passwords(CHEAP)
    one, other = await passwords.hash("secret"), await passwords.hash("secret")
    assert one != other
    assert one.startswith("$argon2id$v=19$m=8,t=1,p=1$")
    assert "secret" not in one
    assert intact(one)
    passwords.close()


def test_the_default_cost_is_the_owasp_minimum_and_that_of_iggys_hashes() -> None:
    assert tuple(USUAL) == (19 * 1024, 2, 1)


@pytest.mark.parametrize("password", ["äöü€", "a\x00b", "x" * 100, " spaces "])
async def test_any_text_can_be_a_password(password: str) -> None:
    passwords = Passwords(CHEAP)
    stored = await passwords.hash(password)
    assert await passwords.verify(stored, password)
    assert not await passwords.verify(stored, password.strip() + "!")
    passwords.close()


async def test_an_unknown_user_costs_one_hash_and_matches_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = []
    compare = argon2.PasswordHasher.verify

    def watched(hasher: argon2.PasswordHasher, stored: str, password: str) -> bool:
        try:
            return compare(hasher, stored, password)
        except Exception as error:
            outcomes.append(type(error))
            raise

    passwords = Passwords(CHEAP)
    stored = await passwords.hash("secret")
    monkeypatch.setattr(argon2.PasswordHasher, "verify", watched)
    for unknown in (None, stored):
        before = passwords.computed
        assert not await passwords.verify(unknown, "guess")
        assert passwords.computed == before + 1
    # Argon2 has verified completely, and did not fail on an invalid hash.
    assert outcomes == [VerifyMismatchError] * 2
    assert not await passwords.verify(None, "")
    passwords.close()


async def test_the_hash_for_unknown_users_has_the_usual_cost() -> None:
    passwords = Passwords(CHEAP)
    assert passwords._hash_of_nobody.split("$")[:4] == (await passwords.hash("secret")).split("$")[:4]
    assert len(passwords._hash_of_nobody) == len(await passwords.hash("secret"))
    passwords.close()


@pytest.mark.parametrize("damaged", ["", "secret", "$argon2id$", "$argon2id$v=19$m=8,t=1,p=1$AAAA", "$5$a$b$c$d"])
async def test_a_damaged_hash_lets_nobody_in(damaged: str) -> None:
    passwords = Passwords(CHEAP)
    assert not await passwords.verify(damaged, "secret")
    assert not intact(damaged)
    passwords.close()


async def test_the_event_loop_is_not_blocked_while_passwords_are_verified(slow: Slow) -> None:
    first = asyncio.create_task(slow.verify(None, "guess"))
    await settled()
    assert not first.done()
    slow.going.set()
    assert not await first
    assert threading.main_thread() not in slow.threads


async def test_the_number_of_concurrent_hashes_is_limited(slow: Slow) -> None:
    tasks = [asyncio.create_task(slow.verify(None, "guess")) for _ in range(6)]
    await settled()
    assert (slow.computed, slow.waiting) == (2, 4)
    slow.going.set()
    assert await asyncio.gather(*tasks) == [False] * 6
    assert (slow.computed, slow.waiting) == (6, 0)


async def test_when_too_many_wait_the_next_is_refused_at_once(slow: Slow) -> None:
    tasks = [asyncio.create_task(slow.verify(None, "guess")) for _ in range(6)]
    await settled()
    assert await refusal(slow.verify(None, "guess")) == Code.TRANSIENT_NOT_ACCEPTED
    slow.going.set()
    await asyncio.gather(*tasks)
    assert await refusal(slow.verify(None, "guess")) is None


async def test_a_cancelled_attempt_does_not_raise_the_number_of_concurrent_hashes(slow: Slow) -> None:
    """Otherwise a client that connects, sends a login and disconnects could queue up work for any number of threads."""

    running = [asyncio.create_task(slow.verify(None, "guess")) for _ in range(2)]
    await settled()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    waiting = asyncio.create_task(slow.verify(None, "guess"))
    given_up = asyncio.create_task(slow.verify(None, "guess"))
    await settled()
    assert (slow.computed, slow.waiting) == (2, 2)
    given_up.cancel()
    await settled()
    assert slow.waiting == 1
    slow.going.set()
    assert not await waiting
    assert slow.computed == 3


async def test_by_default_two_hashes_run_at_a_time_and_1024_may_wait() -> None:
    passwords = Passwords(CHEAP)
    tasks = [asyncio.create_task(passwords.verify(None, "guess")) for _ in range(1026)]
    await asyncio.sleep(0)
    assert (passwords.computed, passwords.waiting) == (2, 1024)
    assert await refusal(passwords.verify(None, "guess")) == Code.TRANSIENT_NOT_ACCEPTED
    assert await asyncio.gather(*tasks) == [False] * 1026
    passwords.close()
