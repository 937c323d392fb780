"""The calls that differ between versions of the SDK, in one form for all programs.

What only the newest version has is used directly, by separate programs.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import apache_iggy
from apache_iggy import IggyClient

Note = Callable[[Any], Awaitable[None]]
"""Called with each message that is consumed."""
MODERN = hasattr(apache_iggy, "TcpConfig")
"""0.9 and later."""
FORGOTTEN = ("replication_factor",)
"""Settings of a topic that 0.9 no longer knows."""


async def poll(
    client: IggyClient, stream: str, topic: str, partition: int, strategy: Any, count: int, auto_commit: bool
) -> list[Any]:
    """As consumer 0: before 0.9 there is no other."""
    if not MODERN:
        return list(await client.poll_messages(stream, topic, partition, strategy, count, auto_commit))
    found = await client.poll_messages(
        stream,
        topic,
        consumer=apache_iggy.Consumer.Single(0),
        polling_strategy=strategy,
        count=count,
        auto_commit=auto_commit,
        partition_id=partition,
    )
    return list(found)


async def consumer_group(client: IggyClient, *arguments: Any, **options: Any) -> Any:
    """The call is a coroutine since 0.7."""
    made = client.consumer_group(*arguments, **options)
    return await made if hasattr(made, "__await__") else made


async def consume_endlessly(consumer: Any, note: Note) -> None:
    """Consumes without an end. Without an event 0.9 would stop at once."""
    await consumer.consume_messages(note, asyncio.Event() if MODERN else None)


def topic_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns keywords of `create_topic` from those of 0.8."""
    if not MODERN:
        return settings
    modern = {key: value for key, value in settings.items() if key not in FORGOTTEN}
    if "message_expiry" in modern:
        modern["message_expiry"] = apache_iggy.IggyExpiry.ExpireDuration(modern["message_expiry"])
    if "max_topic_size" in modern:
        modern["max_topic_size"] = apache_iggy.MaxTopicSize.Custom(modern["max_topic_size"])
    return modern


def labelled(text: str, number: int) -> apache_iggy.SendMessage:
    """Returns a message with an id and headers, if the SDK supports them."""
    if not MODERN:
        return apache_iggy.SendMessage(text)
    return apache_iggy.SendMessage(text, {"number": number, "text": text, 7: b"\x00"}, 2**100 + number)


def labels(message: Any) -> list[list[str]] | None:
    """Returns the headers of a message; None without any, or if the SDK does not show them."""
    headers = message.user_headers() if MODERN else None
    return headers and sorted([str(key), str(value)] for key, value in headers.to_scalar_dict().items())


def origin(message: Any) -> int | None:
    """Returns when the message was created, if the SDK shows it."""
    return message.origin_timestamp() if MODERN else None


def where(message: Any) -> dict[str, int]:
    """Returns what a message reports about its partition; 0.6 reports nothing."""
    return {"partition": message.partition_id()} if hasattr(message, "partition_id") else {}
