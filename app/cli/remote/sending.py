"""`whippet send`: lines or files become messages of a topic, in large batches of which several are in progress."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whippet.app.cli.remote import rows
from whippet.app.cli.remote.failures import UsageFailure
from whippet.app.cli.remote.framework import Online
from whippet.app.cli.remote.messages import batches_of, checked_key
from whippet.app.cli.remote.output import size_text
from whippet.app.cli.remote.reading import Place, split
from whippet.app.cli.remote.waiting import interruptible

if TYPE_CHECKING:
    from whippet.app.commands.requests import Partitioning

IN_PROGRESS = 4
"""Batches without a response."""
PROGRESS_S = 0.5
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
Whole = Annotated[bool, typer.Option("--whole", help="each file is one message, instead of each line")]


async def send(
    on: Online,
    topic: Place,
    files: Files = None,
    key: Key = None,
    header: Headers = None,
    partition: ToPartition = None,
    whole: Whole = False,
) -> rows.Sent:
    """Lines are sent as they are, such as texts or NDJSON; empty lines are no messages. If it fails, it reports how
    many messages the server has acknowledged."""
    from whippet.app.cli.remote import filters, headers  # noqa: PLC0415 -- not for --help
    from whippet.app.client.commands import BALANCED, by_key, to_partition  # noqa: PLC0415
    from whippet.storage.batch import Message  # noqa: PLC0415

    if key is not None and partition is not None:
        raise UsageFailure("--key and --partition exclude each other")
    place, block = split(topic), headers.parse(header or ())
    path = filters.path_of(key) if key is not None else None
    fixed = BALANCED if partition is None else to_partition(partition)
    if key is not None and path is None:
        fixed = by_key(checked_key(key))
    sender = _Sender(on, place)

    async def put(payloads: list[bytes]) -> None:
        for batch in batches_of(payloads):
            groups: dict[Partitioning, list[bytes]] = {}
            for payload in batch:
                groups.setdefault(_partitioning(path(payload)) if path else fixed, []).append(payload)
            for partitioning, own in groups.items():
                messages = [Message(each, user_headers=block) for each in own] if block else own
                await sender.put(messages, sum(map(len, own)), partitioning)

    try:
        for name in files or ["-"]:
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
    return rows.Sent(sender.messages, sender.size)


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
        return [line.removesuffix(b"\r") for line in whole]

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

    def __init__(self, on: Online, place: tuple[int | str, int | str]) -> None:
        self._on = on
        self._place = place
        self._pending: deque[tuple[asyncio.Future[Any], int, int]] = deque()
        self._began = self._shown = time.monotonic()
        self._shows = sys.stderr.isatty()
        self.messages = self.size = 0

    async def put(self, messages: Any, size: int, partitioning: Partitioning) -> None:
        sent = self._on.client.send_messages(*self._place, messages, partitioning)
        self._pending.append((sent, len(messages), size))
        await self._on.client.drained()
        while len(self._pending) >= IN_PROGRESS:
            await self._receive()

    async def finish(self) -> None:
        while self._pending:
            await self._receive()

    async def _receive(self) -> None:
        sent, messages, size = self._pending.popleft()
        await sent
        self.messages += messages
        self.size += size
        now = time.monotonic()
        if self._shows and now - self._shown >= PROGRESS_S:
            self._shown = now
            rate = self.size / (now - self._began)
            line = f"\r{self.messages:,} messages, {size_text(self.size)}, {size_text(int(rate))}/s "
            print(line, end="", file=sys.stderr, flush=True)

    def report(self, *, failed: bool = False) -> None:
        for sent, _, _ in self._pending:
            # Nobody awaits them any more.
            if not sent.cancel():
                sent.exception()
        if self._shows and self._shown > self._began:
            print(file=sys.stderr)
        if failed and self.messages:
            self._on.note(f"{self.messages} messages were sent before this:")
