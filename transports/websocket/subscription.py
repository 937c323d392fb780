"""What all subscriptions of the channel have in common: a number, credit, a task, and an end.

A subscription pushes as much as its credit allows, then waits for more, and reports what it has skipped. It ends
silently if the client unsubscribes. If it cannot continue, its last message has the reason and where it stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from whippet.app.errors import CommandError, of_storage
from whippet.app.model.identity import Login
from whippet.storage.errors import StorageError
from whippet.transports.http.errors import Refused
from whippet.transports.http.forms.field_types import U32
from whippet.transports.websocket.text_connection import Gone

if TYPE_CHECKING:
    from whippet.transports.websocket.channel import Channel
    from whippet.transports.websocket.commands import Members

_log = logging.getLogger(__name__)

CREDIT_MAX = 2**32 - 1
_encode = msgspec.json.Encoder().encode


class Granted(msgspec.Struct, frozen=True):
    sub: int
    credit: U32


class Subscription:
    what: object = None
    """A connection cannot have two subscriptions with the same key."""
    login: Login
    """The user whose quota the subscription counts in."""

    def __init__(self, channel: Channel, number: int, credit: int) -> None:
        self.channel = channel
        self.number = number
        self.credit = credit
        self._waiting: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    # ---------------------------------------------------------------------------------- overridden by each kind

    async def push_messages(self) -> None:
        """Pushes messages until it is cancelled."""
        raise NotImplementedError

    def on_end(self) -> None:
        """The subscription has ended."""

    def resume_point(self) -> Mapping[str, Any]:
        """Returns where the client may resume another time."""
        return {}

    async def check(self) -> None:
        """Raises CommandError if the user may not continue."""

    async def ack(self, members: Members) -> None:
        raise Refused(HTTPStatus.BAD_REQUEST, "Only messages of a consumer group can be acknowledged", "sub")

    # ------------------------------------------------------------------------------------------------- credit

    def grant(self, credit: int) -> None:
        self.credit = min(self.credit + credit, CREDIT_MAX)
        if self.credit and self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait_for_credit(self) -> bool:
        """Waits for credit; returns whether it had to."""
        waited = False
        while not self.credit:
            waited = True
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return waited

    # ------------------------------------------------------------------------------------------------- the end

    def end(self, code: str | None, reason: str) -> None:
        """Ends the subscription; without a code, the client has requested it."""
        if self._task is None:
            return
        self.cancel()
        if code is not None:
            self._push_end(code, reason)

    def cancel(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            self._forget()

    def _forget(self) -> None:
        self.channel.forget(self)
        self.on_end()

    def _push_end(self, code: str, reason: str) -> None:
        message = _encode({"sub": self.number, "end": {"code": code, "reason": reason, **self.resume_point()}})
        self.channel.link.push(message)

    async def _run(self) -> None:
        code, reason = "error", "Internal server error"
        try:
            await self.push_messages()
        except Gone:
            return
        except CommandError as refused:
            code, reason = refused.code.name.lower(), str(refused)
        except StorageError as error:
            code, reason = "gone", str(of_storage(error))
        except Exception:  # noqa: BLE001 -- an unexpected error is reported to the client; the connection continues
            _log.exception("%s: a subscription failed with an unexpected error", self.channel.session.address)
        if self._task is not None:
            self._task = None
            self._forget()
            self._push_end(code, reason)
