"""`whippet consumer-group` and `whippet consumer-offset`: groups, and how far consumers have read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from whippet.app.cli.remote import rows
from whippet.app.cli.remote.arguments import Group, Partition, Stream, Topic
from whippet.app.cli.remote.framework import Online, identifier, required
from whippet.app.cli.remote.output import Done

if TYPE_CHECKING:
    from whippet.app.commands import requests

Name = Annotated[str, typer.Argument(metavar="NAME", help="the name of the group")]
Consumer = Annotated[str, typer.Argument(metavar="CONSUMER", help="the name or id of the consumer or group")]
OffsetValue = Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="the last offset that counts as read")]
Kind = Annotated[
    Literal["consumer", "consumer-group"], typer.Option("--kind", "-k", help="what CONSUMER is the name or id of")
]


async def create(on: Online, stream: Stream, topic: Topic, name: Name) -> rows.GroupDetails:
    return rows.group_details(await on.client.create_consumer_group(identifier(stream), identifier(topic), name))


async def delete(on: Online, stream: Stream, topic: Topic, group: Group) -> Done:
    on.confirm(f"Delete the group {group} of the topic {stream}/{topic} with its stored offsets?")
    await on.client.delete_consumer_group(identifier(stream), identifier(topic), identifier(group))
    return Done(f"deleted group {group} of topic {stream}/{topic}")


async def get(on: Online, stream: Stream, topic: Topic, group: Group) -> rows.GroupDetails:
    found = await on.client.get_consumer_group(identifier(stream), identifier(topic), identifier(group))
    advice = f"`whippet consumer-group list {stream} {topic}` shows those that there are"
    return rows.group_details(required(found, f"the group {group} of {stream}/{topic}", advice))


async def list_all(on: Online, stream: Stream, topic: Topic) -> list[rows.Group]:
    found = await on.client.get_topic(identifier(stream), identifier(topic))
    required(found, f"the topic {stream}/{topic}", f"see `whippet topic list {stream}`")
    return [rows.group(each) for each in await on.client.get_consumer_groups(identifier(stream), identifier(topic))]


async def get_offset(
    on: Online, consumer: Consumer, stream: Stream, topic: Topic, partition: Partition, kind: Kind = "consumer"
) -> rows.Offset:
    found = await on.client.get_consumer_offset(
        identifier(stream), identifier(topic), consumer_of(kind, consumer), partition
    )
    missing = f"a stored offset of {consumer} in {stream}/{topic}, partition {partition}"
    found = required(found, missing, "`whippet consumer-offset set` stores one")
    return rows.Offset(found.partition_id, found.current_offset, found.stored_offset)


async def set_offset(
    on: Online,
    consumer: Consumer,
    stream: Stream,
    topic: Topic,
    partition: Partition,
    offset: OffsetValue,
    kind: Kind = "consumer",
) -> Done:
    """Only members may store an offset of a group: this command joins for a moment, and the partition must be free."""
    place = identifier(stream), identifier(topic)
    if kind == "consumer-group":
        await on.client.join_consumer_group(*place, identifier(consumer))
    await on.client.store_consumer_offset(*place, consumer_of(kind, consumer), offset, partition)
    return Done(f"stored offset {offset} of {consumer} in {stream}/{topic}, partition {partition}")


def consumer_of(kind: str, name: str) -> requests.Consumer:
    from whippet.app.commands import requests  # noqa: PLC0415 -- not for --help

    number = requests.ConsumerKind.CONSUMER if kind == "consumer" else requests.ConsumerKind.GROUP
    return requests.Consumer(number, identifier(name))
