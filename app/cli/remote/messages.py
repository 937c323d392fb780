"""`whippet message`: sends, polls and flushes."""

from __future__ import annotations

import base64
import os
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from whippet.app.cli.remote import rows
from whippet.app.cli.remote.arguments import Partition, Stream, Topic
from whippet.app.cli.remote.failures import UsageFailure
from whippet.app.cli.remote.framework import Online, identifier
from whippet.app.cli.remote.groups import consumer_of
from whippet.app.cli.remote.output import Done
from whippet.app.cli.remote.waiting import interruptible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from whippet.app.client.consumer import Received
    from whippet.app.commands.responses import Polled

BATCH_MESSAGES = 1000
BATCH_BYTES = 1 << 20
KEY_BYTES_MAX = 255

Payloads = Annotated[
    list[str] | None, typer.Argument(metavar="MESSAGE", help="the messages; without any, the lines of standard input")
]
PartitionId = Annotated[int | None, typer.Option("--partition-id", "-p", min=0, help="the partition to send to")]
Key = Annotated[str | None, typer.Option("--message-key", "-m", help="messages with the same key share a partition")]
Headers = Annotated[
    list[str] | None,
    typer.Option("--headers", "-H", metavar="HEADER", help="key=value or key:kind:value, repeatable"),
]
InputFile = Annotated[str | None, typer.Option(metavar="FILE", help="send the lines of this file")]
Many = Annotated[int, typer.Option("--message-count", "-m", min=1, help="how many messages at most")]
Commits = Annotated[bool, typer.Option("--auto-commit", "-a", help="store the offset of what was polled")]
FromOffset = Annotated[int | None, typer.Option("--offset", "-o", min=0, help="begin at this offset")]
First = Annotated[bool, typer.Option("--first", "-f", help="begin at the first message")]
Last = Annotated[bool, typer.Option("--last", "-l", help="the last messages")]
Next = Annotated[bool, typer.Option("--next", "-n", help="continue after the stored offset")]
ConsumerName = Annotated[str, typer.Option("--consumer", "-c", help="the name or id of the consumer")]
ConsumerKind = Annotated[Literal["consumer", "consumer-group"], typer.Option("--kind", "-k", help="of the consumer")]
Fsync = Annotated[bool, typer.Option("--fsync", "-f", help="also sync it to the disk")]


async def send(
    on: Online,
    stream: Stream,
    topic: Topic,
    messages: Payloads = None,
    partition_id: PartitionId = None,
    message_key: Key = None,
    headers: Headers = None,
    input_file: InputFile = None,
) -> rows.Sent:
    """Empty lines are no messages. Lines are sent in batches of up to 1,000."""
    from whippet.app.cli.remote.headers import parse  # noqa: PLC0415 -- not for --help
    from whippet.app.client.commands import BALANCED, by_key, to_partition  # noqa: PLC0415
    from whippet.storage.batch import Message  # noqa: PLC0415

    if partition_id is not None and message_key is not None:
        raise UsageFailure("--partition-id and --message-key exclude each other")
    if messages and input_file:
        raise UsageFailure("give either messages or --input-file")
    partitioning = BALANCED
    if partition_id is not None:
        partitioning = to_partition(partition_id)
    elif message_key is not None:
        partitioning = by_key(checked_key(message_key))
    if messages and "" in messages:
        raise UsageFailure("a message must not be empty")
    block = parse(headers or ())
    sent = size = 0
    # An argument may have any bytes.
    for payloads in batches_of([os.fsencode(text) for text in messages] if messages else _lines(input_file)):
        batch = [Message(payload, user_headers=block) for payload in payloads] if block else payloads
        await on.client.send_messages(identifier(stream), identifier(topic), batch, partitioning)
        sent += len(payloads)
        size += sum(map(len, payloads))
    return rows.Sent(sent, size)


def checked_key(key: str) -> bytes:
    octets = key.encode()
    if not 0 < len(octets) <= KEY_BYTES_MAX:
        raise UsageFailure(f"a key has 1 to {KEY_BYTES_MAX} bytes, not {len(octets)}: {key[:40]!r}")
    return octets


def _lines(path: str | None) -> Iterator[bytes]:
    if path is None:
        while line := _line():
            yield line.rstrip(b"\r\n")
        return
    with open(path, "rb") as file:
        yield from (line.rstrip(b"\r\n") for line in file)


def _line() -> bytes:
    with interruptible():
        return sys.stdin.buffer.readline()


def batches_of(payloads: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yields payloads in batches. Empty lines are no messages."""
    batch: list[bytes] = []
    size = 0
    for payload in payloads:
        if not payload:
            continue
        if batch and (len(batch) == BATCH_MESSAGES or size + len(payload) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(payload)
        size += len(payload)
    if batch:
        yield batch


async def poll(
    on: Online,
    stream: Stream,
    topic: Topic,
    partition: Partition,
    message_count: Many = 1,
    auto_commit: Commits = False,
    offset: FromOffset = None,
    first: First = False,
    last: Last = False,
    next_ones: Next = False,
    consumer: ConsumerName = "0",
    kind: ConsumerKind = "consumer",
) -> list[rows.Message]:
    """One of --offset, --first, --last and --next says where to begin."""
    from whippet.app.client.commands import FIRST, LAST, NEXT, from_offset  # noqa: PLC0415

    if (offset is not None) + first + last + next_ones != 1:
        raise UsageFailure("give exactly one of --offset, --first, --last and --next")
    named = FIRST if first else LAST if last else NEXT
    strategy = named if offset is None else from_offset(offset)
    polled = await on.client.poll_messages(
        identifier(stream),
        identifier(topic),
        consumer_of(kind, consumer),
        partition_id=partition,
        strategy=strategy,
        count=message_count,
        auto_commit=auto_commit,
    )
    return [row_of(each) for each in received(polled)]


def received(polled: Polled) -> Iterator[Received]:
    from whippet.app.client.consumer import received as decoded  # noqa: PLC0415

    return decoded(polled)


def row_of(message: Received) -> rows.Message:
    from whippet.app.cli.remote.headers import show  # noqa: PLC0415

    try:
        payload, encoding = message.payload.decode(), "text"
    except UnicodeDecodeError:
        payload, encoding = base64.b64encode(message.payload).decode(), "base64"
    return rows.Message(
        message.partition_id,
        message.offset,
        message.timestamp,
        str(message.id),
        show(message.user_headers),
        payload,
        encoding,
    )


async def flush(on: Online, stream: Stream, topic: Topic, partition: Partition, fsync: Fsync = False) -> Done:
    await on.client.flush_unsaved_buffer(identifier(stream), identifier(topic), partition, fsync=fsync)
    return Done(f"{'synced' if fsync else 'flushed'} topic {stream}/{topic}, partition {partition}")
