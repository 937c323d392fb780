"""`whippet topic`: creates, shows, changes, empties and deletes topics."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from whippet.app.cli.remote import rows
from whippet.app.cli.remote.arguments import Expiry, MaxSize, Stream, Topic, expiry, topic_size
from whippet.app.cli.remote.failures import UsageFailure
from whippet.app.cli.remote.framework import Online, identifier, required
from whippet.app.cli.remote.output import Done

Name = Annotated[str, typer.Argument(metavar="NAME", help="the name of the topic")]
Partitions = Annotated[int, typer.Argument(metavar="PARTITIONS", min=0, help="how many partitions it gets")]
Compression = Annotated[
    Literal["none", "gzip"], typer.Argument(metavar="COMPRESSION", help="how it is kept on the disk: none or gzip")
]
NewCompression = Annotated[
    Literal["none", "gzip"] | None,
    typer.Argument(metavar="COMPRESSION", help="how new messages are kept on the disk: none or gzip"),
]
Replication = Annotated[
    int, typer.Option("--replication-factor", "-r", min=0, max=255, help="kept for Iggy; there is one node")
]
NUMBERS = {"none": 1, "gzip": 2}


async def create(
    on: Online,
    stream: Stream,
    name: Name,
    partitions: Partitions = 1,
    compression: Compression = "none",
    expires: Expiry = None,
    max_topic_size: MaxSize = "server_default",
    replication_factor: Replication = 1,
) -> rows.TopicDetails:
    created = await on.client.create_topic(
        identifier(stream),
        name,
        partitions,
        compression_algorithm=NUMBERS[compression],
        message_expiry=expiry(expires),
        max_topic_size=topic_size(max_topic_size),
        replication_factor=replication_factor,
    )
    return rows.topic_details(created)


async def update(
    on: Online,
    stream: Stream,
    topic: Topic,
    name: Name,
    compression: NewCompression = None,
    expires: Expiry = None,
    max_topic_size: MaxSize = "server_default",
    replication_factor: Replication = 1,
) -> Done:
    """Keeps the present value of what is not given, or is `server_default`. A topic that is shown as gzip needs its
    COMPRESSION: the protocol of this command knows no zstd, and shows it as gzip."""
    from whippet.app.cli.remote import topic_updates  # noqa: PLC0415 -- not for --help
    from whippet.app.commands.requests import UpdateTopic  # noqa: PLC0415

    present = await get(on, stream, topic)
    if compression is None and present.compression_algorithm == "gzip":
        raise UsageFailure(
            "the topic may be compressed with zstd, which this command would change: say gzip or none as COMPRESSION, "
            "or use PUT /streams/{stream}/topics/{topic} over HTTP"
        )
    request = UpdateTopic(
        identifier(stream),
        identifier(topic),
        name,
        NUMBERS[compression or present.compression_algorithm],
        expiry(expires),
        topic_size(max_topic_size),
        replication_factor,
    )
    await topic_updates.update(on.client.call, request, present)
    return Done(f"updated topic {stream}/{name}")


async def delete(on: Online, stream: Stream, topic: Topic) -> Done:
    on.confirm(f"Delete the topic {stream}/{topic} with all its messages?")
    await on.client.delete_topic(identifier(stream), identifier(topic))
    return Done(f"deleted topic {stream}/{topic}")


async def get(on: Online, stream: Stream, topic: Topic) -> rows.TopicDetails:
    found = await on.client.get_topic(identifier(stream), identifier(topic))
    advice = f"`whippet topic list {stream}` shows those that there are"
    return rows.topic_details(required(found, f"the topic {stream}/{topic}", advice))


async def list_all(on: Online, stream: Stream) -> list[rows.Topic]:
    # Some servers return no topics for a stream that does not exist.
    required(await on.client.get_stream(identifier(stream)), f"the stream {stream}", "see `whippet stream list`")
    return [rows.topic(each) for each in await on.client.get_topics(identifier(stream))]


async def purge(on: Online, stream: Stream, topic: Topic) -> Done:
    """The topic stays; stored offsets are removed with the messages."""
    on.confirm(f"Delete all messages of the topic {stream}/{topic}?")
    await on.client.purge_topic(identifier(stream), identifier(topic))
    return Done(f"purged topic {stream}/{topic}")
