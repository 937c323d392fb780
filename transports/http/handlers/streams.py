"""Streams: creating, reading, changing, purging and deleting them."""

from __future__ import annotations

import msgspec

from whippet.app.commands import requests, responses
from whippet.app.errors import Code, CommandError
from whippet.transports.http.forms import field_types
from whippet.transports.http.forms.field_types import Name, NoOptions
from whippet.transports.http.forms.parameters import NAME_BYTES
from whippet.transports.http.handlers import options, topics
from whippet.transports.http.handlers.options import OptionValue
from whippet.transports.http.handlers.topics import Topic
from whippet.transports.http.operation import Call


class Stream(msgspec.Struct, frozen=True):
    id: int
    created_at: int
    name: str
    size: str
    messages_count: int
    topics_count: int
    options: dict[str, OptionValue]


class StreamDetails(Stream, frozen=True):
    topics: list[Topic]


class NewStream(msgspec.Struct, frozen=True):
    name: Name
    options: NoOptions | None = None


class ChangedStream(msgspec.Struct, frozen=True):
    name: Name
    options: NoOptions | None = None


async def get_streams(call: Call) -> list[Stream]:
    return [Stream(*_members(info)) for info in await call.execute(requests.GetStreams())]


async def get_stream(call: Call) -> StreamDetails | None:
    found = await call.execute(requests.GetStream(call.stream))
    return None if found is None else _details(found)


async def create_stream(call: Call) -> StreamDetails:
    body: NewStream = call.body
    _check_name(body.name)
    return _details(await call.execute(requests.CreateStream(body.name, options.of_texts(body.options))))


async def update_stream(call: Call) -> None:
    body: ChangedStream = call.body
    _check_name(body.name)
    await call.execute(requests.UpdateStream(call.stream, body.name, options.of_texts(body.options)))


async def delete_stream(call: Call) -> None:
    await call.execute(requests.DeleteStream(call.stream))


async def purge_stream(call: Call) -> None:
    await call.execute(requests.PurgeStream(call.stream))


def _details(found: responses.StreamDetails) -> StreamDetails:
    return StreamDetails(*_members(found.info), topics=topics.topics(found.topics))


def _members(info: responses.StreamInfo) -> tuple[int, int, str, str, int, int, dict[str, OptionValue]]:
    size = field_types.size_text(info.size_bytes)
    return info.id, info.created_at, info.name, size, info.messages_count, info.topics_count, {}


def _check_name(name: str) -> None:
    if len(name.encode()) not in NAME_BYTES:
        raise CommandError(Code.INVALID_STREAM_NAME)
