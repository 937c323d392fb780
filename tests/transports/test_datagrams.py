"""Many datagrams in one call, in both directions: none is lost, joined or split."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from whippet.app.config.formats import Address
from whippet.app.config.listeners import QuicSocket
from whippet.transports import datagrams, listening
from whippet.transports.datagrams import Datagrams
from whippet.transports.listening import ListenError


class End:
    """One of two sockets that send to each other."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.name = link.getsockname()
        self.heard: list[bytes] = []
        self.runs: list[tuple[Any, list[bytes]]] = []
        self.turns = 0
        self.datagrams = Datagrams(link, self._hear, self._settle)

    def _hear(self, run: list[bytes], peer: Any) -> None:
        self.heard.extend(run)
        self.runs.append((peer, run))

    def _settle(self) -> None:
        self.turns += 1

    async def until(self, reached: Callable[[], bool]) -> None:
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def pair() -> AsyncIterator[tuple[End, End]]:
    ends = [End(await datagrams.bind(Address("127.0.0.1", 0), "quic.address", QuicSocket())) for _ in range(2)]
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            end.datagrams.close()


@pytest.mark.parametrize(
    "sizes",
    [
        [1],
        [1200] * 3,
        [1452] * 200,
        [1200] * 10 + [300],
        [300, 1200, 1200, 7, 7, 8, 1200],
        [16_384] * 9 + [5],
        [65_507],
        list(range(1, 120)),
    ],
    ids=str,
)
async def test_datagrams_arrive_as_they_were_sent(sizes: list[int]) -> None:
    sent = [number.to_bytes(2, "big")[-size:] + bytes(size - min(size, 2)) for number, size in enumerate(sizes)]
    async with pair() as (here, there):
        here.datagrams.send(sent, there.name)
        await there.until(lambda: len(there.heard) == len(sent))
        assert there.heard == sent


async def test_reading_yields_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other work of the event loop gets its turn."""
    monkeypatch.setattr(datagrams, "READ_SECONDS_MAX", 0.0)

    async with pair() as (here, there):
        for _ in range(10):
            here.datagrams.send([b"a"], there.name)
        await there.until(lambda: len(there.heard) == 10)
        assert there.turns >= 10


async def test_small_datagrams_are_read_together_once_several_arrive_at_a_time() -> None:
    count = 4 * datagrams.TURNS_PER_QUESTION
    async with pair() as (here, there):
        for number in range(count):
            here.link.sendto(bytes([number]), there.name)
        await there.until(lambda: len(there.heard) == count)
        assert there.heard == [bytes([number]) for number in range(count)]
        assert there.turns <= datagrams.TURNS_PER_QUESTION + 1


async def test_a_run_has_one_sender_and_at_most_so_many_datagrams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datagrams, "GATHERED_MAX", 3)
    monkeypatch.setattr(datagrams, "TURNS_PER_QUESTION", 1)
    async with pair() as (here, there), pair() as (other, _):
        senders = [here, here, other, here, *[other] * 7]
        for number, sender in enumerate(senders):
            sender.link.sendto(bytes([number]), there.name)
        await there.until(lambda: len(there.heard) == len(senders))
        assert [peer for peer, run in there.runs for _ in run] == [sender.name for sender in senders]
        assert there.heard == [bytes([number]) for number in range(len(senders))]
        assert max(len(run) for _, run in there.runs) == 3


class Unwilling:
    """A socket that fails with the given errors."""

    def __init__(self, link: socket.socket, *errors: OSError) -> None:
        self._link = link
        self.errors = list(errors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def sendto(self, octets: bytes, peer: Any) -> int:
        if self.errors:
            raise self.errors.pop(0)
        return self._link.sendto(octets, peer)

    def sendmsg(self, *given: Any) -> int:
        if self.errors:
            raise self.errors.pop(0)
        return self._link.sendmsg(*given)


async def test_without_segmentation_datagrams_are_sent_one_by_one() -> None:
    async with pair() as (here, there):
        here.datagrams._link = Unwilling(here.link, OSError(errno.EIO, "no"))  # type: ignore[assignment]
        for _ in range(2):
            here.datagrams.send([b"one", b"two"], there.name)
        await there.until(lambda: len(there.heard) == 4)
        assert there.heard == [b"one", b"two"] * 2
        assert not here.datagrams._can_segment


async def test_unsent_datagrams_wait_in_order_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(datagrams, "UNSENT_BYTES_MAX", 2000)

    async with pair() as (here, there):
        here.datagrams._link = Unwilling(here.link, BlockingIOError())  # type: ignore[assignment]
        here.datagrams.send([b"1" * 1000], there.name)
        here.datagrams.send([b"2" * 900], there.name)
        here.datagrams.send([b"3" * 900], there.name)
        await there.until(lambda: len(there.heard) == 2)
        here.datagrams.send([b"4"], there.name)
        await there.until(lambda: len(there.heard) == 3)
        assert [octets[:1] for octets in there.heard] == [b"1", b"2", b"4"]


async def test_a_flush_returns_when_the_kernel_has_everything() -> None:
    async with pair() as (here, there):
        here.datagrams._link = Unwilling(here.link, BlockingIOError())  # type: ignore[assignment]
        here.datagrams.send([b"1"], there.name)
        assert here.datagrams._unsent
        await here.datagrams.flush(60)
        assert not here.datagrams._unsent
        await here.datagrams.flush(60)
        await there.until(lambda: there.heard == [b"1"])


async def test_a_flush_ends_after_its_timeout() -> None:
    async with pair() as (here, there):
        here.datagrams._link = Unwilling(here.link, *[BlockingIOError()] * 100_000)  # type: ignore[assignment]
        here.datagrams.send([b"1"], there.name)
        await here.datagrams.flush(0.001)
        assert here.datagrams._unsent


async def test_a_datagram_that_cannot_be_sent_is_dropped_and_the_next_is_sent() -> None:
    async with pair() as (here, there):
        here.datagrams.send([bytes(70_000)], there.name)
        here.datagrams.send([b"next"], there.name)
        await there.until(lambda: there.heard == [b"next"])


async def test_an_unusable_address_is_refused_in_one_line() -> None:
    async with pair() as (here, _):
        with pytest.raises(ListenError, match=r"cannot listen on .* \(quic\.address\): Address already in use"):
            await datagrams.bind(Address(*here.name), "quic.address", QuicSocket())
    with pytest.raises(ListenError, match=r"quic\.address"):
        await datagrams.bind(Address("no.such.host.invalid", 1), "quic.address", QuicSocket())


async def test_configured_buffer_sizes_are_applied() -> None:
    wanted = QuicSocket(override_defaults=True, recv_buffer_size=50_000, send_buffer_size=60_000)
    with await datagrams.bind(Address("127.0.0.1", 0), "quic.address", wanted) as link:
        assert link.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * 50_000
        assert link.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * 60_000
        assert listening.effective(link).port
