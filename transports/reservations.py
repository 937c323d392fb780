"""Claims of coroutines, which wait for their turn when there is no room; and how much a poll may return.

What decides is in transports/admission. A response holds its room until the client has taken it, so that clients that
do not read cannot have the memory filled. When room is scarce polls return less; when there is hardly any they wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from whippet.app.commands.requests import PollMessages
from whippet.app.errors import Code, CommandError
from whippet.storage.batch import Readable
from whippet.transports.admission.budget import FREE_BYTES, STEP_BYTES_MIN, Account, Claim

POLL_BYTES_MIN = 1 << 20
"""A poll that could return less waits."""
CUT = "whippet.cut"
"""Under this name the scope of an HTTP request has a way to end it, and what carries it, without a response."""


class Reservation:
    __slots__ = ("_cut", "_granted", "claim")

    def __init__(
        self, account: Account, cut: Callable[[], None] | None = None, *, free_bytes: int = FREE_BYTES
    ) -> None:
        """`cut` is called when others need the room; without it the claim is never given up for them."""
        self.claim = Claim(account, self, free_bytes=free_bytes)
        self._cut = cut
        self._granted: asyncio.Future[int] | None = None

    async def reserve(self, size: int, rest: int = 0) -> int:
        granted = self.claim.reserve(size, rest)
        return await self.wait() if granted is None else granted

    async def wait_for_share(self) -> None:
        """Waits while what the user has not taken of all responses is more than their share of the memory for those. To
        be called before something is read or made that need not be there yet; `settle` follows."""
        if not self.claim.account.has_room(STEP_BYTES_MIN):
            await self.reserve(STEP_BYTES_MIN)

    async def wait(self) -> int:
        """Until it is the claim's turn."""
        self._granted = asyncio.get_running_loop().create_future()
        try:
            return await self._granted
        finally:
            self._granted = None
            self.claim.stop_waiting()

    def on_room(self, granted: int) -> None:
        if self._granted is not None and not self._granted.done():
            self._granted.set_result(granted)

    def on_reclaimed(self) -> None:
        if self._cut is not None:
            self._cut()

    def hold(self, size: int) -> None:
        """A response has so many bytes, which the client has still to take."""
        self.claim.hold(size)
        self.claim.is_unfinished = self._cut is not None

    def release(self) -> None:
        """It was taken; there may be another one."""
        self.claim.is_unfinished = False
        self.claim.hold(0)

    def disconnect(self) -> None:
        """The client is gone: nothing is waited for any more. Room that a poll in hand has is kept until `close`,
        because what it reads is in memory until then."""
        self.claim.stop_waiting()
        if self._granted is not None and not self._granted.done():
            self._granted.set_exception(CommandError(Code.DISCONNECTED))

    def close(self) -> None:
        if self._granted is not None:
            self.disconnect()
        self.claim.close()


class Responder(Protocol):
    """Whoever a response goes to."""

    def response_reservation(self) -> Reservation:
        """For one response at a time."""

    def defer(self, work: DeferredWork) -> None:
        """The response to the request in hand is what `work` gives, whenever that is; none if it gives nothing. The
        requests behind it do not wait for it."""


DeferredWork = Callable[[Responder], Awaitable[list[Readable]]]


class DeferredResponder:
    """A response that comes out of its turn, while others are answered."""

    __slots__ = ("reservation",)

    def __init__(self, reservation: Reservation) -> None:
        self.reservation = reservation

    def response_reservation(self) -> Reservation:
        return self.reservation

    def defer(self, work: DeferredWork) -> None:
        raise AssertionError("it is late already")


def reserve_response(reservation: Reservation, most: int) -> int | None:
    """The room that a response may take, which is `most` unless room is scarce. None if there is none yet: the turn has
    to be waited for."""
    return reservation.claim.reserve_up_to(most, most if most < POLL_BYTES_MIN else POLL_BYTES_MIN)


def reserve_poll(poll: PollMessages, reservation: Reservation, most: int) -> PollMessages | None:
    """The poll with the room that its response may take. None if there is none yet: `wait_for_poll` waits for it."""
    room = reserve_response(reservation, most)
    return None if room is None else msgspec.structs.replace(poll, room=room)


async def wait_for_poll(poll: PollMessages, reservation: Reservation) -> PollMessages:
    return msgspec.structs.replace(poll, room=await reservation.wait())
