"""Creates the stream and the topics of the task, and looks them up in every way that the SDK has."""

from typing import Any

from apache_iggy import IggyClient
from scenario import Task, connected, execute, milliseconds, refusal, say
from versions import topic_settings


def stream_seen(stream: Any) -> list[Any] | None:
    return stream and [stream.id, stream.name, stream.topics_count, stream.messages_count]


def topic_seen(topic: Any) -> list[Any] | None:
    return topic and [topic.id, topic.name, topic.partitions_count, topic.messages_count]


def keywords(topic: dict[str, Any]) -> dict[str, Any]:
    durations = {key: milliseconds(topic[key]) for key in ("message_expiry",) if key in topic}
    return topic_settings(
        {key: value for key, value in topic.items() if key not in ("name", "partitions_count")} | durations
    )


async def main(task: Task) -> None:
    client: IggyClient = await connected(task)
    stream, absent = task["stream"], "nobody made this"
    say(absent=stream_seen(await client.get_stream(stream)))
    await client.create_stream(stream)
    say(duplicate=await refusal(client.create_stream, stream))
    by_name = await client.get_stream(stream)
    say(by_name=stream_seen(by_name), by_id=stream_seen(await client.get_stream(by_name.id)))
    say(bad_names=[await refusal(client.create_stream, name) for name in task["bad_names"]])

    for topic in task["topics"]:
        say(
            absent=topic_seen(await client.get_topic(stream, topic["name"])),
            made=await refusal(
                client.create_topic, stream, topic["name"], topic["partitions_count"], **keywords(topic)
            ),
            duplicate=await refusal(client.create_topic, stream, topic["name"], 1),
        )
        seen = await client.get_topic(stream, topic["name"])
        say(topic=topic_seen(seen), by_ids=topic_seen(await client.get_topic(by_name.id, seen.id)))

    say(
        bad_names=[await refusal(client.create_topic, stream, name, 1) for name in task["bad_names"]],
        topic_of_absent_stream=topic_seen(await client.get_topic(absent, absent)),
        made_in_absent_stream=await refusal(client.create_topic, absent, "orders", 1),
        too_many_partitions=await refusal(client.create_topic, stream, "too many", 1001),
        by_name=stream_seen(await client.get_stream(stream)),
    )


execute(main)
