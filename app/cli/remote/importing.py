"""`whippet import topic`: sends the messages of a file, with their ids, headers and origin times, in their order."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from whippet.app.cli.remote import rows
from whippet.app.cli.remote.failures import Failure, UsageFailure
from whippet.app.cli.remote.framework import Online, required
from whippet.app.cli.remote.reading import Place, split
from whippet.app.cli.remote.topic_formats import Form, form_of
from whippet.app.cli.remote.waiting import interruptible

if TYPE_CHECKING:
    from whippet.app.cli.remote.topic_records import Record
    from whippet.storage.batch import Message

BATCH_MESSAGES = 1000
BATCH_BYTES = 1 << 20
IN_PROGRESS = 4
"""Batches without a response."""

Source = Annotated[str, typer.Argument(metavar="FILE", help="the file; `-` is standard input")]
ToPartition = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, help="send all to this partition, instead of to their own")
]


async def import_topic(
    on: Online, topic: Place, file: Source, form: Form = None, partition: ToPartition = None
) -> rows.Sent:
    """Ids, headers, origin times and the order within a partition stay. Offsets and times are the server's; without an
    id, a message gets a new one; without a partition, it goes to any. A file is checked as a whole before anything is
    sent; what comes from a pipe is checked on the way. Topics that drop repeated ids drop what they have already."""
    chosen = form_of(form, file)
    place = split(topic)
    found = required(await on.client.get_topic(*place), f"the topic {topic}", "see `whippet topic list`")
    partitions = {each.id for each in found.partitions}
    if partition is not None and partition not in partitions:
        required(None, f"partition {partition} of {topic}", f"it has {len(partitions)}")
    if file != "-":
        for number, record in enumerate(_records(file, chosen), 1):
            _check_partition(record, partition, partitions, f"{file}, message {number}", topic)
    sender = _Sender(on, place)
    try:
        for number, record in enumerate(_records(file, chosen), 1):
            _check_partition(record, partition, partitions, f"{file}, message {number}", topic)
            await sender.add(record, record.partition_id if partition is None else partition)
        await sender.finish()
    except BaseException as error:
        await sender.give_up()
        if isinstance(error, UsageFailure) and sender.messages:
            # The server was asked: this is more than wrong usage.
            raise Failure(str(error)) from None
        raise
    return rows.Sent(sender.messages, sender.size)


def _check_partition(record: Record, forced: int | None, known: set[int], where: str, topic: str) -> None:
    if forced is None and record.partition_id is not None and record.partition_id not in known:
        raise UsageFailure(
            f"{where} is of partition {record.partition_id}, and {topic} has {len(known)}: add some with `whippet "
            "partition create`, or use --partition"
        )


def _records(file: str, form: str) -> Iterator[Record]:
    name = "standard input" if file == "-" else file
    with _opened(file) as source:
        if form == "ndjson":
            from whippet.app.cli.remote.topic_records import read_lines  # noqa: PLC0415 -- not for --help

            yield from read_lines(source, name)
        else:
            from whippet.app.cli.remote.topic_tables import read  # noqa: PLC0415

            yield from read(source, name, form)


class _Input(io.RawIOBase):
    """Standard input, of which Ctrl-C ends the reading at once."""

    def __init__(self) -> None:
        super().__init__()
        self._input: Any = sys.stdin.buffer

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        with interruptible():
            octets: bytes = self._input.read1(len(view))
        view[: len(octets)] = octets
        return len(octets)


def _opened(file: str) -> contextlib.AbstractContextManager[BinaryIO]:
    if file == "-":
        return contextlib.nullcontext(io.BufferedReader(_Input(), 1 << 16))
    if not os.path.isfile(file):
        # It is read twice, so it cannot be a pipe.
        raise UsageFailure(f"{file} is no file; for a pipe, use `-`")
    return open(file, "rb")


class _Sender:
    """Sends messages in batches, those of one partition in their order, and counts what was acknowledged."""

    def __init__(self, on: Online, place: tuple[int | str, int | str]) -> None:
        self._client = on.client
        self._note = on.note
        self._place = place
        self._open: dict[int | None, list[Message]] = {}
        self._sizes: dict[int | None, int] = {}
        self._pending: deque[tuple[asyncio.Future[Any], int, int]] = deque()
        self.messages = self.size = 0

    async def add(self, record: Record, partition: int | None) -> None:
        batch = self._open.setdefault(partition, [])
        batch.append(record.as_message())
        size = self._sizes[partition] = self._sizes.get(partition, 0) + len(record.payload) + len(record.headers)
        if len(batch) >= BATCH_MESSAGES or size >= BATCH_BYTES:
            await self._send(partition)

    async def finish(self) -> None:
        for partition in list(self._open):
            await self._send(partition)
        while self._pending:
            await self._receive()

    async def _send(self, partition: int | None) -> None:
        from whippet.app.client.commands import BALANCED, to_partition  # noqa: PLC0415

        batch, size = self._open.pop(partition), self._sizes.pop(partition)
        to = BALANCED if partition is None else to_partition(partition)
        for part in split_by_origin(batch):
            sent = self._client.send_messages(*self._place, part, to)
            self._pending.append((sent, len(part), size if part is batch else sum(len(one.payload) for one in part)))
            await self._client.drained()
            while len(self._pending) >= IN_PROGRESS:
                await self._receive()

    async def _receive(self) -> None:
        sent, count, size = self._pending.popleft()
        await sent
        self.messages += count
        self.size += size

    async def give_up(self) -> None:
        """Reports what was acknowledged before a failure."""
        for sent, _, _ in self._pending:
            if not sent.cancel():
                sent.exception()
        if self.messages:
            self._note(f"{self.messages} messages were sent before this:")


def split_by_origin(batch: list[Message]) -> Iterator[list[Message]]:
    """Cuts messages into parts whose origin times fit into one batch each: they are at most 71 minutes apart."""
    from whippet.storage.batch import TIME_SPAN_MAX_US  # noqa: PLC0415

    part: list[Message] = []
    low = high = None
    for message in batch:
        at = message.origin_timestamp
        lower = at if low is None or (at is not None and at < low) else low
        higher = at if high is None or (at is not None and at > high) else high
        # One without an origin time gets the present one, which may be far from the others.
        mixed = bool(part) and (at is None) is not (part[-1].origin_timestamp is None)
        if part and (mixed or (lower is not None and higher is not None and higher - lower > TIME_SPAN_MAX_US)):
            yield part
            part, lower, higher = [], at, at
        part.append(message)
        low, high = lower, higher
    if part:
        yield part
