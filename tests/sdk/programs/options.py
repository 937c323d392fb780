"""Describes the options of topics, and creates topics with them."""

from typing import Any

from apache_iggy import Durability, IggyClient, IggyExpiry, MaxTopicSize
from scenario import Task, connected, execute, milliseconds, refusal, say

EVERY = {
    "compression_algorithm": "gzip",
    "message_expiry": IggyExpiry.ExpireDuration(milliseconds(3_600_000)),
    "max_topic_size": MaxTopicSize.Custom(20 << 30),
    "segment_size": 128 << 20,
    "durability": Durability.PERSISTED,
    "consumer_offset_durability": Durability.PERSISTED,
    "messages_required_to_save": 17,
    "size_of_messages_required_to_save": 1 << 20,
    "preallocate_segments": False,
}
AS_TEXT = {
    "compression_algorithm": "gzip",
    "message_expiry": "1 h",
    "max_topic_size": "20 GiB",
    "segment_size": "128 MiB",
    "messages_required_to_save": "17",
    "size_of_messages_required_to_save": "1 MiB",
    "preallocate_segments": "false",
    "message_deduplication": "true",
    "message_deduplication_expiry": "1 hour",
}
REFUSED: tuple[dict[str, Any], ...] = (
    {"options": {"colour": "red"}},
    {"options": {"enforce_fsync": "true"}},
    {"options": {"durability": "sometimes"}},
    {"options": {"segment_size": "lots"}},
    {"segment_size": 1_000_001},
    {"segment_size": 2 << 30},
    {"max_topic_size": MaxTopicSize.Custom(1 << 20)},
    {"options": {"message_expiry": "soon"}},
    {"messages_required_to_save": 1 << 30},
)


def plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def kind_of(value: Any) -> list[Any] | None:
    return None if value is None else [type(value).__name__, plain(value.value)]


def typed(options: Any) -> dict[str, Any]:
    """Returns every key with its value and the value's kind."""
    assert {type(key).__name__ for key in options} <= {"String"}
    return {key.value: kind_of(value) for key, value in options.items()}


async def seen(client: IggyClient, stream: str, topic: str) -> dict[str, Any]:
    details = await client.get_topic(stream, topic)
    listed = next(one for one in await client.get_topics(stream) if one.name == topic)
    assert details.options.to_scalar_dict() == listed.options.to_scalar_dict()
    assert details.derived_options.to_scalar_dict() == listed.derived_options.to_scalar_dict()
    return {"explicit": typed(details.options), "derived": typed(details.derived_options)}


async def main(task: Task) -> None:
    client, stream = await connected(task), task["name"]
    await client.create_stream(stream)
    catalogue = await client.describe_options("topic")
    say(
        catalogue={spec.key: [spec.kind, kind_of(spec.default_value), bool(spec.description)] for spec in catalogue},
        empty=[await client.describe_options("stream"), await client.describe_options("user")],
    )
    topics: dict[str, dict[str, Any]] = {"none": {}, "every": EVERY, "text": {"options": AS_TEXT}}
    for name, settings in topics.items():
        await client.create_topic(stream, name, 1, **settings)
        say(**{name: await seen(client, stream, name)})
    say(refused=[await refusal(client.create_topic, stream, f"refused {i}", 1, **r) for i, r in enumerate(REFUSED)])
    say(topics_left=[topic.name for topic in await client.get_topics(stream)])
    await client.update_topic(stream, "none", "none", max_topic_size=MaxTopicSize.Custom(5 << 30))
    say(updated=await seen(client, stream, "none"))


execute(main)
