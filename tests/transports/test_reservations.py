"""Coroutines that wait for memory: they get it in order, and a cancelled wait leaves nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from tests.transports.support.crowded import crowded, waiting
from whippet.app.commands import requests
from whippet.app.errors import CommandError
from whippet.transports import reservations
from whippet.transports.admission.budget import Budget
from whippet.transports.reservations import POLL_BYTES_MIN, Reservation

MIB = 1 << 20
POLL = requests.PollMessages(
    requests.Consumer(requests.ConsumerKind.CONSUMER, 1),
    0,
    0,
    0,
    requests.Strategy(requests.StrategyKind.FIRST),
    10,
    False,
)


class Client:
    def __init__(self, room: Budget, name: str = "client") -> None:
        self.reservation = Reservation(room.account(name), lambda: None)

    def response_reservation(self) -> Reservation:
        return self.reservation


async def test_a_waiting_coroutine_resumes_when_memory_is_granted() -> None:
    room = Budget(8 * MIB)
    reservation = Reservation(room.account("a"))
    with crowded(room):
        taking = asyncio.create_task(reservation.reserve(MIB))
        await asyncio.sleep(0)
        assert not taking.done()
    assert await taking == MIB
    reservation.close()
    assert room.used == 0


async def test_a_cancelled_wait_leaves_no_gap() -> None:
    room = Budget(8 * MIB)
    first, second = Reservation(room.account("a")), Reservation(room.account("a"))
    with crowded(room):
        takings = [asyncio.create_task(each.reserve(MIB)) for each in (first, second)]
        await asyncio.sleep(0)
        assert waiting(room) == 2
        takings[0].cancel()
        await asyncio.gather(takings[0], return_exceptions=True)
        assert waiting(room) == 1
    assert await takings[1] == MIB
    for each in (first, second):
        each.close()
    assert room.used == 0


async def test_a_wait_cancelled_while_it_is_granted_leaves_no_gap() -> None:
    room = Budget(8 * MIB)
    reservation = Reservation(room.account("a"))
    with crowded(room):
        taking = asyncio.create_task(reservation.reserve(MIB))
        await asyncio.sleep(0)
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    reservation.close()
    assert room.used == 0


async def test_a_wait_ends_with_its_connection() -> None:
    room = Budget(8 * MIB)
    reservation = Reservation(room.account("a"))
    with crowded(room):
        taking = asyncio.create_task(reservation.reserve(MIB))
        await asyncio.sleep(0)
        reservation.close()
        with pytest.raises(CommandError):
            await taking


async def test_without_free_bytes_even_small_reservations_wait() -> None:
    room = Budget(8 * MIB)
    reservation = Reservation(room.account("a"), free_bytes=0)
    with crowded(room):
        taking = asyncio.create_task(reservation.reserve(1))
        await asyncio.sleep(0)
        assert not taking.done()
    await taking
    reservation.close()


async def test_a_poll_reserves_as_much_as_it_may_return() -> None:
    room = Budget(64 * MIB)
    client = Client(room)
    bounded = reservations.reserve_poll(POLL, client.reservation, 8 * MIB)
    assert bounded is not None
    assert bounded.room == 8 * MIB
    assert room.used == 8 * MIB
    client.reservation.hold(100)
    assert room.used == 100
    assert client.reservation.claim.is_unfinished
    client.reservation.release()
    assert room.used == 0


async def test_a_poll_returns_less_when_memory_is_scarce_and_waits_when_there_is_hardly_any() -> None:
    room = Budget(16 * MIB)
    granted = []
    clients = [Client(room)]
    while (bounded := reservations.reserve_poll(POLL, clients[-1].reservation, 64 * MIB)) is not None:
        granted.append(bounded.room or 0)
        clients.append(Client(room))
    asking = asyncio.create_task(reservations.wait_for_poll(POLL, clients[-1].reservation))
    await asyncio.sleep(0)
    assert waiting(room)
    assert not asking.done()
    assert granted == sorted(granted, reverse=True)
    assert granted[0] == 8 * MIB
    assert granted[-1] >= POLL_BYTES_MIN
    assert sum(granted) <= 16 * MIB
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_a_response_above_its_reservation_takes_nothing_from_others() -> None:
    """One message is always returned, however large."""
    room = Budget(16 * MIB)
    client, other = Client(room), Client(room, "other")
    client.reservation.hold(20 * MIB)
    assert (room.used, room.excess) == (8 * MIB, 12 * MIB)
    other.reservation.hold(2 * MIB)
    assert room.used == 10 * MIB
    client.reservation.hold(9 * MIB)
    assert (room.used, room.excess) == (10 * MIB, MIB)
    client.reservation.release()
    assert (room.used, room.excess) == (2 * MIB, 0)
    client.reservation.hold(20 * MIB)
    client.reservation.close()
    assert room.excess == 0


async def test_excess_bytes_move_with_a_login() -> None:
    room, another = Budget(16 * MIB), Budget(16 * MIB)
    client = Client(room)
    client.reservation.hold(20 * MIB)
    client.reservation.claim.move(another.account("user"))
    assert (room.used, room.excess) == (0, 0)
    assert (another.used, another.excess) == (8 * MIB, 12 * MIB)
    client.reservation.close()
    assert (another.used, another.excess) == (0, 0)


async def test_a_user_with_much_unread_waits_and_others_do_not() -> None:
    room = Budget(16 * MIB)
    first, second, third, other = Client(room), Client(room), Client(room), Client(room, "other")
    first.reservation.hold(20 * MIB)
    # One claim at a time exceeds the limit, as everywhere.
    await second.reservation.wait_for_share()
    asking = asyncio.create_task(third.reservation.wait_for_share())
    await other.reservation.wait_for_share()
    await asyncio.sleep(0)
    assert waiting(room) == 1
    first.reservation.release()
    await asking
    for each in (first, second, third, other):
        each.reservation.close()
    assert (room.used, room.excess) == (0, 0)


async def test_a_poll_in_progress_keeps_its_memory_when_its_client_leaves() -> None:
    """What it reads is in memory until it has ended."""
    room = Budget(16 * MIB)
    client = Client(room)
    assert reservations.reserve_poll(POLL, client.reservation, 4 * MIB) is not None
    client.reservation.disconnect()
    assert room.used == 4 * MIB
    client.reservation.close()
    assert room.used == 0
