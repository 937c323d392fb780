"""Sends messages with headers of every kind and with ids, and reports what it reads back."""

import struct
from collections.abc import Iterator
from typing import Any

from apache_iggy import Consumer, HeaderKey, HeaderValue, PollingStrategy, SendMessage
from scenario import Task, connected, execute, say

EXTREMES = {
    "Raw": (b"\x00\xff" * 127, b"\x00"),
    "String": ("ключ 🐕", "x" * 255),
    "Bool": (True, False),
    **{f"Int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64, 128)},
    **{f"UnsignedInt{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64, 128)},
    "Float32": (-0.5, struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]),
    "Float64": (1e-300, 1.7976931348623157e308),
}
"""Two values of each kind."""
PLAIN = {
    "text": "значение",
    "bytes": b"\x00\x01",
    "yes": True,
    "small": -7,
    "big": 2**100,
    "half": 0.5,
    7: "a number as the key",
    b"raw": "bytes as the key",
}
IDS = (None, 0, 1, 2**64, 2**128 - 1)


def plain(value: object) -> object:
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def seen(headers: Any) -> list[list[Any]] | None:
    """Returns every pair with the kinds of both, in order."""
    if headers is None:
        return None
    fields = [(type(key).__name__, key.value, type(value).__name__, value.value) for key, value in headers.items()]
    return sorted([[kind, plain(key), of, plain(value)] for kind, key, of, value in fields], key=str)


def every_kind() -> Iterator[dict[HeaderKey, HeaderValue]]:
    """Yields two messages; together they use every kind for a key and for a value, with its smallest and largest
    value."""
    for first in (0, 1):
        yield {
            getattr(HeaderKey, kind)(values[first]): getattr(HeaderValue, kind)(values[1 - first])
            for kind, values in EXTREMES.items()
        }


async def main(task: Task) -> None:
    client = await connected(task)
    stream, topic = task["name"], "t"
    await client.create_stream(stream)
    await client.create_topic(stream, topic, 1)

    async def sent(messages: list[SendMessage]) -> list[Any]:
        """Returns the sent messages as they are read."""
        answer = await client.send_messages(stream, topic, 0, messages)
        first = answer.confirmations[0].base_offset
        found = await client.poll_messages(
            stream,
            topic,
            consumer=Consumer.Single("reader"),
            polling_strategy=PollingStrategy.Offset(first),
            count=len(messages),
            auto_commit=False,
            partition_id=0,
        )
        return list(found)

    typed = list(every_kind())
    found = await sent([SendMessage("typed", headers) for headers in typed])
    say(
        typed=[seen(headers) for headers in typed],
        typed_back=[seen(message.user_headers()) for message in found],
        equal=[dict(message.user_headers()) == headers for message, headers in zip(found, typed, strict=True)],
    )
    (plainly,) = await sent([SendMessage(b"plain", PLAIN)])
    back = plainly.user_headers()
    say(plain_back=back.to_scalar_dict() == PLAIN, kinds=[[plain(row[1]), row[2]] for row in seen(back) or []])

    (ambiguous,) = await sent([SendMessage("x", {HeaderKey.Int8(1): "a", HeaderKey.UnsignedInt64(1): "b"})])
    both = ambiguous.user_headers()
    try:
        both.to_scalar_dict()
        say(ambiguous="not noticed", both=seen(both))
    except ValueError as error:
        say(ambiguous=str(error), both=seen(both))

    without = await sent([SendMessage("without"), SendMessage("empty", {}), SendMessage("with", {"k": "v"})])
    say(without=[seen(message.user_headers()) for message in without])

    long = {f"key {number:03}": "v" * 255 for number in range(300)}
    (much,) = await sent([SendMessage("much", long)])
    say(much=much.user_headers().to_scalar_dict() == long)
    too_much = {f"key {number:03}": "v" * 255 for number in range(400)}
    try:
        SendMessage("x", too_much)
    except ValueError as error:
        say(too_much=str(error))

    identified = await sent([SendMessage(f"{identity}", id=identity) for identity in IDS])
    say(
        ids=[str(message.id()) for message in identified],
        payloads=[message.payload().decode() for message in identified],
        origins=[message.origin_timestamp() for message in identified],
        timestamps=[message.timestamp() for message in identified],
        checksums=[message.checksum() for message in identified],
        partitions=[message.partition_id() for message in identified],
    )


execute(main)
