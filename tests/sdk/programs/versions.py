"""The calls that the versions of the SDK spell differently, spelled once for all programs.

What only the newest has is used directly, by programs of its own.
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
"""Settings of a topic that 0.9 does not know any more."""


async def poll(
    client: IggyClient, stream: str, topic: str, partition: int, strategy: Any, count: int, auto_commit: bool
) -> list[Any]:
    """As the consumer 0: before 0.9 there is no other."""
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
    """Without an end. Without an event 0.9 would stop at once."""
    await consumer.consume_messages(note, asyncio.Event() if MODERN else None)


def topic_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Keywords of `create_topic`, from those of 0.8."""
    if not MODERN:
        return settings
    modern = {key: value for key, value in settings.items() if key not in FORGOTTEN}
    if "message_expiry" in modern:
        modern["message_expiry"] = apache_iggy.IggyExpiry.ExpireDuration(modern["message_expiry"])
    if "max_topic_size" in modern:
        modern["max_topic_size"] = apache_iggy.MaxTopicSize.Custom(modern["max_topic_size"])
    return modern


def labelled(text: str, number: int) -> apache_iggy.SendMessage:
    """A message with an id and with headers, where the SDK lets one give them."""
    if not MODERN:
        return apache_iggy.SendMessage(text)
    return apache_iggy.SendMessage(text, {"number": number, "text": text, 7: b"\x00"}, 2**100 + number)


def labels(message: Any) -> list[list[str]] | None:
    """The headers of a message; None without any, and where the SDK does not show them."""
    headers = message.user_headers() if MODERN else None
    return headers and sorted([str(key), str(value)] for key, value in headers.to_scalar_dict().items())


def origin(message: Any) -> int | None:
    """When it was made, where the SDK says so."""
    return message.origin_timestamp() if MODERN else None


def where(message: Any) -> dict[str, int]:
    """What a message says of the partition it comes from; 0.6 says nothing."""
    return {"partition": message.partition_id()} if hasattr(message, "partition_id") else {}
