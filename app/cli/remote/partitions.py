"""`whippet partition` and `whippet segment`: add and remove partitions, and delete the oldest segments of one."""

from __future__ import annotations

from typing import Annotated

import typer

from whippet.app.cli.remote.arguments import Partition, Stream, Topic
from whippet.app.cli.remote.framework import Online, identifier
from whippet.app.cli.remote.output import Done

Number = Annotated[int, typer.Argument(metavar="COUNT", min=1, max=100_000, help="how many")]


async def create(on: Online, stream: Stream, topic: Topic, count: Number) -> Done:
    await on.client.create_partitions(identifier(stream), identifier(topic), count)
    return Done(f"added {count} partition{plural(count)} to topic {stream}/{topic}")


async def delete(on: Online, stream: Stream, topic: Topic, count: Number) -> Done:
    """The partitions with the highest ids are deleted."""
    on.confirm(f"Delete the last {count} partitions of the topic {stream}/{topic} with their messages?")
    await on.client.delete_partitions(identifier(stream), identifier(topic), count)
    return Done(f"deleted {count} partition{plural(count)} of topic {stream}/{topic}")


async def delete_segments(on: Online, stream: Stream, topic: Topic, partition: Partition, count: Number) -> Done:
    """The active segment is never deleted."""
    on.confirm(f"Delete the oldest {count} segments of the topic {stream}/{topic}, partition {partition}?")
    await on.client.delete_segments(identifier(stream), identifier(topic), partition, count)
    return Done(f"deleted up to {count} segment{plural(count)} of topic {stream}/{topic}, partition {partition}")


def plural(count: int) -> str:
    return "" if count == 1 else "s"
