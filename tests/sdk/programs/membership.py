"""Groups by hand: created, joined, polled, left and deleted; and consumers with their own names."""

from typing import Any

from apache_iggy import Consumer, IggyClient, PollingStrategy, SendMessage
from scenario import Task, connected, execute, refusal, say

PARTITIONS = 4
EACH = 5


def group_seen(group: Any) -> list[Any] | None:
    return group and [group.id, group.name, group.partitions_count, group.members_count]


def members_seen(group: Any) -> list[list[int]]:
    assert [member.partitions_count for member in group.members] == [len(member.partitions) for member in group.members]
    return sorted(member.partitions for member in group.members)


async def poll(
    client: IggyClient,
    task: Task,
    consumer: Any,
    count: int = 10,
    auto_commit: bool = True,
    strategy: PollingStrategy | None = None,
    partition: int | None = None,
) -> list[str]:
    messages = await client.poll_messages(
        task["name"],
        "t",
        consumer=consumer,
        polling_strategy=strategy or PollingStrategy.Next(),
        count=count,
        auto_commit=auto_commit,
        **({} if partition is None else {"partition_id": partition}),
    )
    return [message.payload().decode() for message in messages]


async def all_of(client: IggyClient, task: Task, consumer: Any, count: int = 10) -> list[str]:
    """Polls until a whole round of the partitions returns nothing."""
    found: list[str] = []
    empty = 0
    while empty < PARTITIONS:
        messages = await poll(client, task, consumer, count)
        empty = 0 if messages else empty + 1
        found += messages
    return found


async def kept(client: IggyClient, stream: str) -> None:
    await client.create_topic(stream, "t", PARTITIONS)
    for group in ("g", "h"):
        await client.create_consumer_group(stream, "t", group)
    number = (await client.get_consumer_group(stream, "t", "h")).id
    say(
        groups=[group_seen(group) for group in await client.get_consumer_groups(stream, "t")],
        by_number=group_seen(await client.get_consumer_group(stream, "t", number)),
        absent=group_seen(await client.get_consumer_group(stream, "t", "nobody made this")),
        refused_groups=[
            await refusal(client.create_consumer_group, stream, "t", "g"),
            await refusal(client.create_consumer_group, stream, "nobody made this", "g"),
            await refusal(client.create_consumer_group, stream, "t", "x" * 256),
            await refusal(client.join_consumer_group, stream, "t", "nobody made this"),
            await refusal(client.leave_consumer_group, stream, "t", "g"),
            await refusal(client.delete_consumer_group, stream, "t", "nobody made this"),
            await refusal(client.get_consumer_groups, stream, "nobody made this"),
        ],
    )
    await client.delete_consumer_group(stream, "t", number)
    say(groups_left=[group.name for group in await client.get_consumer_groups(stream, "t")])


async def shared(task: Task, stream: str) -> None:
    # Members ask at every heartbeat which partitions are theirs.
    first, second = await connected(task, "?heartbeat_interval=20ms"), await connected(task)
    group = Consumer.Group("g")
    say(stranger=await refusal(poll, first, task, group))
    await first.join_consumer_group(stream, "t", "g")
    await first.join_consumer_group(stream, "t", "g")
    for partition in range(PARTITIONS):
        messages = [SendMessage(f"{partition}:{number}") for number in range(EACH)]
        await first.send_messages(stream, "t", partition, messages)
    details = await first.get_consumer_group(stream, "t", "g")
    say(alone=[group_seen(details), members_seen(details)], rounds=[await poll(first, task, group) for _ in range(5)])

    await second.join_consumer_group(stream, "t", "g")
    details = await first.get_consumer_group(stream, "t", "g")
    say(together=[group_seen(details), members_seen(details)])
    for partition in range(PARTITIONS):
        messages = [SendMessage(f"{partition}:{number}") for number in range(EACH, 2 * EACH)]
        await first.send_messages(stream, "t", partition, messages)
    say(shares=[await all_of(first, task, group, 2), await all_of(second, task, Consumer.Group(details.id), 3)])

    of_all = [member.partitions[0] for member in details.members]
    again = {"auto_commit": False, "strategy": PollingStrategy.First(), "count": 3}
    say(
        explicit={
            partition: [await poll(client, task, group, partition=partition, **again) for client in (first, second)]
            for partition in of_all
        }
    )

    await second.leave_consumer_group(stream, "t", "g")
    details = await first.get_consumer_group(stream, "t", "g")
    say(after_leaving=[group_seen(details), members_seen(details)], left=await refusal(poll, second, task, group))
    for partition in range(PARTITIONS):
        await first.send_messages(stream, "t", partition, [SendMessage(f"{partition}:last")])
    found: list[str] = []
    while len(found) < PARTITIONS:
        found += await poll(first, task, group)
    say(alone_again=sorted(found))
    await first.logout_user()
    await first.login_user("iggy", "iggy")
    say(after_logout=group_seen(await first.get_consumer_group(stream, "t", "g")))
    await first.delete_consumer_group(stream, "t", "g")
    say(deleted=group_seen(await first.get_consumer_group(stream, "t", "g")))


async def single(client: IggyClient, task: Task) -> None:
    """Consumers with a name or a number, each with its own offset in each partition."""
    named, numbered, last = Consumer.Single("named"), Consumer.Single(7), PollingStrategy.Last()
    say(
        single=[
            await poll(client, task, named, 2),
            await poll(client, task, named, 2),
            await poll(client, task, numbered, 3, partition=1),
            await poll(client, task, named, 2, partition=1),
            await poll(client, task, numbered, 1, auto_commit=False, partition=1),
            await poll(client, task, numbered, 1, auto_commit=False, partition=1),
            await poll(client, task, named, 2, strategy=last),
            await poll(client, task, named, 2),
        ]
    )


async def main(task: Task) -> None:
    client, stream = await connected(task), task["name"]
    await client.create_stream(stream)
    await kept(client, stream)
    await shared(task, stream)
    await single(client, task)


execute(main)
