"""The conditions of a search: what a message must have. All that are given must hold.

They are checked message by message, on another thread than the event loop's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import NamedTuple

from whippet.app import json_paths
from whippet.app.model.options import Option, ValueKind, decode
from whippet.storage.batch import Readable
from whippet.transports.http.errors import Refused
from whippet.transports.http.forms.batch_decoder import MessageHeader, PolledMessage, iterate_messages
from whippet.transports.http.forms.batch_encoder import parse_id
from whippet.transports.http.forms.events import TailedMessage
from whippet.transports.http.forms.user_headers import NUMBERS, HeaderPart

Condition = Callable[[PolledMessage], bool]


def conditions(
    identity: str | None, header: str | None, value: str | None, text: str | None, where: str | None
) -> list[Condition]:
    """Those that are cheap come first."""
    found: list[Condition] = []
    if identity is not None:
        found.append(_has_id(identity))
    if header is not None:
        found.append(_has_header(header, value))
    elif value is not None:
        raise Refused(HTTPStatus.BAD_REQUEST, "`value` needs `header`", "value")
    if text is not None:
        found.append(_contains(text.encode()))
    if where is not None:
        found.append(_holds(where))
    return found


def _has_id(text: str) -> Condition:
    wanted = parse_id(text)
    if wanted is None:
        raise Refused(HTTPStatus.BAD_REQUEST, f"{text!r} is no message id: it is a number or a UUID", "message_id")
    return lambda message: message.header.id == wanted


def _has_header(key: str, value: str | None) -> Condition:
    def holds(message: PolledMessage) -> bool:
        entries = message.user_headers
        if isinstance(entries, str):
            # The client has encrypted them.
            return False
        return any(text_of(entry.key) == key and value in (None, text_of(entry.value)) for entry in entries)

    return holds


def _contains(wanted: bytes) -> Condition:
    return lambda message: wanted in bytes(message.payload)


def _holds(text: str) -> Condition:
    try:
        condition = json_paths.parse(text)
    except ValueError as error:
        raise Refused(HTTPStatus.BAD_REQUEST, str(error), "where") from None
    return lambda message: condition(bytes(message.payload))


def text_of(part: HeaderPart) -> str | None:
    """Returns a key or a value as people write it; None for one that is no value of its kind."""
    try:
        found = decode(Option("", ValueKind(NUMBERS[part.kind]), part.value))
        if isinstance(found, bytes):
            return found.decode()
    except ValueError:
        return None
    return str(found).lower() if isinstance(found, bool) else str(found)


class Chunk(NamedTuple):
    """What was read at once, after it was examined."""

    matches: list[TailedMessage]
    """In the order of their offsets."""
    last: MessageHeader | None
    """Of the last message that was examined."""
    first: MessageHeader | None
    size: int


def examine(
    buffers: Iterable[Readable], partition_id: int, bounds: range, times: range, wanted: list[Condition]
) -> Chunk:
    """Looks at the messages with offsets within the bounds, for those of the times that fulfil all conditions."""
    matches: list[TailedMessage] = []
    first = last = None
    size = 0
    for message in iterate_messages(buffers):
        header = message.header
        if header.offset not in bounds:
            continue
        first, last = first or header, header
        size += header.payload_length + header.user_headers_length
        if header.timestamp in times and all(condition(message) for condition in wanted):
            # A copy: the rest of the batch is not needed any more.
            payload = bytes(message.payload)
            matches.append(TailedMessage(partition_id, header, payload, message.user_headers))
    return Chunk(matches, last, first, size)
