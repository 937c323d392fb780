"""Sends of a single message in JSON by clients that repeat themselves: the effect of the operation, in fewer steps.

Most programs send with the same head again and again. What follows from the head alone is found out once, and no
coroutine runs for what is stored at once. Nothing is refused here before the message is appended: a request that is
unusual or wrong in any way is left to the operation.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from whippet.app.commands import direct_sends
from whippet.app.commands.direct_sends import Sending
from whippet.app.errors import Code, CommandError
from whippet.app.model.sessions import Session, Transport
from whippet.transports.http.errors import Refused, command_error_response
from whippet.transports.http.forms import batch_encoder, send_formats
from whippet.transports.http.handlers import messages
from whippet.transports.http.operation import AtOnce
from whippet.transports.http.serving import authentication

if TYPE_CHECKING:
    from whippet.app.model.route import Route
    from whippet.app.telemetry.measurements import Measurements
    from whippet.transports.http.api import Api
    from whippet.transports.http.serving.exchange import Exchange

_log = logging.getLogger(__name__)
_decoder = msgspec.json.Decoder(batch_encoder.NewMessages)


def create(api: Api, parameters: Mapping[str, Any], headers: Mapping[bytes, bytes], query: bytes) -> AtOnce | None:
    if query or not headers.keys().isdisjoint(messages.PRODUCER_KEYS):
        return None
    if any(name.startswith(send_formats.HEADER_PREFIX) for name in headers):
        return None
    return SingleSends(api, parameters["stream"], parameters["topic"], headers.get(b"authorization")).begin


class SingleSends:
    """The sends of a client with one token to one topic."""

    def __init__(self, api: Api, stream: int | str, topic: int | str, authorization: bytes | None) -> None:
        self._api = api
        self._stream = stream
        self._topic = topic
        self._authorization = authorization
        self._route: Route | None = None

    def begin(self, exchange: Exchange, body: bytes) -> bool:
        try:
            sending = self._begin(exchange, body)
        except (CommandError, Refused):
            return False
        except Exception:  # noqa: BLE001 -- an unexpected error is logged once, and closes no connection
            _fail(exchange)
            return True
        if sending is None:
            return False
        measurements = self._api.gateway.measurements
        measurements.http_sends_at_once += 1
        if sending.is_done:
            _end(exchange, sending, measurements, sending.refused)
        else:
            sending.on_done = partial(_end, exchange, sending, measurements)
        return True

    def _begin(self, exchange: Exchange, body: bytes) -> Sending | None:
        api = self._api
        caller = authentication.recognize(api, self._authorization)
        if caller is None:
            return None
        wanted = batch_encoder.decode(_decoder, body)
        if len(wanted.messages) != 1 or wanted.context is not None:
            return None
        to = messages.partitioning_of(wanted.partitioning)
        gateway = api.gateway
        now = gateway.clock()
        message = batch_encoder.single(wanted.messages[0], now, api.batch_limits)
        if message is None:
            return None
        session = Session(Transport.HTTP, exchange.peer, now, _keep_connection)
        session.login = caller.user.login
        session.route = self._route
        sending = direct_sends.begin(gateway, session, self._stream, self._topic, to, message)
        self._route = session.route
        return sending


def _end(exchange: Exchange, sending: Sending, measurements: Measurements, refused: CommandError | None) -> None:
    """Called in the middle of the work of a partition, so nothing may be raised."""
    try:
        if refused is None:
            response = messages.confirmation(sending.sent)
        else:
            response = command_error_response(refused)
            measurements.http_responses[response.status // 100] += 1
            measurements.http_sends_refused += 1
        exchange.answer(response.status, response.headers, response.body)
    except Exception:  # noqa: BLE001 -- it must not reach those that wait for the same partition
        _log.exception("%s: closed, because a response could not be sent", exchange.peer)
        exchange.abort()


def _fail(exchange: Exchange) -> None:
    """Not a 500, which makes clients send again: the message may be stored."""
    _log.exception("%s: a send failed because of a defect", exchange.peer)
    response = command_error_response(CommandError(Code.ERROR))
    exchange.answer(response.status, response.headers, response.body)


def _keep_connection() -> None:
    """Ends nothing: a connection over HTTP carries many sessions."""
