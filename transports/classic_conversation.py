"""The classic binary protocol, of clients 0.6 to 0.8; see transports/conversation.py."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from whippet.app.commands import direct_sends, groups
from whippet.app.commands.registry import Destination, admit, execute
from whippet.app.commands.requests import PollMessages, Request, SendMessages
from whippet.app.commands.responses import Polled
from whippet.app.errors import Code, CommandError, on_the_wire
from whippet.app.gateway import Gateway
from whippet.app.model.sessions import Session
from whippet.storage.batch import Limits, Readable
from whippet.transports import offload
from whippet.transports.random_pool import random_bytes, random_uuid
from whippet.transports.reservations import Responder, reserve_poll, wait_for_poll
from whippet.transports.send_checks import check_send
from whippet.transports.wire import destination, numbered_sends
from whippet.transports.wire.classic import frames, requests, responses, sends
from whippet.transports.wire.classic.dialect import TELLING, Dialect

if TYPE_CHECKING:
    from whippet.transports.conversation import Conversation

_log = logging.getLogger(__name__)

UNAUTHENTICATED_FRAME_BYTES = 64 << 10
"""A larger request is skipped and refused before a login: no login needs more."""
SMALL_BYTES = 16 << 10
"""A send up to this size is decoded without checking the sender first."""
SENT: list[Readable] = [frames.EMPTY_SUCCESS]
SENDS = frozenset({frames.SEND_MESSAGES, numbered_sends.CODE})
"""Their limit is configured."""
CLOSING_CODES = frozenset({Code.STALE_CLIENT, Code.CLIENT_NOT_FOUND})
"""The connection ends after these errors: the client has to connect again."""

ANSWERED_EMPTY = frozenset({(frames.GET_CONSUMER_OFFSET, Code.PARTITION_NOT_FOUND)})
"""Errors that servers before 0.9 do not know: their clients expect an empty response."""


class ClassicConversation:
    measure = staticmethod(frames.measure)

    def __init__(self, gateway: Gateway, session: Session, header_size: int | None) -> None:
        self.session = session
        self.is_over = False
        self.successor: Conversation | None = None
        self.poll_bytes_max = gateway.store.options.read_bytes_max
        self._gateway = gateway
        host = session.address.rpartition(":")[0]
        self.dialect = Dialect(gateway.clock(), header_size, gateway.returning_clients, host)
        self._limits = Limits.of(gateway.store.options)
        self._frame_bytes_max = gateway.config.system.limits.frame_bytes
        self._single_bytes_max = min(SMALL_BYTES, self._frame_bytes_max)
        gateway.sessions.add(session)

    def refusal(self, data: memoryview, length: int) -> Code | None:
        if length < frames.HEADER_BYTES:
            return Code.INVALID_COMMAND
        length -= frames.LENGTH_BYTES
        if length > UNAUTHENTICATED_FRAME_BYTES and self.session.login is None:
            return Code.UNAUTHENTICATED
        if length > self._frame_bytes_max:
            return Code.INVALID_COMMAND
        if length > frames.PAYLOAD_BYTES_MAX + 4 and frames.code_of(data) not in SENDS:
            return Code.INVALID_COMMAND
        return None

    def encode_refusal(self, data: memoryview, code: Code) -> list[Readable]:
        return [frames.failure(code)]

    def begin_send(self, frame: memoryview, respond: Callable[[list[Readable]], None]) -> list[Readable] | None:
        size = len(frame)
        if not frames.HEADER_BYTES <= size <= self._single_bytes_max:
            return None
        length, code = frames.HEADER.unpack_from(frame)
        if code != frames.SEND_MESSAGES or length != size - frames.LENGTH_BYTES:
            return None
        payload = frame[frames.HEADER_BYTES :]
        try:
            stream, topic, to, count, position = destination.read(payload)
            message = sends.single(payload, position, self.dialect, random_uuid, self._limits) if count == 1 else None
            if message is None:
                return None
            sending = direct_sends.begin(self._gateway, self.session, stream, topic, to, message)
        except CommandError:
            return None
        except Exception:  # noqa: BLE001 -- an unexpected error is logged once, and closes no connection
            _log.exception("%s: a send failed with an unexpected error", self.session.address)
            return [frames.failure(Code.ERROR)]
        if sending is None:
            return None
        if sending.is_done:
            return SENT
        sending.on_done = partial(self._end_send, respond)
        return []

    def _end_send(self, respond: Callable[[list[Readable]], None], refused: CommandError | None) -> None:
        if refused is None:
            respond(SENT)
            return
        self.is_over = refused.code in CLOSING_CODES
        _log.debug("%s: command %d refused: %s", self.session.address, frames.SEND_MESSAGES, refused)
        respond([frames.failure(on_the_wire(refused.code))])

    async def respond(self, frame: memoryview, to: Responder) -> list[Readable]:
        code = frames.code_of(frame)
        try:
            payload = frame[frames.HEADER_BYTES :]
            if code == frames.SEND_MESSAGES and len(payload) > SMALL_BYTES:
                request: Request = await self._decode_send(payload)
            elif code == numbered_sends.CODE:
                request = await check_send(self._gateway, self.session, numbered_sends.decode(payload), self._limits)
            else:
                request = self._decode(code, payload)
            if type(request) is PollMessages:
                room, most = to.response_reservation(), self.poll_bytes_max
                request = reserve_poll(request, room, most) or await wait_for_poll(request, room)
            answer = await execute(self._gateway, self.session, request)
            if type(request) in TELLING:
                self.dialect.on_request(request, self._gateway.clock())
            if type(answer) is Polled and offload.is_large(sum(map(len, answer.batches)), answer.messages_count):
                return frames.success(await asyncio.to_thread(responses.encode, code, answer, self.dialect))
            return frames.success(responses.encode(code, answer, self.dialect))
        except CommandError as refused:
            if (code, refused.code) in ANSWERED_EMPTY:
                return frames.success(responses.encode(code, None, self.dialect))
            self.is_over = refused.code in CLOSING_CODES
            _log.debug("%s: command %d refused: %s", self.session.address, code, refused)
            return [frames.failure(on_the_wire(refused.code))]
        except Exception:  # noqa: BLE001 -- an unexpected error is logged once, here, and closes no connection
            _log.exception("%s: command %d failed with an unexpected error", self.session.address, code)
            return [frames.failure(Code.ERROR)]

    def _decode(self, code: int, payload: memoryview) -> Request:
        try:
            return requests.decode(code, payload, self.dialect, random_bytes, self._limits)
        except CommandError:
            if code == frames.SEND_MESSAGES:
                # Decoding a small send takes less time than this check, which the command repeats anyway. But a sender
                # without the right must not learn what is wrong with the messages.
                self._admit_send(payload)
            raise

    def _admit_send(self, payload: memoryview) -> int:
        """Refuses a sender who may not send there; returns how many messages the request announces."""
        stream, topic, _, count, _ = destination.read(payload)
        admit(self._gateway, self.session, SendMessages, Destination(stream, topic))
        return count

    async def _decode_send(self, payload: memoryview) -> Request:
        """Checks the sender and the destination before the messages, so that an unauthenticated client costs little."""
        count = self._admit_send(payload)
        decode = sends.decode
        return await offload.call(len(payload), count, decode, payload, self.dialect, random_bytes, self._limits)

    def half_close(self) -> None:
        """Requests in progress are answered as usual."""

    def close(self) -> None:
        self.dialect.close()
        groups.leave_all(self._gateway, self.session)
        self._gateway.sessions.remove(self.session)
