"""`whippet stream`: creates, shows, renames, empties and deletes streams."""

from __future__ import annotations

from typing import Annotated

import typer

from whippet.app.cli.remote import rows
from whippet.app.cli.remote.arguments import Stream
from whippet.app.cli.remote.framework import Online, identifier, required
from whippet.app.cli.remote.output import Done

Name = Annotated[str, typer.Argument(metavar="NAME", help="the new name")]


async def create(on: Online, name: Name) -> rows.StreamDetails:
    return rows.stream_details(await on.client.create_stream(name))


async def delete(on: Online, stream: Stream) -> Done:
    on.confirm(f"Delete the stream {stream} with all its topics and messages?")
    await on.client.delete_stream(identifier(stream))
    return Done(f"deleted stream {stream}")


async def update(on: Online, stream: Stream, name: Name) -> Done:
    await on.client.update_stream(identifier(stream), name)
    return Done(f"renamed stream {stream} to {name}")


async def get(on: Online, stream: Stream) -> rows.StreamDetails:
    found = await on.client.get_stream(identifier(stream))
    return rows.stream_details(
        required(found, f"the stream {stream}", "`whippet stream list` shows those that there are")
    )


async def list_all(on: Online) -> list[rows.Stream]:
    return [rows.stream(each) for each in await on.client.get_streams()]


async def purge(on: Online, stream: Stream) -> Done:
    """The stream and its topics stay; stored offsets are removed with the messages."""
    on.confirm(f"Delete all messages of the stream {stream}?")
    await on.client.purge_stream(identifier(stream))
    return Done(f"purged stream {stream}")
