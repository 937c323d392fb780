"""Sends with every partitioning, and reports where the server confirms each batch."""

from typing import Any

from apache_iggy import Consumer, IggyClient, Partitioning, PollingStrategy, SendMessage
from scenario import Task, connected, execute, refusal, say

KEYS = ("a", "b", "key-1", b"a", "ключ", b"\x00" * 255)


def confirmed(answer: Any) -> list[list[int]]:
    return [[one.stream_id, one.topic_id, one.partition_id, one.base_offset] for one in answer.confirmations]


async def count_of(client: IggyClient, stream: str, topic: str) -> list[int]:
    return [partition.messages_count for partition in (await client.get_topic(stream, topic)).partitions]


async def main(task: Task) -> None:
    client: IggyClient = await connected(task)
    name = task["name"]
    await client.create_stream(name)
    await client.create_topic(name, "other", 1)
    await client.create_topic(name, "t", 3)
    stream, topic = (await client.get_stream(name)).id, (await client.get_topic(name, "t")).id
    say(ids=[stream, topic])

    async def send(
        partitioning: Partitioning | int, size: int = 1, to: tuple[str, ...] = ("t",), by: IggyClient = client
    ) -> list[list[int]]:
        messages = [SendMessage(f"{number}") for number in range(size)]
        return confirmed(await by.send_messages(name, *to, partitioning, messages))

    say(balanced=[await send(Partitioning.balanced(), size) for size in (1, 2, 3, 4, 5, 6)])
    say(named=[await send(2, 10), await send(Partitioning.partition_id(2), 3), await send(2)])
    say(keyed=[[(await send(Partitioning.messages_key(key)))[0][2] for _ in range(2)] for key in KEYS])
    by_ids = await client.send_messages(stream, topic, Partitioning.partition_id(0), [SendMessage("by ids")])
    say(by_ids=confirmed(by_ids), counts=await count_of(client, name, "t"))

    say(
        refused=[
            await refusal(send, 3),
            await refusal(send, 0, to=("nobody made this",)),
            await refusal(client.send_messages, "nobody made this", "t", 0, [SendMessage("x")]),
            await refusal(client.send_messages, name, "t", 0, []),
        ]
    )
    for bad in ("", b"", "x" * 256):
        try:
            Partitioning.messages_key(bad)
            say(bad_key=None)
        except ValueError as error:
            say(bad_key=type(error).__name__)

    await client.create_partitions(name, "t", 1)
    new = await connected(task)
    say(
        after_growth=[(await send(Partitioning.balanced(), by=new))[0][2] for _ in range(4)],
        unaware=[(await send(Partitioning.balanced()))[0][2] for _ in range(3)],
    )
    await client.delete_partitions(name, "t", 3)
    say(after_shrinking=[await refusal(send, Partitioning.balanced(), by=new) for _ in range(4)])

    # A text, the largest possible payload, and then many at once.
    sizes = (1, 1 << 20, 60_000_000)
    for size in sizes:
        await client.send_messages(name, "other", 0, [SendMessage(b"\xa5" * size)])
    poll = {"consumer": Consumer.Single("big"), "count": 1, "auto_commit": False, "partition_id": 0}
    found = [
        (await client.poll_messages(name, "other", polling_strategy=PollingStrategy.Offset(offset), **poll))[0]
        for offset in range(len(sizes))
    ]
    say(big=[message.payload() == b"\xa5" * size for message, size in zip(found, sizes, strict=True)])
    try:
        SendMessage(b"x" * 64_000_001)
    except ValueError as error:
        say(too_big=str(error))
    many = 20_000
    batch = await client.send_messages(name, "other", 0, [SendMessage(f"{number}") for number in range(many)])
    next_one = await client.send_messages(name, "other", 0, [SendMessage("after")])
    say(many=[batch.confirmations[0].base_offset, next_one.confirmations[0].base_offset - many])


execute(main)
