"""Text messages joined from fragments, and the memory that they hold meanwhile."""

from __future__ import annotations

import pytest

from tests.transports.support.crowded import crowded
from whippet.transports.admission.budget import FREE_BYTES, STEP_BYTES_MIN, Budget
from whippet.transports.admission.frame_intake import QUEUE_MAX
from whippet.transports.admission.text_intake import TextIntake

MIB = 1 << 20
LIMIT = 2 * MIB


def made(room: Budget, name: object = "client") -> tuple[TextIntake, list[str]]:
    told: list[str] = []
    return TextIntake(room.account(name), lambda: told.append("read"), lambda: told.append("cut")), told


def say(messages: TextIntake, text: bytes, *, is_last: bool = True) -> None:
    messages.gather(memoryview(text), LIMIT, is_last=is_last)


def answer(messages: TextIntake) -> list[bytes]:
    found = list(messages.queue)
    messages.queue.clear()
    messages.claim.release(sum(map(len, found)))
    return found


def test_fragments_are_joined_to_a_message() -> None:
    room = Budget(64 * MIB)
    messages, _ = made(room)
    for text in (b"a" * 10, b"b" * 100_000, b"\xc3"):
        say(messages, text, is_last=False)
    say(messages, b"\xa4")
    say(messages, b"next")
    assert answer(messages) == [b"a" * 10 + b"b" * 100_000 + b"\xc3\xa4", b"next"]
    assert room.used == 0


def test_bytes_that_are_not_utf_8_are_an_error() -> None:
    messages, _ = made(Budget(64 * MIB))
    with pytest.raises(UnicodeDecodeError):
        say(messages, b"\xff")


def test_memory_is_reserved_as_a_message_arrives() -> None:
    """Not for the size that it may have."""
    room = Budget(64 * MIB)
    messages, _ = made(room)
    say(messages, b"x" * 17_000, is_last=False)
    assert room.used == 17_000 + STEP_BYTES_MIN
    say(messages, b"x" * 17_000)
    assert room.used == 34_000


def test_a_message_without_memory_waits_and_is_read_later() -> None:
    room = Budget(4 * MIB)
    messages, told = made(room)
    with crowded(room):
        say(messages, b"x" * FREE_BYTES, is_last=False)
        assert not messages.can_read
        assert not messages.is_late(1e9, 1)
    say(messages, b"y")
    assert told == ["read"]
    assert answer(messages) == [b"x" * FREE_BYTES + b"y"]
    assert room.used == 0


def test_a_message_that_ends_in_the_same_read_waits_no_longer() -> None:
    room = Budget(4 * MIB)
    messages, _ = made(room)
    with crowded(room):
        say(messages, b"x" * FREE_BYTES, is_last=False)
        say(messages, b"y")
        assert not messages.can_read, "more than is free is held, until it is answered"
        answer(messages)
        assert messages.can_read


def test_only_an_unfinished_message_can_be_late() -> None:
    messages, _ = made(Budget(MIB))
    assert not messages.is_late(1e9, 30)
    say(messages, b"x", is_last=False)
    messages.began_at = 100.0
    assert not messages.is_late(130.0, 30)
    assert messages.is_late(131.0, 30)
    say(messages, b"x")
    assert not messages.is_late(1e9, 30)


def test_reading_stops_while_the_queue_is_full() -> None:
    messages, _ = made(Budget(64 * MIB))
    for _ in range(QUEUE_MAX):
        assert messages.can_read
        say(messages, b"{}")
    assert not messages.can_read


def test_a_lost_connection_holds_no_memory() -> None:
    room = Budget(64 * MIB)
    messages, _ = made(room)
    say(messages, b"one")
    say(messages, b"x" * 100_000, is_last=False)
    messages.keep_unparsed(memoryview(b"aside"))
    messages.drop()
    assert room.used == 0
    assert not room.account("client").claims


def test_five_hundred_unauthenticated_clients_leave_memory_for_one_more() -> None:
    """Each of them has begun a message of some 50 KB."""
    room = Budget(16 * MIB)
    for number in range(540):
        messages, _ = made(room, f"10.0.0.{number % 9}")
        for _ in range(3):
            if messages.can_read:
                say(messages, b"x" * FREE_BYTES, is_last=False)
    stranger, _ = made(room, "10.0.1.1")
    say(stranger, b"x" * 10_000, is_last=False)
    say(stranger, b"y")
    assert answer(stranger) == [b"x" * 10_000 + b"y"]
