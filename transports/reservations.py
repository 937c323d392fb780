"""Lets coroutines reserve memory, waiting while there is none; and decides how much a poll may return.

transports/admission has the policy. A response holds its memory until the client has read it, so that clients that do
not read cannot fill the memory. When memory is scarce polls return less; when there is hardly any, they wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from whippet.app.commands.requests import PollMessages
from whippet.app.errors import Code, CommandError
from whippet.storage.batch import Readable
from whippet.storage.long_reads import HELD_BYTES_MAX
from whippet.transports.admission.budget import FREE_BYTES, STEP_BYTES_MIN, Account, Claim

POLL_BYTES_MIN = 1 << 20
"""A poll that could return less than this waits."""
CUT = "whippet.cut"
"""The key in the ASGI scope of a function that ends the request, and what carries it, without a response."""


class Reservation:
    __slots__ = ("_granted", "_on_reclaimed", "claim")

    def __init__(
        self, account: Account, on_reclaimed: Callable[[], None] | None = None, *, free_bytes: int = FREE_BYTES
    ) -> None:
        """`on_reclaimed` is called when others need the memory; without it the claim is never reclaimed."""
        self.claim = Claim(account, self, free_bytes=free_bytes)
        self._on_reclaimed = on_reclaimed
        self._granted: asyncio.Future[int] | None = None

    async def reserve(self, size: int, rest: int = 0) -> int:
        granted = self.claim.reserve(size, rest)
        return await self.wait() if granted is None else granted

    async def wait_for_share(self) -> None:
        """Waits while the user's unread responses exceed their share of the memory for responses. Called before
        something is read or encoded that can wait; `hold` follows."""
        if not self.claim.account.has_room(STEP_BYTES_MIN):
            await self.reserve(STEP_BYTES_MIN)

    async def wait(self) -> int:
        """Waits until the claim is granted."""
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
        if self._on_reclaimed is not None:
            self._on_reclaimed()

    def hold(self, size: int) -> None:
        """Holds the bytes of a response until the client has taken them."""
        self.claim.hold(size)
        self.claim.is_unfinished = self._on_reclaimed is not None

    def release(self) -> None:
        """The response was taken; another one may follow."""
        self.claim.is_unfinished = False
        self.claim.hold(0)

    def disconnect(self) -> None:
        """The client is gone, so a wait ends. The memory of a poll in progress is held until `close`, because what it
        reads is in memory until then."""
        self.claim.stop_waiting()
        if self._granted is not None and not self._granted.done():
            self._granted.set_exception(CommandError(Code.DISCONNECTED))

    def close(self) -> None:
        if self._granted is not None:
            self.disconnect()
        self.claim.close()


class Responder(Protocol):
    """The receiver of a response."""

    sends_long_reads: bool
    """The last buffer of a response may be a `LongRead`."""

    def response_reservation(self) -> Reservation:
        """Returns the reservation for one response at a time."""

    def defer(self, work: DeferredWork) -> None:
        """The response to the current request is what `work` returns, whenever that is, or none if that is empty. Later
        requests do not wait for it."""


DeferredWork = Callable[[Responder], Awaitable[list[Readable]]]


class DeferredResponder:
    """The receiver of one response that is sent out of order."""

    __slots__ = ("reservation",)

    sends_long_reads = False

    def __init__(self, reservation: Reservation) -> None:
        self.reservation = reservation

    def response_reservation(self) -> Reservation:
        return self.reservation

    def defer(self, work: DeferredWork) -> None:
        raise AssertionError("the response is deferred already")


def reserve_response(reservation: Reservation, most: int) -> int | None:
    """Reserves memory for a response: `most`, or less if memory is scarce. Returns None if there is none yet; then call
    `Reservation.wait`."""
    return reservation.claim.reserve_up_to(most, most if most < POLL_BYTES_MIN else POLL_BYTES_MIN)


def held_and_long(to: Responder, most: int) -> tuple[int, int | None]:
    """Returns how much of the response to a poll may be held in memory, and how much it may have if it is read while it
    is sent."""
    return (HELD_BYTES_MAX, most) if to.sends_long_reads and most > HELD_BYTES_MAX else (most, None)


def reserve_poll(
    poll: PollMessages, reservation: Reservation, most: int, long_room: int | None = None
) -> PollMessages | None:
    """Returns the poll with the memory that its response may use; None if there is none yet, then call
    `wait_for_poll`."""
    room = reserve_response(reservation, most)
    return None if room is None else msgspec.structs.replace(poll, room=room, long_room=long_room)


async def wait_for_poll(poll: PollMessages, reservation: Reservation, long_room: int | None = None) -> PollMessages:
    return msgspec.structs.replace(poll, room=await reservation.wait(), long_room=long_room)
