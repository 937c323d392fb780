"""Cached responses to 0.9 clients: returned within limits, expired in time, never mixed up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.clocks import Clock
from whippet.app.errors import Code, CommandError
from whippet.app.model.modern_replay import ReplayCache, ReplayCaches

SEND, CREATE, JOIN = 160, 128, 148
ALICE, BOB = "mark of alice", "mark of bob"
CLIENT, OTHER = b"c" * 16, b"o" * 16
MEMORY = 60
KEPT = 3


def caches_of(*, kept: int = KEPT, away: int = 10, clock: Clock | None = None) -> ReplayCaches:
    return ReplayCaches(kept, MEMORY, away, clock or Clock())


def register(of: ReplayCaches, session: int, client: bytes = CLIENT, user_mark: str = ALICE) -> ReplayCache:
    return of.register(client, user_mark, session, frozenset({JOIN}))


def find(
    of: ReplayCache, session: int, number: int, digest: int, operation: int = CREATE, *, counted: bool = True
) -> Any:
    found = of.find(session, number, operation, digest, append=operation == SEND, counted=counted)
    return found.result() if found is not None and found.done() else found


def respond(of: ReplayCache, number: int, digest: int, operation: int = CREATE, *, counted: bool = True) -> None:
    of.start(number, operation, digest, counted=counted).set_result(f"{operation} {number} {digest}")


def code(of: ReplayCache, *asked: Any, **how: Any) -> Code:
    with pytest.raises(CommandError) as refused:
        find(of, *asked, **how)
    return refused.value.code


# --------------------------------------------------------------------------------------------------------- one session


async def test_a_repeated_request_gets_the_same_response() -> None:
    cache = register(caches_of(), 7)
    assert find(cache, 7, 1, 11) is None
    respond(cache, 1, 11)
    assert find(cache, 7, 1, 11) == "128 1 11"
    assert find(cache, 7, 2, 11) is None


async def test_a_repeated_request_waits_for_a_pending_response() -> None:
    cache = register(caches_of(), 7)
    in_hand = cache.start(1, SEND, 11, counted=False)
    found = cache.find(7, 1, SEND, 11, append=True, counted=False)
    assert found is in_hand
    in_hand.set_result("done")
    assert find(cache, 7, 1, 11, SEND, counted=False) == "done"


async def test_numbers_begin_with_one_and_may_have_gaps() -> None:
    cache = register(caches_of(), 7)
    assert code(cache, 7, 0, 11) == Code.INVALID_COMMAND
    respond(cache, 5, 11)
    assert find(cache, 7, 9, 11) is None
    respond(cache, 9, 12)
    assert code(cache, 7, 7, 13) == Code.REQUEST_ALREADY_APPLIED
    assert find(cache, 7, 2**64 - 1, 13) is None


async def test_the_oldest_responses_are_evicted_and_their_requests_refused() -> None:
    cache = register(caches_of(), 7)
    for number in range(1, KEPT + 2):
        respond(cache, number, number)
    assert code(cache, 7, 1, 1) == Code.REQUEST_ALREADY_APPLIED
    assert [find(cache, 7, number, number) for number in range(2, KEPT + 2)] == ["128 2 2", "128 3 3", "128 4 4"]


async def test_a_counted_request_with_a_used_number_is_refused() -> None:
    cache = register(caches_of(), 7)
    respond(cache, 1, 11)
    assert code(cache, 7, 1, 12) == Code.INVALID_COMMAND
    assert code(cache, 7, 1, 11, 129) == Code.INVALID_COMMAND
    respond(cache, 2, 12)
    assert code(cache, 7, 1, 13) == Code.INVALID_COMMAND


async def test_early_clients_reuse_the_newest_number_for_requests_to_one_partition() -> None:
    """They send messages under the number that the next counted request has."""

    cache = register(caches_of(), 7)
    respond(cache, 1, 11)
    for digest in (21, 22, 23):
        assert find(cache, 7, 2, digest, SEND, counted=False) is None
        respond(cache, 2, digest, SEND, counted=False)
    assert find(cache, 7, 2, 23, SEND, counted=False) == "160 2 23"
    assert find(cache, 7, 2, 31) is None
    respond(cache, 2, 31)
    assert find(cache, 7, 2, 31) == "128 2 31"
    assert code(cache, 7, 2, 32) == Code.INVALID_COMMAND


async def test_requests_to_one_partition_may_have_a_sequence_of_their_own() -> None:
    """Java's clients count it together with what they read."""

    cache = register(caches_of(kept=10), 7)
    respond(cache, 1, 11)
    respond(cache, 2, 12)
    for number in (1, 9, 4):
        assert find(cache, 7, number, 20 + number, SEND, counted=False) is None
        respond(cache, number, 20 + number, SEND, counted=False)
    assert find(cache, 7, 3, 13) is None
    respond(cache, 3, 13)
    # A repeated request gets its response, in both sequences.
    assert [find(cache, 7, number, 20 + number, SEND, counted=False) for number in (1, 9, 4)] == [
        "160 1 21",
        "160 9 29",
        "160 4 24",
    ]
    assert [find(cache, 7, number, 10 + number) for number in (1, 2, 3)] == ["128 1 11", "128 2 12", "128 3 13"]
    assert code(cache, 7, 2, 14) == Code.INVALID_COMMAND


async def test_sends_with_a_separate_sequence_are_recognised_after_a_reconnection() -> None:
    caches = caches_of()
    cache = register(caches, 7)
    respond(cache, 4, 24, SEND, counted=False)
    caches.disconnect(cache)
    again = register(caches, 9)
    assert find(again, 9, 4, 24, SEND, counted=False) == "160 4 24"
    assert find(again, 9, 4, 25, SEND, counted=False) is None


async def test_a_discarded_request_of_one_sequence_does_not_affect_the_other() -> None:
    cache = register(caches_of(), 7)
    respond(cache, 2, 12)
    respond(cache, 2, 22, SEND, counted=False)
    cache.discard(7, 2, counted=False)
    assert find(cache, 7, 2, 22, SEND, counted=False) is None
    assert find(cache, 7, 2, 12) == "128 2 12"
    assert code(cache, 7, 1, 11) == Code.REQUEST_ALREADY_APPLIED


async def test_a_request_that_was_not_executed_may_be_repeated() -> None:
    cache = register(caches_of(), 7)
    respond(cache, 1, 11)
    respond(cache, 2, 12)
    cache.discard(7, 2, counted=True)
    assert find(cache, 7, 2, 12) is None
    respond(cache, 2, 13)
    assert find(cache, 7, 2, 13) == "128 2 13"
    assert find(cache, 7, 1, 11) == "128 1 11"


async def test_a_request_whose_response_was_evicted_is_not_executed_again() -> None:
    cache = register(caches_of(), 7)
    respond(cache, 1, 11)
    cache.evict(7, 1, counted=True)
    assert code(cache, 7, 1, 11) == Code.REQUEST_ALREADY_APPLIED
    assert not cache


# ------------------------------------------------------------------------------------------------------- many sessions


async def test_a_returning_client_gets_the_responses_of_its_earlier_sessions() -> None:
    caches = caches_of()
    cache = register(caches, 7)
    respond(cache, 1, 11)
    respond(cache, 2, 12, SEND)
    caches.disconnect(cache)
    again = register(caches, 9)
    assert find(again, 7, 1, 11) == "128 1 11"
    assert find(again, 7, 2, 12, SEND) == "160 2 12"
    # The old session has no new requests; what it has not sent is not cached.
    assert find(again, 7, 2, 13, SEND) is None
    assert find(again, 7, 3, 13) is None
    # In the new session the same messages under the same number are a repetition; anything else is new.
    assert find(again, 9, 2, 12, SEND) == "160 2 12"
    assert find(again, 9, 1, 12, SEND) is None
    assert find(again, 9, 1, 11) is None


async def test_sends_of_earlier_sessions_are_evicted_by_newer_ones() -> None:
    caches = caches_of()
    cache = register(caches, 7)
    respond(cache, 9, 11, SEND)
    caches.disconnect(cache)
    again = register(caches, 9)
    for number in range(1, KEPT):
        respond(again, number, number)
    assert find(again, 9, 9, 11, SEND) == "160 9 11"
    respond(again, KEPT, 5)
    assert find(again, 9, 9, 11, SEND) is None


async def test_an_operation_that_ended_with_the_connection_is_executed_again() -> None:
    caches = caches_of()
    cache = register(caches, 7)
    respond(cache, 1, 11, JOIN)
    assert find(cache, 7, 1, 11, JOIN) == "148 1 11"
    caches.disconnect(cache)
    assert find(register(caches, 9), 7, 1, 11, JOIN) is None


async def test_two_connections_of_one_client_share_a_cache() -> None:
    clock = Clock()
    caches = caches_of(clock=clock)
    one = register(caches, 7)
    other = register(caches, 9)
    assert one is other
    respond(other, 1, 11)
    caches.disconnect(one)
    clock.now += 2 * MEMORY
    # The other connection is still open, so nothing expires.
    assert find(register(caches, 12), 9, 1, 11) == "128 1 11"


# -------------------------------------------------------------------------------------------------------------- limits


async def test_a_cache_expires_some_time_after_the_last_connection() -> None:
    clock = Clock()
    caches = caches_of(clock=clock)
    for wait, expected in ((MEMORY - 1, "128 1 11"), (MEMORY, None)):
        cache = register(caches, 7)
        respond(cache, 1, 11)
        caches.disconnect(cache)
        clock.now += wait
        again = register(caches, 9)
        assert find(again, 7, 1, 11) == expected
        caches.remove(again)


async def test_the_number_of_caches_is_limited_and_the_oldest_are_dropped_first() -> None:
    caches = caches_of(away=4)
    clients = [bytes([number]) * 16 for number in range(1, 8)]
    for client in clients:
        cache = register(caches, 7, client)
        respond(cache, 1, 11)
        caches.disconnect(cache)
    assert len(caches._sessions) == len(caches._away) == 4
    found = [find(register(caches, 9, client), 7, 1, 11) for client in reversed(clients)]
    assert found == ["128 1 11"] * 4 + [None] * 3


async def test_a_client_without_requests_takes_no_memory_and_evicts_nobody() -> None:
    caches = caches_of(away=2)
    cache = register(caches, 7)
    respond(cache, 1, 11)
    caches.disconnect(cache)
    for number in range(100):
        caches.disconnect(register(caches, 9, number.to_bytes(16, "big")))
    assert list(caches._sessions) == list(caches._away) == [CLIENT]
    assert find(register(caches, 9), 7, 1, 11) == "128 1 11"
    assert not caches._away


async def test_a_logout_removes_the_cache() -> None:
    caches = caches_of()
    cache = register(caches, 7)
    respond(cache, 1, 11)
    caches.remove(cache)
    assert not caches._sessions
    again = register(caches, 9)
    assert again is not cache
    assert find(again, 7, 1, 11) is None


async def test_another_user_with_the_same_client_name_has_a_separate_cache() -> None:
    caches = caches_of()
    alices = register(caches, 7)
    respond(alices, 1, 11)
    bobs = register(caches, 9, user_mark=BOB)
    assert find(bobs, 7, 1, 11) is None
    respond(bobs, 1, 12)
    # Alice's cache is unchanged; neither her logout nor the end of her connection concerns Bob.
    assert find(alices, 7, 1, 11) == "128 1 11"
    caches.remove(alices)
    caches.disconnect(alices)
    caches.disconnect(bobs)
    assert find(register(caches, 12, user_mark=BOB), 9, 1, 12) == "128 1 12"
