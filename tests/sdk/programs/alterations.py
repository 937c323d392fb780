"""Lists, renames, empties and deletes streams, topics and partitions."""

from typing import Any

from apache_iggy import Consumer, IggyClient, IggyExpiry, MaxTopicSize, PollingStrategy, SendMessage
from scenario import Task, connected, execute, milliseconds, refusal, say

TOO_LONG = "é" * 128


def stream_seen(stream: Any) -> list[Any] | None:
    return stream and [stream.name, stream.topics_count, stream.messages_count]


def topic_seen(topic: Any) -> list[Any] | None:
    if topic is None:
        return None
    return [
        topic.name,
        topic.partitions_count,
        topic.messages_count,
        topic.compression_algorithm,
        expiry_seen(topic.message_expiry),
        size_seen(topic.max_topic_size),
    ]


def expiry_seen(expiry: Any) -> float | str:
    return expiry.duration.total_seconds() if isinstance(expiry, IggyExpiry.ExpireDuration) else type(expiry).__name__


def size_seen(size: Any) -> int | str:
    return size.bytes if isinstance(size, MaxTopicSize.Custom) else type(size).__name__


async def counted(client: IggyClient, stream: str, topic: str) -> list[list[Any]]:
    """Returns, for each partition, the message count it reports and the number of messages that can be read."""
    details = await client.get_topic(stream, topic)
    found = []
    for partition in details.partitions:
        messages = await client.poll_messages(
            stream,
            topic,
            consumer=Consumer.Single(1),
            polling_strategy=PollingStrategy.First(),
            count=100,
            auto_commit=False,
            partition_id=partition.id,
        )
        found.append([partition.id, partition.messages_count, [message.payload().decode() for message in messages]])
    return found


async def fill(client: IggyClient, stream: str, topic: str, partitions: int = 2) -> None:
    for partition in range(partitions):
        await client.send_messages(stream, topic, partition, [SendMessage("a"), SendMessage("b")])


async def streams(client: IggyClient, name: str) -> tuple[str, str]:
    first, second = f"{name}-first", f"{name}-second"
    await client.create_stream(first)
    await client.create_stream(second)
    listed = await client.get_streams()
    mine = {stream.name: stream for stream in listed if stream.name in (first, second)}
    details, of_list = await client.get_stream(first), mine[first]
    say(
        streams=[stream_seen(mine[name]) for name in (first, second)],
        same=[details.id == of_list.id, details.created_at == of_list.created_at, details.size == of_list.size == 0],
        numbers=[stream.id for stream in listed],
    )
    await client.update_stream(first, f"{name}-renamed")
    await client.update_stream(details.id, f"{name}-renamed", {})
    say(
        renamed=[stream_seen(await client.get_stream(stream)) for stream in (f"{name}-renamed", details.id, first)],
        refused_streams=[
            await refusal(client.update_stream, details.id, second),
            await refusal(client.update_stream, "nobody made this", "x"),
            await refusal(client.update_stream, details.id, ""),
            await refusal(client.update_stream, details.id, TOO_LONG),
            await refusal(client.update_stream, details.id, f"{name}-renamed", {"colour": "red"}),
        ],
    )
    await client.update_stream(details.id, first)
    return first, second


async def topics(client: IggyClient, stream: str) -> None:
    expiry, size = IggyExpiry.ExpireDuration(milliseconds(90_000)), MaxTopicSize.Custom(3 << 30)
    await client.create_topic(stream, "t", 2, "gzip", expiry, size)
    await client.create_topic(stream, "other", 1)
    say(topics=[topic_seen(topic) for topic in await client.get_topics(stream)])
    of_stream = (await client.get_stream(stream)).topics
    say(topics_of_stream=[topic_seen(topic) for topic in of_stream])

    identity = (await client.get_topic(stream, "t")).id
    changes = [
        {"name": "renamed"},
        {"name": "renamed", "message_expiry": IggyExpiry.NeverExpire()},
        {"name": "renamed", "max_topic_size": MaxTopicSize.Unlimited(), "compression_algorithm": "none"},
        {"name": "t", "options": {"compression_algorithm": "gzip", "message_expiry": "2 h"}},
        {"name": "t", "message_expiry": IggyExpiry.ServerDefault(), "max_topic_size": MaxTopicSize.ServerDefault()},
    ]
    for change in changes:
        answer = await refusal(client.update_topic, stream, identity, **change)
        say(answer=answer, changed=topic_seen(await client.get_topic(stream, identity)))
    say(
        refused_topics=[
            await refusal(client.update_topic, stream, identity, "other"),
            await refusal(client.update_topic, stream, "nobody made this", "x"),
            await refusal(client.update_topic, "nobody made this", "t", "x"),
            await refusal(client.update_topic, stream, identity, TOO_LONG),
            await refusal(client.update_topic, stream, identity, "t", options={"segment_size": "2 MiB"}),
            await refusal(client.update_topic, stream, identity, "t", options={"colour": "red"}),
            await refusal(client.update_topic, stream, identity, "t", options={"compression_algorithm": "odd"}),
        ],
        of_no_stream=len(await client.get_topics("nobody made this")),
    )


async def partitions(client: IggyClient, stream: str) -> None:
    await fill(client, stream, "t")
    fresh = (await client.get_topic(stream, "t")).partitions[1]
    say(partition=[fresh.segments_count, fresh.current_offset, fresh.messages_count], has_a_size=fresh.size > 0)
    await client.create_partitions(stream, "t", 2)
    await client.send_messages(stream, "t", 3, [SendMessage("c")])
    say(grown=await counted(client, stream, "t"))
    await client.delete_partitions(stream, "t", 1)
    say(
        shrunk=await counted(client, stream, "t"),
        messages=(await client.get_topic(stream, "t")).messages_count,
        refused_partitions=[
            await refusal(method, stream, "t", count)
            for method in (client.create_partitions, client.delete_partitions)
            for count in (0, 1001)
        ]
        + [
            await refusal(client.delete_partitions, stream, "t", 4),
            await refusal(client.create_partitions, stream, "nobody made this", 1),
            await refusal(client.delete_partitions, "nobody made this", "t", 1),
        ],
    )
    await client.delete_partitions(stream, "t", 1)


async def emptied(client: IggyClient, first: str, second: str) -> None:
    await client.purge_topic(first, "t")
    say(purged=await counted(client, first, "t"))
    confirmed = await client.send_messages(first, "t", 0, [SendMessage("new")])
    say(after_purge=await counted(client, first, "t"), offset=confirmed.confirmations[0].base_offset)
    for topic in ("x", "y"):
        await client.create_topic(second, topic, 1)
        await fill(client, second, topic, 1)
    before = stream_seen(await client.get_stream(second))
    await client.purge_stream(second)
    await client.purge_stream(second)
    say(
        purged_stream=[before, stream_seen(await client.get_stream(second))],
        purged_topics=[await counted(client, second, topic) for topic in ("x", "y")],
        refused_purges=[
            await refusal(client.purge_stream, "nobody made this"),
            await refusal(client.purge_topic, second, "nobody made this"),
        ],
    )


async def deleted(client: IggyClient, first: str, second: str) -> None:
    await client.delete_topic(first, "t")
    identity = (await client.get_topic(first, "other")).id
    await client.delete_topic(first, identity)
    say(
        deleted_topic=[
            topic_seen(await client.get_topic(first, "t")),
            (stream_seen(await client.get_stream(first)) or [])[1:],
        ],
        topics_left=[topic.name for topic in await client.get_topics(first)],
        again=[await refusal(client.delete_topic, first, "t"), await refusal(client.delete_topic, "nobody", "t")],
    )
    number = (await client.get_stream(second)).id
    await client.delete_stream(first)
    await client.delete_stream(number)
    say(
        deleted_streams=[stream_seen(await client.get_stream(stream)) for stream in (first, second, number)],
        streams_left=[stream.name for stream in await client.get_streams() if stream.name in (first, second)],
        streams_again=await refusal(client.delete_stream, first),
    )


async def main(task: Task) -> None:
    client = await connected(task)
    first, second = await streams(client, task["name"])
    await topics(client, first)
    await partitions(client, first)
    await emptied(client, first, second)
    await deleted(client, first, second)


execute(main)
