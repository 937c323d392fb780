"""`whippet send`: lines or files become messages of a topic, in large batches of which several are in progress."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from whippet.app.cli.remote import rows
from whippet.app.cli.remote.failures import Failure, UsageFailure
from whippet.app.cli.remote.framework import Online
from whippet.app.cli.remote.messages import BATCH_BYTES, BATCH_MESSAGES, batches_of, checked_key
from whippet.app.cli.remote.progress import Meter, size_of_files
from whippet.app.cli.remote.reading import Place, split
from whippet.app.cli.remote.waiting import interruptible

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from whippet.app.cli.remote.send_journal import Remaining
    from whippet.app.commands.requests import Partitioning

    Requests = list[tuple[Partitioning, list[bytes]]]

IN_PROGRESS = 4
"""Batches without a response."""
PRODUCER_BYTES_MAX = 64
CHUNK_BYTES = 1 << 20
LINE_BYTES_MAX = 64_000_000
"""The most that a message may have."""

Files = Annotated[list[str] | None, typer.Argument(metavar="FILE", help="files; `-`, the default, is standard input")]
Key = Annotated[
    str | None,
    typer.Option(help="messages with the same key share a partition: a text, or a path in their JSON: '$.customer.id'"),
]
Headers = Annotated[
    list[str] | None, typer.Option("--header", "-H", metavar="HEADER", help="key=value or key:kind:value, repeatable")
]
ToPartition = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="the partition to send to")]
ProducerName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="number the sends under this name: repeat the command after an interruption, and it sends what is missing",
    ),
]
Whole = Annotated[bool, typer.Option("--whole", help="each file is one message, instead of each line")]


async def send(
    on: Online,
    topic: Place,
    files: Files = None,
    key: Key = None,
    header: Headers = None,
    partition: ToPartition = None,
    whole: Whole = False,
    producer: ProducerName = None,
) -> rows.Sent:
    """Lines are sent as they are, such as texts or NDJSON; empty lines are no messages. If it fails, it reports how
    many messages the server has acknowledged. With --producer, every message is stored exactly once, even if this
    command or the server was killed meanwhile: what the name has sent is in a file beside the contexts. All messages
    without a key then go to one partition. Over HTTP, with ?compression=gzip or zstd after the server, what is sent is
    compressed on its way."""
    from whippet.app.cli.remote import filters, headers  # noqa: PLC0415 -- not for --help
    from whippet.app.client.commands import BALANCED, by_key, to_partition  # noqa: PLC0415
    from whippet.app.memory_tuning import keep_freed_memory  # noqa: PLC0415

    if key is not None and partition is not None:
        raise UsageFailure("--key and --partition exclude each other")
    keep_freed_memory()
    place, block = split(topic), headers.parse(header or ())
    path = filters.path_of(key) if key is not None else None
    fixed = BALANCED if partition is None else to_partition(partition)
    if key is not None and path is None:
        fixed = by_key(checked_key(key))

    def requests_of(batch: list[bytes]) -> Requests:
        if path is None:
            return [(fixed, batch)]
        groups: dict[Partitioning, list[bytes]] = {}
        for payload in batch:
            groups.setdefault(_partitioning(path(payload)), []).append(payload)
        return list(groups.items())

    if producer is None:
        sender = _Sender(on, place, block, size_of_files(files or ["-"]))

        async def put(payloads: list[bytes]) -> None:
            for batch in plain_batches(payloads):
                for partitioning, own in requests_of(batch):
                    await sender.put(own, partitioning)

        await _send_all(sender, files or ["-"], put, whole=whole)
    else:
        sender = await _send_numbered(on, place, block, producer, files or ["-"], requests_of, whole=whole)
    return rows.Sent(sender.messages, sender.size)


async def _send_numbered(
    on: Online,
    place: tuple[int | str, int | str],
    block: bytes,
    name: str,
    files: list[str],
    requests_of: Callable[[list[bytes]], Requests],
    *,
    whole: bool,
) -> _Sender:
    from whippet.app.cli.remote.send_journal import Journal, Remaining  # noqa: PLC0415 -- not for --help

    if not 0 < len(name.encode()) <= PRODUCER_BYTES_MAX:
        raise UsageFailure(f"the name of a producer has 1 to {PRODUCER_BYTES_MAX} bytes, not {len(name.encode())}")
    journal = Journal(name, on.found.server, *place)
    try:
        remaining = Remaining(journal)
        sender = _NumberedSender(on, place, block, journal.name, remaining)

        async def put(payloads: list[bytes]) -> None:
            for batch in remaining.of(payloads):
                done = remaining.begin(batch)
                for partitioning, own in requests_of(batch)[done:]:
                    await sender.put_numbered(own, partitioning, journal.record.sequence)
                    remaining.done()
                remaining.end(batch)

        await _send_all(sender, files, put, whole=whole)
        remaining.finish()
    finally:
        journal.close()
    if remaining.skipped:
        on.note(f"{remaining.skipped} messages were sent before")
    return sender


async def _send_all(
    sender: _Sender, files: list[str], put: Callable[[list[bytes]], Awaitable[None]], *, whole: bool
) -> None:
    try:
        for name in files:
            with _opened(name) as file:
                if whole:
                    await put([_whole(name, file.read())])
                    continue
                lines = _Lines(name)
                while chunk := _read(file):
                    await put(lines.feed(chunk))
                    if len(chunk) < CHUNK_BYTES:
                        # Whoever types, or writes to the pipe, pauses: what is there must not wait for more.
                        await sender.finish()
                await put([lines.rest])
        await sender.finish()
    except BaseException:
        sender.report(failed=True)
        raise
    sender.report()


def plain_batches(payloads: list[bytes]) -> Iterator[list[bytes]]:
    """The same as `batches_of`, in a few steps for many messages."""
    if b"" in payloads:
        payloads = list(filter(None, payloads))
    for first in range(0, len(payloads), BATCH_MESSAGES):
        batch = payloads[first : first + BATCH_MESSAGES]
        if sum(map(len, batch)) <= BATCH_BYTES:
            yield batch
        else:
            yield from batches_of(batch)


class _Lines:
    """Cuts what is read into lines, without their ends. The last one may be unfinished."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._unfinished: list[bytes] = []
        self._length = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the lines that are finished by now."""
        first, *others = chunk.split(b"\n")
        self._add(first)
        if not others:
            return []
        *whole, rest = b"".join(self._unfinished), *others
        self._unfinished, self._length = [], 0
        self._add(rest)
        if any(b"\r" in octets for octets in (chunk, whole[0])):
            return [line.removesuffix(b"\r") for line in whole]
        return whole

    def _add(self, octets: bytes) -> None:
        self._unfinished.append(octets)
        self._length += len(octets)
        if self._length > LINE_BYTES_MAX:
            sentence = f"{self._name}: a line is longer than {LINE_BYTES_MAX} bytes, the most that a message may have"
            raise UsageFailure(sentence)

    @property
    def rest(self) -> bytes:
        return b"".join(self._unfinished).removesuffix(b"\r")


def _whole(name: str, content: bytes) -> bytes:
    if not content:
        raise UsageFailure(f"{name} is empty, and a message cannot be")
    return content


def _read(file: Any) -> bytes:
    with interruptible():
        chunk: bytes = file.read1(CHUNK_BYTES)
    return chunk


def _opened(name: str) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext(sys.stdin.buffer) if name == "-" else open(name, "rb")


def _partitioning(value: Any) -> Partitioning:
    from whippet.app.client.commands import BALANCED, by_key  # noqa: PLC0415

    text = "" if value is None else str(value)
    return by_key(checked_key(text)) if text else BALANCED


class _Sender:
    """Sends batches and counts what was acknowledged."""

    def __init__(self, on: Online, place: tuple[int | str, int | str], block: bytes, total: int | None = None) -> None:
        """`block` has the user headers of all messages, `total` is the size of everything, if it is known."""
        self._on = on
        self._place = place
        self._block = block
        self._pending: deque[tuple[asyncio.Future[Any], int, int]] = deque()
        self._meter = Meter(total)
        self.messages = self.size = 0

    async def put(self, payloads: list[bytes], partitioning: Partitioning) -> None:
        sent = self._on.client.send_messages(*self._place, self._messages_of(payloads), partitioning)
        self._pending.append((sent, len(payloads), sum(map(len, payloads))))
        await self._on.client.drained()
        while len(self._pending) >= IN_PROGRESS:
            await self._receive()

    def _messages_of(self, payloads: list[bytes]) -> Any:
        from whippet.storage.batch import Message  # noqa: PLC0415 -- not for --help

        return [Message(each, user_headers=self._block) for each in payloads] if self._block else payloads

    async def finish(self) -> None:
        while self._pending:
            await self._receive()

    async def _receive(self) -> None:
        sent, messages, size = self._pending.popleft()
        await sent
        self._count(messages, size)

    def _count(self, messages: int, size: int) -> None:
        self.messages += messages
        self.size += size
        self._meter.show(self.messages, self.size)

    def report(self, *, failed: bool = False) -> None:
        for sent, _, _ in self._pending:
            # Nobody awaits them any more.
            if not sent.cancel():
                sent.exception()
        self._meter.end()
        if failed and self.messages:
            self._on.note(f"{self.messages} messages were sent before this:")


class _NumberedSender(_Sender):
    """Sends one request at a time, under its number, and again if the connection was lost and comes back."""

    def __init__(
        self, on: Online, place: tuple[int | str, int | str], block: bytes, name: str, remaining: Remaining
    ) -> None:
        from whippet.storage.producers import Producer  # noqa: PLC0415 -- not for --help

        super().__init__(on, place, block)
        self._number = Producer(name.encode(), 0, 0)
        self._is_first = not remaining.skipped and not remaining.was_begun

    async def put_numbered(self, payloads: list[bytes], partitioning: Partitioning, sequence: int) -> None:
        from whippet.app.client import Disconnected  # noqa: PLC0415 -- not for --help
        from whippet.app.errors import Code, CommandError  # noqa: PLC0415

        number = msgspec.structs.replace(self._number, sequence=sequence)
        messages, client = self._messages_of(payloads), self._on.client
        while True:
            try:
                sent = await client.send_messages(*self._place, messages, partitioning, number=number)
            except Disconnected:
                if not client.comes_back:
                    raise
                await client.restored()
                # It may have been stored.
                self._is_first = False
                continue
            except CommandError as refused:
                if refused.code is not Code.REQUEST_ALREADY_APPLIED:
                    raise
                is_known = True
            else:
                is_known = sent is not None and sent.repeated
            if is_known and self._is_first:
                raise Failure(
                    f"the server knows the producer {number.id.decode()} already, but it is not from here that it has "
                    "sent: use another name"
                )
            self._is_first = False
            self._count(len(payloads), sum(map(len, payloads)))
            return
