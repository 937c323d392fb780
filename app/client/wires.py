"""The client's side of both protocols: encodes requests as frames and decodes responses.

The codec is the server's own, `transports/wire`: pure functions over bytes. Except for the composition root, only this
module of `app` may import it, as import-linter checks.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import xxhash

from whippet.app.commands.requests import LoginUser, LoginWithPersonalAccessToken, Request, SendMessages
from whippet.app.commands.responses import LoggedIn
from whippet.app.errors import Code, CommandError
from whippet.app.version import version
from whippet.storage.batch import Readable
from whippet.transports.wire import numbered_sends
from whippet.transports.wire.classic import frames, requests, responses, sends
from whippet.transports.wire.classic.dialect import LONG, Dialect
from whippet.transports.wire.modern import frames as modern_frames
from whippet.transports.wire.modern import operations, registration
from whippet.transports.wire.modern import requests as modern_requests
from whippet.transports.wire.modern import responses as modern_responses
from whippet.transports.wire.modern.frames import Reason

Response = TypeVar("Response")
PROTOCOL = registration.packed(0, 11, 0)
"""The protocol version that the client requests."""
SDK = "whippet"
RESPONSE_BYTES_MAX = 2 << 30
"""No response is larger; a greater length is no response."""


class UnexpectedBytes(Exception):
    """The bytes are no response; what follows cannot be decoded."""


class Prepared(NamedTuple):
    """An encoded request, which can be sent more than once."""

    operation: int
    """0 where the protocol has only codes."""
    code: int
    body: list[Readable]


class Wire(Protocol):
    """The protocol on one connection. Requests are framed in the order in which they are sent, and `decode_response`
    gets the responses in the order in which they arrive."""

    head_bytes: int

    def prepare(self, request: Request) -> Prepared:
        """Encodes the parts that are the same each time the request is sent."""

    def frame(self, prepared: Prepared) -> list[Readable]:
        """The frame, in buffers."""

    def body_bytes(self, head: memoryview) -> int:
        """The number of bytes after the head of a response."""

    def is_success(self, head: memoryview) -> bool:
        """Returns False if the head shows a refusal."""

    def decode_response(self, prepared: Prepared, head: memoryview, body: memoryview) -> Any:
        """Decodes a response, as a copy; raises a refusal."""

    def unsolicited(self, head: memoryview) -> str:
        """Decodes what the server sends without a request."""


def refusal(status: int) -> CommandError:
    try:
        return CommandError(Code(status))
    except ValueError:
        return CommandError(Code.ERROR, f"the server refused the request with the unknown error {status}")


def _decode(prepared: Prepared, decode: Callable[[], Response]) -> Response:
    try:
        return decode()
    except (CommandError, ValueError, IndexError, struct.error) as error:
        # numpy, enumerations and struct raise the last three for invalid bytes.
        sentence = f"the response to command {prepared.code} cannot be decoded: {error}"
        raise CommandError(Code.INVALID_FORMAT, sentence) from error


class ClassicWire:
    head_bytes = frames.HEADER_BYTES

    def __init__(self) -> None:
        self._dialect = Dialect()

    def prepare(self, request: Request) -> Prepared:
        if isinstance(request, SendMessages):
            if request.producer is not None:
                return Prepared(0, numbered_sends.CODE, numbered_sends.encode(request))
            return Prepared(0, frames.SEND_MESSAGES, sends.encode_parts(request, LONG))
        try:
            return Prepared(0, requests.code_of(request), [requests.encode_request(request)])
        except KeyError:
            sentence = f"{type(request).__name__} is not in the classic protocol: connect with wire=modern"
            raise CommandError(Code.FEATURE_UNAVAILABLE, sentence) from None

    def frame(self, prepared: Prepared) -> list[Readable]:
        size = sum(map(len, prepared.body))
        return [frames.HEADER.pack(frames.CODE_BYTES + size, prepared.code), *prepared.body]

    def body_bytes(self, head: memoryview) -> int:
        status, length = frames.response_header(head)
        if status != frames.OK:
            return 0
        if length > RESPONSE_BYTES_MAX:
            raise UnexpectedBytes
        return length

    def is_success(self, head: memoryview) -> bool:
        return frames.response_header(head).status == frames.OK

    def decode_response(self, prepared: Prepared, head: memoryview, body: memoryview) -> Any:
        status, _ = frames.response_header(head)
        if status != frames.OK:
            raise refusal(status)
        return _decode(prepared, lambda: responses.decode_response(prepared.code, body, self._dialect))

    def unsolicited(self, head: memoryview) -> str:
        return f"the server refused the connection: error {frames.response_header(head).status}"


EVICTED = {
    Reason.INVALID_CREDENTIALS: Code.INVALID_CREDENTIALS,
    Reason.INVALID_TOKEN: Code.INVALID_PERSONAL_ACCESS_TOKEN,
    Reason.STALE_CLIENT: Code.STALE_CLIENT,
    Reason.MALFORMED_LOGIN: Code.INVALID_FORMAT,
}


class ModernWire:
    head_bytes = modern_frames.HEADER_BYTES

    def __init__(self) -> None:
        self._client = uuid.uuid4().bytes
        self._session = 0
        self._next_number = 1

    def prepare(self, request: Request) -> Prepared:
        if isinstance(request, LoginUser | LoginWithPersonalAccessToken):
            return Prepared(operations.REGISTER, 0, [registration.encode(PROTOCOL, request, SDK, version())])
        code = modern_requests.code_of(request)
        return Prepared(operations.OF_CODE.get(code, operations.READ), code, modern_requests.encode(request))

    def frame(self, prepared: Prepared) -> list[Readable]:
        operation, code, body = prepared
        if operation == operations.REGISTER:
            # Under a new name: the numbers begin again.
            self._client, self._session, self._next_number = uuid.uuid4().bytes, 0, 0
        number, checksum = self._next_number, 0
        if operation != operations.READ:
            code = 0
            self._next_number += 1
            if operation < operations.SEND_MESSAGES:
                checksum = xxhash.xxh3_64_intdigest(b"".join(body))
        size = sum(map(len, body))
        head = modern_frames.request_head(self._client, number, operation, self._session, code, size, checksum)
        return [head, *body]

    def body_bytes(self, head: memoryview) -> int:
        size = modern_frames.reply_of(head).size
        if not self.head_bytes <= size <= RESPONSE_BYTES_MAX:
            raise UnexpectedBytes
        return size - self.head_bytes

    def is_success(self, head: memoryview) -> bool:
        reply = modern_frames.reply_of(head)
        return reply.kind == modern_frames.REPLY and not reply.status

    def decode_response(self, prepared: Prepared, head: memoryview, body: memoryview) -> Any:
        reply = modern_frames.reply_of(head)
        if reply.kind == modern_frames.EVICTION:
            raise CommandError(_code_of(reply.reason))
        if reply.kind != modern_frames.REPLY or reply.operation != prepared.operation:
            raise CommandError(Code.INVALID_FORMAT, f"a frame of kind {reply.kind} is no reply to {prepared.operation}")
        if reply.status:
            raise refusal(reply.status)
        if prepared.operation not in operations.PLAIN:
            refused, body = _decode(prepared, partial(modern_frames.refused, body))
            if refused is not None:
                raise refusal(refused)
        if prepared.operation == operations.REGISTER:
            registered = _decode(prepared, lambda: registration.decode_response(body))
            self._session = registered.session
            return LoggedIn(registered.user_id)
        return _decode(prepared, lambda: modern_responses.decode(prepared.code, body))

    def unsolicited(self, head: memoryview) -> str:
        reply = modern_frames.reply_of(head)
        return f"the server ended the connection: {_code_of(reply.reason).name.lower()}"


def _code_of(reason: int) -> Code:
    try:
        return EVICTED.get(Reason(reason), Code.UNAUTHENTICATED)
    except ValueError:
        return Code.UNAUTHENTICATED


WIRES: dict[str, type[ClassicWire] | type[ModernWire]] = {"classic": ClassicWire, "modern": ModernWire}
"""The protocols by their names in connection strings: that of clients 0.6 to 0.8, and that since 0.9."""
