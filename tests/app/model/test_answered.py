"""What 0.9 clients were answered: repeated within bounds, forgotten in time, never mixed up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.clocks import Clock
from whippet.app.errors import Code, CommandError
from whippet.app.model.answered import Answered, AnsweredSessions

SEND, CREATE, JOIN = 160, 128, 148
ALICE, BOB = "mark of alice", "mark of bob"
CLIENT, OTHER = b"c" * 16, b"o" * 16
MEMORY = 60
KEPT = 3


def sessions(*, kept: int = KEPT, away: int = 10, clock: Clock | None = None) -> AnsweredSessions:
    return AnsweredSessions(kept, MEMORY, away, clock or Clock())


def enter(of: AnsweredSessions, session: int, client: bytes = CLIENT, user_mark: str = ALICE) -> Answered:
    return of.enter(client, user_mark, session, frozenset({JOIN}))


def before(
    of: Answered, session: int, number: int, digest: int, operation: int = CREATE, *, counted: bool = True
) -> Any:
    found = of.before(session, number, operation, digest, append=operation == SEND, counted=counted)
    return found.result() if found is not None and found.done() else found


def answer(of: Answered, number: int, digest: int, operation: int = CREATE, *, counted: bool = True) -> None:
    of.begin(number, operation, digest, counted=counted).set_result(f"{operation} {number} {digest}")


def code(of: Answered, *asked: Any, **how: Any) -> Code:
    with pytest.raises(CommandError) as refused:
        before(of, *asked, **how)
    return refused.value.code


# --------------------------------------------------------------------------------------------------------- one session


async def test_what_is_repeated_is_answered_as_it_was() -> None:
    known = enter(sessions(), 7)
    assert before(known, 7, 1, 11) is None
    answer(known, 1, 11)
    assert before(known, 7, 1, 11) == "128 1 11"
    assert before(known, 7, 2, 11) is None


async def test_what_is_still_in_hand_is_waited_for() -> None:
    known = enter(sessions(), 7)
    in_hand = known.begin(1, SEND, 11, counted=False)
    found = known.before(7, 1, SEND, 11, append=True, counted=False)
    assert found is in_hand
    in_hand.set_result("done")
    assert before(known, 7, 1, 11, SEND, counted=False) == "done"


async def test_numbers_begin_with_one_and_may_have_gaps() -> None:
    known = enter(sessions(), 7)
    assert code(known, 7, 0, 11) == Code.INVALID_COMMAND
    answer(known, 5, 11)
    assert before(known, 7, 9, 11) is None
    answer(known, 9, 12)
    assert code(known, 7, 7, 13) == Code.REQUEST_ALREADY_APPLIED
    assert before(known, 7, 2**64 - 1, 13) is None


async def test_the_oldest_answers_make_room_and_are_refused_then() -> None:
    known = enter(sessions(), 7)
    for number in range(1, KEPT + 2):
        answer(known, number, number)
    assert code(known, 7, 1, 1) == Code.REQUEST_ALREADY_APPLIED
    assert [before(known, 7, number, number) for number in range(2, KEPT + 2)] == ["128 2 2", "128 3 3", "128 4 4"]


async def test_a_counted_request_under_a_number_that_was_used_is_refused() -> None:
    known = enter(sessions(), 7)
    answer(known, 1, 11)
    assert code(known, 7, 1, 12) == Code.INVALID_COMMAND
    assert code(known, 7, 1, 11, 129) == Code.INVALID_COMMAND
    answer(known, 2, 12)
    assert code(known, 7, 1, 13) == Code.INVALID_COMMAND


async def test_early_clients_repeat_the_newest_number_for_what_concerns_one_partition() -> None:
    """They send messages under the number that the next counted request takes."""

    known = enter(sessions(), 7)
    answer(known, 1, 11)
    for digest in (21, 22, 23):
        assert before(known, 7, 2, digest, SEND, counted=False) is None
        answer(known, 2, digest, SEND, counted=False)
    assert before(known, 7, 2, 23, SEND, counted=False) == "160 2 23"
    assert before(known, 7, 2, 31) is None
    answer(known, 2, 31)
    assert before(known, 7, 2, 31) == "128 2 31"
    assert code(known, 7, 2, 32) == Code.INVALID_COMMAND


async def test_what_concerns_one_partition_may_have_a_sequence_of_its_own() -> None:
    """As Java's clients count it, together with what they read."""

    known = enter(sessions(kept=10), 7)
    answer(known, 1, 11)
    answer(known, 2, 12)
    for number in (1, 9, 4):
        assert before(known, 7, number, 20 + number, SEND, counted=False) is None
        answer(known, number, 20 + number, SEND, counted=False)
    assert before(known, 7, 3, 13) is None
    answer(known, 3, 13)
    # Whatever comes again is answered as it was, in both sequences.
    assert [before(known, 7, number, 20 + number, SEND, counted=False) for number in (1, 9, 4)] == [
        "160 1 21",
        "160 9 29",
        "160 4 24",
    ]
    assert [before(known, 7, number, 10 + number) for number in (1, 2, 3)] == ["128 1 11", "128 2 12", "128 3 13"]
    assert code(known, 7, 2, 14) == Code.INVALID_COMMAND


async def test_messages_of_a_sequence_of_their_own_are_recognised_after_the_client_came_back() -> None:
    all_of_them = sessions()
    known = enter(all_of_them, 7)
    answer(known, 4, 24, SEND, counted=False)
    all_of_them.leave(known)
    again = enter(all_of_them, 9)
    assert before(again, 9, 4, 24, SEND, counted=False) == "160 4 24"
    assert before(again, 9, 4, 25, SEND, counted=False) is None


async def test_what_was_not_done_in_a_sequence_of_its_own_leaves_the_other_one_alone() -> None:
    known = enter(sessions(), 7)
    answer(known, 2, 12)
    answer(known, 2, 22, SEND, counted=False)
    known.forget(7, 2, counted=False)
    assert before(known, 7, 2, 22, SEND, counted=False) is None
    assert before(known, 7, 2, 12) == "128 2 12"
    assert code(known, 7, 1, 11) == Code.REQUEST_ALREADY_APPLIED


async def test_what_was_not_done_may_be_asked_again() -> None:
    known = enter(sessions(), 7)
    answer(known, 1, 11)
    answer(known, 2, 12)
    known.forget(7, 2, counted=True)
    assert before(known, 7, 2, 12) is None
    answer(known, 2, 13)
    assert before(known, 7, 2, 13) == "128 2 13"
    assert before(known, 7, 1, 11) == "128 1 11"


async def test_what_was_done_and_is_not_kept_is_not_done_again() -> None:
    known = enter(sessions(), 7)
    answer(known, 1, 11)
    known.lose(7, 1, counted=True)
    assert code(known, 7, 1, 11) == Code.REQUEST_ALREADY_APPLIED
    assert not known


# ------------------------------------------------------------------------------------------------------- many sessions


async def test_a_client_that_comes_back_is_answered_for_its_earlier_sessions() -> None:
    all_of_them = sessions()
    known = enter(all_of_them, 7)
    answer(known, 1, 11)
    answer(known, 2, 12, SEND)
    all_of_them.leave(known)
    again = enter(all_of_them, 9)
    assert before(again, 7, 1, 11) == "128 1 11"
    assert before(again, 7, 2, 12, SEND) == "160 2 12"
    # The old session has no new requests; what it has not asked is not known.
    assert before(again, 7, 2, 13, SEND) is None
    assert before(again, 7, 3, 13) is None
    # In the new one the same messages under the same number are the same; anything else is new.
    assert before(again, 9, 2, 12, SEND) == "160 2 12"
    assert before(again, 9, 1, 12, SEND) is None
    assert before(again, 9, 1, 11) is None


async def test_messages_of_earlier_sessions_are_pushed_out_by_those_of_this_one() -> None:
    all_of_them = sessions()
    known = enter(all_of_them, 7)
    answer(known, 9, 11, SEND)
    all_of_them.leave(known)
    again = enter(all_of_them, 9)
    for number in range(1, KEPT):
        answer(again, number, number)
    assert before(again, 9, 9, 11, SEND) == "160 9 11"
    answer(again, KEPT, 5)
    assert before(again, 9, 9, 11, SEND) is None


async def test_what_ended_with_the_connection_has_to_be_done_again() -> None:
    all_of_them = sessions()
    known = enter(all_of_them, 7)
    answer(known, 1, 11, JOIN)
    assert before(known, 7, 1, 11, JOIN) == "148 1 11"
    all_of_them.leave(known)
    assert before(enter(all_of_them, 9), 7, 1, 11, JOIN) is None


async def test_two_connections_of_one_client_share_what_is_known() -> None:
    clock = Clock()
    all_of_them = sessions(clock=clock)
    one = enter(all_of_them, 7)
    other = enter(all_of_them, 9)
    assert one is other
    answer(other, 1, 11)
    all_of_them.leave(one)
    clock.now += 2 * MEMORY
    # The other one is still there, so nothing is forgotten.
    assert before(enter(all_of_them, 12), 9, 1, 11) == "128 1 11"


# -------------------------------------------------------------------------------------------------------------- bounds


async def test_what_is_known_is_forgotten_a_while_after_the_last_connection() -> None:
    clock = Clock()
    all_of_them = sessions(clock=clock)
    for wait, expected in ((MEMORY - 1, "128 1 11"), (MEMORY, None)):
        known = enter(all_of_them, 7)
        answer(known, 1, 11)
        all_of_them.leave(known)
        clock.now += wait
        again = enter(all_of_them, 9)
        assert before(again, 7, 1, 11) == expected
        all_of_them.end(again)


async def test_so_many_clients_are_remembered_and_the_oldest_go_first() -> None:
    all_of_them = sessions(away=4)
    clients = [bytes([number]) * 16 for number in range(1, 8)]
    for client in clients:
        known = enter(all_of_them, 7, client)
        answer(known, 1, 11)
        all_of_them.leave(known)
    assert len(all_of_them._sessions) == len(all_of_them._away) == 4
    found = [before(enter(all_of_them, 9, client), 7, 1, 11) for client in reversed(clients)]
    assert found == ["128 1 11"] * 4 + [None] * 3


async def test_who_only_comes_and_goes_takes_no_memory_and_pushes_nobody_out() -> None:
    all_of_them = sessions(away=2)
    known = enter(all_of_them, 7)
    answer(known, 1, 11)
    all_of_them.leave(known)
    for number in range(100):
        all_of_them.leave(enter(all_of_them, 9, number.to_bytes(16, "big")))
    assert list(all_of_them._sessions) == list(all_of_them._away) == [CLIENT]
    assert before(enter(all_of_them, 9), 7, 1, 11) == "128 1 11"
    assert not all_of_them._away


async def test_who_logs_out_is_forgotten() -> None:
    all_of_them = sessions()
    known = enter(all_of_them, 7)
    answer(known, 1, 11)
    all_of_them.end(known)
    assert not all_of_them._sessions
    again = enter(all_of_them, 9)
    assert again is not known
    assert before(again, 7, 1, 11) is None


async def test_another_user_under_the_same_name_hears_nothing_and_forgets_nothing() -> None:
    all_of_them = sessions()
    alices = enter(all_of_them, 7)
    answer(alices, 1, 11)
    bobs = enter(all_of_them, 9, user_mark=BOB)
    assert before(bobs, 7, 1, 11) is None
    answer(bobs, 1, 12)
    # Alice still is where she was; neither her logout nor the end of her connection concerns Bob.
    assert before(alices, 7, 1, 11) == "128 1 11"
    all_of_them.end(alices)
    all_of_them.leave(alices)
    all_of_them.leave(bobs)
    assert before(enter(all_of_them, 12, user_mark=BOB), 9, 1, 12) == "128 1 12"
