"""Streams and topics as resources:

whippet://streams                              all streams
whippet://streams/{stream}                     a stream and its topics
whippet://streams/{stream}/topics/{topic}      a topic and its partitions

Names are percent-encoded; a number is an id.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from whippet.app.commands import requests
from whippet.app.mcp import bounds, catalogue_tools
from whippet.app.mcp.parameters import INVALID, Listed, ListedOfStream, ListedOfTopic
from whippet.app.mcp.work import Refused, Work

ROOT = "whippet://streams"
TEMPLATES = (
    (f"{ROOT}/{{stream}}", "stream", "A stream and its topics"),
    (f"{ROOT}/{{stream}}/topics/{{topic}}", "topic", "A topic and its partitions, with their offsets and sizes"),
)


class Found(NamedTuple):
    uri: str
    name: str
    description: str


async def page(work: Work, cursor: str | None) -> tuple[list[Found], str | None]:
    """Returns resources, and the cursor of the next page."""
    after, skip = _position(cursor)
    found: list[Found] = [] if cursor else [Found(ROOT, "streams", "All streams")]
    end = len(found) + work.limits.items
    streams = sorted(await work.execute(requests.GetStreams()), key=lambda each: each.id)
    for stream in streams:
        if stream.id < after:
            continue
        if len(found) == end:
            return found, f"{stream.id}.0"
        entries = await _of_stream(work, stream)
        begin = skip if stream.id == after else 0
        room = end - len(found)
        found += entries[begin : begin + room]
        if begin + room < len(entries):
            return found, f"{stream.id}.{begin + room}"
    return found, None


async def _of_stream(work: Work, stream: Any) -> list[Found]:
    uri = f"{ROOT}/{_part(stream)}"
    topics = await work.execute(requests.GetTopics(stream.id)) if stream.topics_count else ()
    return [
        Found(uri, stream.name, f"stream {stream.name} and its topics"),
        *(Found(f"{uri}/topics/{_part(each)}", f"{stream.name}/{each.name}", f"topic {each.name}") for each in topics),
    ]


def _position(cursor: str | None) -> tuple[int, int]:
    if cursor is None:
        return 0, 0
    stream, _, skip = cursor.partition(".")
    if not (len(cursor) < 30 and all(part.isascii() and part.isdecimal() for part in (stream, skip))):
        raise Refused(INVALID, "the cursor is not one of this server")
    return int(stream), int(skip)


def _part(thing: Any) -> str:
    """Returns a name, or the id where the name would be read as one."""
    return str(thing.id) if thing.name.isdecimal() else quote(thing.name, safe="")


async def read(work: Work, uri: str) -> str:
    """Returns the JSON of a resource, bounded like that of a tool."""
    result: bounds.Listing
    match [unquote(part) for part in _path(uri)]:
        case []:
            result = await catalogue_tools.get_streams(work, Listed())
        case [stream] if stream:
            result = await catalogue_tools.get_stream(work, ListedOfStream(stream_id=stream))
        case [stream, "topics", topic] if stream and topic:
            result = await catalogue_tools.get_topic(work, ListedOfTopic(stream_id=stream, topic_id=topic))
        case _:
            raise _unknown(uri)
    return bounds.render(result, work.limits).decode()


def _path(uri: str) -> list[str]:
    """Returns the parts of a URI after its root. They are split before they are decoded."""
    if uri == ROOT:
        return []
    if not uri.startswith(f"{ROOT}/"):
        raise _unknown(uri)
    return uri.removeprefix(f"{ROOT}/").split("/")


def _unknown(uri: str) -> Refused:
    return Refused("resource_not_found", f"there is no resource {uri[:255]!r}: they begin with {ROOT}")
