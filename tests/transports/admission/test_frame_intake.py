"""Requests cut out of bytes that arrive in any pieces: without sockets, with a protocol that only has a length."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transports.support.crowded import crowded
from whippet.app.errors import Code, CommandError
from whippet.storage.batch import Readable
from whippet.transports.admission.budget import FREE_BYTES, STEP_BYTES_MAX, STEP_BYTES_MIN, Budget
from whippet.transports.admission.frame_intake import QUEUE_MAX, FrameIntake

MIB = 1 << 20
LENGTH_BYTES = 4
TOO_LARGE = 9 * MIB
REFUSAL = [b"too large"]


class Lengths:
    """The first four bytes are the length of a request, including themselves. A length of 1 is invalid; large ones are
    refused."""

    def measure(self, data: memoryview) -> int:
        if len(data) < LENGTH_BYTES:
            return 0
        length = int.from_bytes(data[:LENGTH_BYTES], "little")
        if length < LENGTH_BYTES:
            raise CommandError(Code.INVALID_COMMAND)
        return length

    def refusal(self, data: memoryview, length: int) -> Code | None:
        return Code.INVALID_COMMAND if length >= TOO_LARGE else None

    def encode_refusal(self, data: memoryview, code: Code) -> Any:
        return REFUSAL


def request(size: int) -> bytes:
    return (size.to_bytes(LENGTH_BYTES, "little") + bytes(range(256)) * (size // 256 + 1))[:size]


class Client:
    """Reads as a transport does: into the buffer of a request, or else into one that is reused."""

    def __init__(self, room: Budget, name: object = "client") -> None:
        self.requests = FrameIntake(room.account(name), lambda _: Lengths(), self._resume, self._cut)
        self.resumed = 0
        self.is_cut = False
        self.taken: list[bytes] = []

    def _resume(self) -> None:
        self.resumed += 1

    def _cut(self) -> None:
        self.is_cut = True

    def read(self, octets: Readable, at_once: int = 1 << 16) -> Readable:
        """Returns what it may not read."""
        requests = self.requests
        while octets and requests.can_read:
            arriving = requests.arriving
            if arriving is not None and arriving.filled < arriving.reserved:
                assert arriving.frame is not None
                size = min(arriving.reserved - arriving.filled, at_once, len(octets))
                arriving.frame[arriving.filled : arriving.filled + size] = octets[:size]
                requests.received(size)
            else:
                size = min(at_once, len(octets))
                scratch = bytearray(octets[:size])
                requests.receive(memoryview(scratch))
                scratch[:] = bytes(len(scratch))
            octets = octets[size:]
        return octets

    def answer(self) -> None:
        """Takes all queued requests."""
        requests = self.requests
        while requests.queue:
            asked = requests.queue.popleft()
            if not isinstance(asked, list):
                self.taken.append(bytes(asked))
                requests.claim.release(len(asked))
            if len(requests.queue) == QUEUE_MAX // 2:
                requests.resume_parsing()


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([4, 5, 100, FREE_BYTES, 70_000, STEP_BYTES_MIN * 3, MIB, 5 * MIB]), max_size=8),
    st.sampled_from([3, 1000, 65_536, 262_144]),
)
def test_requests_come_out_as_they_were_sent(sizes: list[int], at_once: int) -> None:
    room = Budget(64 * MIB)
    client = Client(room)
    at_once = max(at_once, sum(sizes) // 1000)
    left: Readable = memoryview(b"".join(map(request, sizes)))
    while left:
        left = client.read(left, at_once)
        client.answer()
    assert client.taken == [request(size) for size in sizes]
    assert room.used == 0
    assert not client.requests.is_unfinished


def test_many_small_requests_are_parsed_a_few_at_a_time() -> None:
    room = Budget(64 * MIB)
    client = Client(room)
    octets = request(5) * 10_000
    assert client.read(octets, len(octets)) == b""
    assert len(client.requests.queue) == QUEUE_MAX
    assert not client.requests.can_read
    assert room.used == len(octets), "what is set aside counts"
    client.answer()
    assert client.taken == [request(5)] * 10_000
    assert room.used == 0


@pytest.mark.parametrize("size", [100_000, MIB, 8 * MIB])
def test_memory_is_reserved_as_bytes_arrive(size: int) -> None:
    room = Budget(64 * MIB)
    client = Client(room)
    octets = request(size)
    sent = 0
    for part in (18, size // 3, size // 2, size - 1):
        client.read(octets[sent:part], 10_000)
        sent = part
        least = STEP_BYTES_MAX if size >= 4 * MIB else STEP_BYTES_MIN
        assert room.used <= part + min(max(part, least), STEP_BYTES_MAX)
    client.read(octets[sent:])
    assert room.used == size
    client.answer()
    assert client.taken == [octets]


def test_five_clients_that_announce_much_and_send_little_take_no_memory_from_others() -> None:
    room = Budget(512 * MIB)
    hostile = [Client(room, "hostile") for _ in range(5)]
    for client in hostile:
        client.read(request(8 * MIB)[:18])
    assert room.used <= 5 * (STEP_BYTES_MAX + 18)
    honest = Client(room, "honest")
    assert honest.read(request(MIB)) == b""
    honest.answer()
    assert honest.taken == [request(MIB)]


def test_a_request_without_memory_waits_and_then_arrives() -> None:
    room = Budget(4 * MIB)
    client = Client(room)
    with crowded(room):
        left = client.read(request(MIB))
        assert len(left) == MIB - 65_536
        assert not client.requests.can_read
        assert not client.requests.is_late(1e9, 1), "it is not late for waiting"
        assert client.resumed == 0
    assert client.resumed == 1
    assert client.read(left) == b""
    client.answer()
    assert client.taken == [request(MIB)]
    assert room.used == 0


def test_small_requests_get_memory_whatever_others_hold() -> None:
    room = Budget(4 * MIB)
    client = Client(room)
    with crowded(room):
        for _ in range(100):
            assert client.read(request(FREE_BYTES)) == b""
            client.answer()
    assert len(client.taken) == 100


def test_reading_stops_when_queued_requests_exceed_the_share() -> None:
    """Each of them is complete in one read, so none of them has asked for memory."""
    room = Budget(4 * MIB)
    client = Client(room)
    with crowded(room):
        left = client.read(request(16_000) * 50)
        assert len(client.requests.queue) == 4
        while left:
            client.answer()
            assert client.requests.can_read
            left = client.read(left)
        client.answer()
    assert client.taken == [request(16_000)] * 50


def test_a_request_that_is_too_large_is_skipped_and_takes_no_memory() -> None:
    room = Budget(64 * MIB)
    client = Client(room)
    assert client.read(request(TOO_LARGE) + request(7)) == b""
    assert next(iter(client.requests.queue)) is REFUSAL
    assert room.used == 7
    client.answer()
    assert client.taken == [request(7)]


def test_bytes_that_arrive_extend_the_deadline() -> None:
    room = Budget(64 * MIB)
    requests = (client := Client(room)).requests
    client.read(request(8 * MIB)[: 4 * MIB])
    requests.began_at = 100.0
    assert not requests.is_late(100 + 30 + 4, 30)
    assert requests.is_late(100 + 30 + 5, 30)
    client.read(request(8 * MIB)[4 * MIB :])
    assert not requests.is_late(1e9, 30)
    client.read((10 * MIB).to_bytes(4, "little") + bytes(5 * MIB))
    requests.began_at = 100.0
    assert not requests.is_late(100 + 30 + 5, 30)
    assert requests.is_late(100 + 30 + 6, 30)


def test_invalid_bytes_are_an_error_and_earlier_requests_are_kept() -> None:
    room = Budget(64 * MIB)
    client = Client(room)
    with pytest.raises(CommandError):
        client.read(request(9) + b"\1\0\0\0")
    client.answer()
    assert client.taken == [request(9)]
    assert room.used == 0


@pytest.mark.parametrize("octets", [b"\x09", request(9) * 1000, request(8 * MIB)[: 3 * MIB], request(10 * MIB)[:MIB]])
@pytest.mark.parametrize("in_hand", [False, True])
def test_a_lost_connection_keeps_only_the_request_in_progress(octets: bytes, in_hand: bool) -> None:
    room = Budget(64 * MIB)
    client = Client(room)
    requests = client.requests
    client.read(request(5) + octets, 1 << 20)
    asked = requests.queue.popleft()
    if in_hand:
        requests.in_progress = len(asked)
    else:
        requests.claim.release(len(asked))
    requests.drop()
    assert room.used == requests.in_progress
    if in_hand:
        requests.claim.release(5)
        requests.in_progress = 0
        requests.drop()
    assert room.used == 0
    assert not room.account("client").claims


def test_a_slow_request_is_reclaimed_for_others() -> None:
    room = Budget(8 * MIB)
    slow, waiting = Client(room, "slow"), Client(room, "waiting")
    slow.requests.claim.count(7 * MIB)
    slow.read(request(3 * MIB)[: 2 * MIB])
    other = Client(room, "slow")
    other.read(request(MIB)[:100_000])
    waiting.read(request(MIB))
    assert not waiting.requests.can_read
    for now in range(100, 107):
        room.reclaim(float(now))
    assert slow.is_cut
    assert not waiting.is_cut
