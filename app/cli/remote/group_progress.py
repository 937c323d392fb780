"""`whippet groups`: how far a consumer group is behind, and setting it back or forth."""

from __future__ import annotations

from typing import Annotated

import typer

from whippet.app.cli.remote import rows, starts
from whippet.app.cli.remote.activity import end_of
from whippet.app.cli.remote.arguments import Group
from whippet.app.cli.remote.failures import Failure
from whippet.app.cli.remote.framework import Online, identifier, required
from whippet.app.cli.remote.groups import consumer_of
from whippet.app.cli.remote.output import Done
from whippet.app.cli.remote.reading import Place, split

To = Annotated[
    str, typer.Option("--to", metavar="WHERE", help="first, end, -10, an offset, 2h-ago, or 2026-07-31T12:00:00Z")
]


async def lag(on: Online, topic: Place, group: Group) -> list[rows.Lag]:
    """A partition without a stored offset is read from its beginning."""
    place = split(topic)
    found = required(await on.client.get_topic(*place), f"the topic {topic}", "see `whippet topic list`")
    await _existing(on, topic, group)
    consumer, table = consumer_of("consumer-group", group), []
    for partition in found.partitions:
        stored = await on.client.get_consumer_offset(*place, consumer, partition.id)
        end = end_of(partition)
        offset = None if stored is None else stored.stored_offset
        behind = partition.messages_count if offset is None else end - offset - 1
        table.append(rows.Lag(partition.id, end, offset, max(0, behind)))
    return table


async def reset(on: Online, topic: Place, group: Group, to: To) -> Done:
    """The group must have no members: they would go on from where they are, and store that."""
    start = starts.parse(to)
    place = split(topic)
    if (await _existing(on, topic, group)).members:
        raise Failure(f"the group {group} has members; stop them first, then repeat the command")
    found = required(await on.client.get_topic(*place), f"the topic {topic}", "see `whippet topic list`")
    on.confirm(f"Set the group {group} of {topic} to {to}, in {len(found.partitions)} partitions?")
    consumer, name = consumer_of("consumer-group", group), identifier(group)
    await on.client.join_consumer_group(*place, name)
    for partition in found.partitions:
        last = await _last_read(on, place, partition.id, start)
        if last is not None:
            await on.client.store_consumer_offset(*place, consumer, last, partition.id)
        elif await on.client.get_consumer_offset(*place, consumer, partition.id) is not None:
            await on.client.delete_consumer_offset(*place, consumer, partition.id)
    await on.client.leave_consumer_group(*place, name)
    return Done(f"set the group {group} of {topic} to {to}")


async def _existing(on: Online, topic: str, group: str) -> rows.GroupDetails:
    found = await on.client.get_consumer_group(*split(topic), identifier(group))
    advice = "`whippet consumer-group list` shows those that there are"
    return rows.group_details(required(found, f"the group {group} of {topic}", advice))


async def _last_read(on: Online, place: tuple[int | str, int | str], partition: int, start: object) -> int | None:
    """Returns the offset to store so that reading continues at the start; None: at the first message."""
    from whippet.app.client.commands import LAST  # noqa: PLC0415 -- not for --help
    from whippet.storage.batch import first_offset  # noqa: PLC0415

    strategy, count = start if isinstance(start, tuple) else (LAST, 1)
    polled = await on.client.poll_messages(
        *place, consumer_of("consumer", "whippet"), partition_id=partition, strategy=strategy, count=count
    )
    if not polled.messages_count or start is None:
        # There is nothing at or after the start: everything counts as read.
        return polled.current_offset if polled.messages_count or polled.current_offset else None
    return first_offset(polled.batches[0]) - 1 if first_offset(polled.batches[0]) else None
