"""Requests of 0.12 clients as bytes, where they differ from those of 0.9 clients."""

from __future__ import annotations

from functools import partial
from typing import Any

from whippet.app.commands import requests
from whippet.app.errors import Code, CommandError
from whippet.app.model.options import OptionScope
from whippet.storage.batch import Readable
from whippet.transports.wire import poll_request
from whippet.transports.wire.classic.frames import SEND_MESSAGES
from whippet.transports.wire.modern import requests as modern
from whippet.transports.wire.modern import sends, tlv
from whippet.transports.wire.next import sends as numbered
from whippet.transports.wire.next.operations import GET_METADATA_CHANGES, RETIRED, UPDATE_RESOURCE
from whippet.transports.wire.primitives import (
    CONSUMER,
    FLAG,
    IDENTIFIER,
    NAME,
    OFFSET_OWNER,
    STRATEGY,
    U8,
    U32,
    U64,
    Part,
    Reader,
    counted,
    structure,
)

S, T = {"stream": IDENTIFIER}, {"topic": IDENTIFIER}
TARGET = structure(
    requests.FetchTarget,
    partition_id=U32,
    strategy=STRATEGY,
    max_bytes=U32,
    incarnation=U64,
    owner_generation=U64,
)
TARGETS_MAX = 1000


def _some(part: Part) -> Part:
    """At least one, and no more than a request may have."""

    def read(reader: Reader) -> tuple[Any, ...]:
        count = reader.u32()
        if not 1 <= count <= TARGETS_MAX:
            raise CommandError(Code.INVALID_COMMAND, f"a request is for 1 to {TARGETS_MAX} partitions, not {count}")
        return tuple(part.read(reader) for _ in range(count))

    return Part(read, counted(U32, part).write)


TARGETS = _some(TARGET)
STARTS = _some(
    Part(
        lambda reader: (reader.u32(), STRATEGY.read(reader)),
        lambda start: b"".join((U32.write(start[0]), STRATEGY.write(start[1]))),
    )
)

LAYOUTS: dict[int, tuple[type[requests.Request], Part]] = {
    code: layout for code, layout in modern.LAYOUTS.items() if code not in RETIRED
} | {
    code: (request, structure(request, **parts))
    for code, request, parts in (
        (100, requests.PollMessagesDeferred, poll_request.LAYOUT),
        (105, requests.GetPartitionRoute, S | T | {"partition_id": U32}),
        (
            106,
            requests.PollMessagesDeferred,
            poll_request.LAYOUT | {"wait_us": U64, "min_count": U32, "max_bytes": U32, "request_timeout_us": U64},
        ),
        (
            107,
            requests.AwaitMessages,
            {"consumer": CONSUMER} | S | T | {"wait_us": U64, "request_timeout_us": U64, "starts": STARTS},
        ),
        (
            109,
            requests.FetchMessages,
            {"consumer": CONSUMER}
            | S
            | T
            | {
                "wait_us": U64,
                "request_timeout_us": U64,
                "min_count": U32,
                "count": U32,
                "max_bytes": U32,
                "auto_commit": FLAG,
                "targets": TARGETS,
            },
        ),
    )
}

_OFFSET_OF = modern.OFFSET_OF | {"consumer": OFFSET_OWNER}
LAYOUTS[120] = requests.GetConsumerOffset, structure(requests.GetConsumerOffset, **_OFFSET_OF)
LAYOUTS[121] = (
    requests.StoreConsumerOffset,
    modern.ACKNOWLEDGED(structure(requests.StoreConsumerOffset, **_OFFSET_OF, offset=U64)),
)
LAYOUTS[122] = (
    requests.DeleteConsumerOffset,
    modern.ACKNOWLEDGED(structure(requests.DeleteConsumerOffset, **_OFFSET_OF)),
)
LAYOUTS[13] = (
    requests.DescribeOptions,
    structure(partial(requests.DescribeOptions, with_columns=True), scope=modern.SCOPE),
)

_READS = {code: part.read for code, (_, part) in LAYOUTS.items()}
_WRITES = {request: (code, part.write) for code, (request, part) in LAYOUTS.items()}


PATCHES: dict[OptionScope, tuple[type[requests.Request], Part]] = {
    scope: (request, structure(request, **parts, reset=counted(U8, NAME), options=tlv.REST))
    for scope, request, parts in (
        (OptionScope.TOPIC, requests.PatchTopic, S | T),
        (OptionScope.STREAM, requests.PatchStream, S),
        (OptionScope.USER, requests.PatchUser, {"user": IDENTIFIER}),
    )
}
"""Updates have the scope first."""
_SCOPES = {request: (scope, part) for scope, (request, part) in PATCHES.items()}


def _read_patch(body: memoryview) -> requests.Request:
    reader = Reader(body)
    _, part = PATCHES[modern.SCOPE.read(reader)]
    return part.read(reader)  # type: ignore[no-any-return]


def decode(code: int, body: memoryview) -> requests.Request:
    """Returns the command in a body, or raises a CommandError that tells what is wrong with it."""
    if code == SEND_MESSAGES:
        return numbered.decode(body)
    if code == UPDATE_RESOURCE:
        return _read_patch(body)
    if code == GET_METADATA_CHANGES:
        raise CommandError(Code.FEATURE_UNAVAILABLE, "GetMetadataChanges (17): no log of metadata changes is kept")
    read = _READS.get(code)
    if read is None:
        raise CommandError(Code.INVALID_COMMAND, f"command {code} does not exist")
    return read(Reader(body))  # type: ignore[no-any-return]


def code_of(request: requests.Request) -> int:
    if type(request) in _SCOPES:
        return UPDATE_RESOURCE
    return SEND_MESSAGES if isinstance(request, requests.SendMessages) else _WRITES[type(request)][0]


def encode(request: requests.Request) -> list[Readable]:
    """Returns the body of a request as buffers; polls are deferred ones."""
    if isinstance(request, requests.SendMessages):
        return sends.encode(request)
    if type(request) in _SCOPES:
        scope, part = _SCOPES[type(request)]
        return [U8.write(scope), part.write(request)]
    return [_WRITES[type(request)][1](request)]
