"""`whippet export topic`: the messages of a topic as a file, which has its name only when it is complete."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from whippet.app.cli.remote import output, rows, topic_reading
from whippet.app.cli.remote.failures import UsageFailure
from whippet.app.cli.remote.framework import Online, required
from whippet.app.cli.remote.progress import Meter
from whippet.app.cli.remote.reading import Place, split
from whippet.app.cli.remote.topic_formats import Form, form_of
from whippet.app.cli.remote.topic_records import Record

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


Target = Annotated[str, typer.Argument(metavar="FILE", help="the file; `-` is standard output")]
From = Annotated[
    str, typer.Option("--from", metavar="WHERE", help="first, -10, an offset, 2h-ago, or 2026-07-31T12:00:00Z")
]
To = Annotated[str, typer.Option("--to", metavar="WHERE", help="up to, and without: end, an offset, 2h-ago, or a time")]
Only = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="only this partition")]


async def export(
    on: Online,
    topic: Place,
    file: Target,
    form: Form = None,
    begin: From = "first",
    to: To = "end",
    partition: Only = None,
) -> rows.Exported | None:
    """Writes partition, offset, time, origin time, id, headers with their kinds, and payload of each message, without
    loss. What is sent after the command began is left out. Servers do not store keys, so there are none."""
    chosen = form_of(form, file)
    if chosen != "ndjson" and file == "-" and sys.stdout.isatty():
        raise UsageFailure(f"{chosen} is not for a terminal: write it to a file or a pipe")
    if chosen != "ndjson":
        from whippet.app.cli.remote.topic_tables import arrow  # noqa: PLC0415 -- an extra

        arrow()
    if file != "-":
        _confirm_replacing(on, file)
    source = await _Source.of(on, topic, begin, to, partition)
    progress = _Progress()
    if file == "-":
        count, _ = await _write(sys.stdout.buffer, source, chosen, progress, as_stream=True)
        sys.stdout.buffer.flush()
        progress.end()
        return None
    with complete_or_not_at_all(file) as written:
        count, size = await _write(written, source, chosen, progress, as_stream=False)
    progress.end()
    return rows.Exported(file, chosen, count, size)


def _confirm_replacing(on: Online, file: str) -> None:
    if os.path.isfile(file):
        on.confirm(f"Replace the file {file}?")


class _Source:
    """The messages of all chosen partitions, one partition after the other."""

    def __init__(self, on: Online, place: tuple[int | str, int | str], parts: list[tuple[int, int, int]]) -> None:
        self._on = on
        self._place = place
        self._parts = parts

    @classmethod
    async def of(cls, on: Online, name: str, begin: str, to: str, partition: int | None) -> _Source:
        place = split(name)
        found = required(await on.client.get_topic(*place), f"the topic {name}", "see `whippet topic list`")
        every = [each for each in found.partitions if partition in (None, each.id)]
        if not every:
            required(None, f"partition {partition} of {name}", f"it has {len(found.partitions)}")
        parts = []
        for each in every:
            first, end = await topic_reading.bounds(on.client, place, each, begin, to)
            parts.append((each.id, first, end))
        return cls(on, place, parts)

    async def chunks(self) -> AsyncIterator[list[Record]]:
        from whippet.app.cli.remote.topic_records import record_of  # noqa: PLC0415

        for partition, first, end in self._parts:
            async for found in topic_reading.messages(self._on.client, self._place, partition, first, end):
                yield [record_of(each) for each in found]


async def _write(
    file: BinaryIO, source: _Source, form: str, progress: _Progress, *, as_stream: bool
) -> tuple[int, int]:
    """Returns how many messages were written, and the bytes of their payloads."""
    if form == "ndjson":
        return await _write_lines(file, source, progress)
    return await _write_table(file, source, form, progress, as_stream=as_stream)


async def _write_lines(file: BinaryIO, source: _Source, progress: _Progress) -> tuple[int, int]:
    from whippet.app.cli.remote.topic_records import line_of  # noqa: PLC0415

    for_terminal = file.isatty()
    async for chunk in source.chunks():
        lines = [line_of(record) for record in chunk]
        if for_terminal:
            for line in lines:
                output.print_json(line, sys.stdout)
        else:
            file.write(b"".join(line + b"\n" for line in lines))
        progress.count(chunk)
    return progress.messages, progress.size


async def _write_table(
    file: BinaryIO, source: _Source, form: str, progress: _Progress, *, as_stream: bool
) -> tuple[int, int]:
    from whippet.app.cli.remote.topic_tables import Table  # noqa: PLC0415

    with Table(file, form, as_stream=as_stream) as table:
        async for chunk in source.chunks():
            # pyarrow takes a while, and has threads of its own.
            await asyncio.to_thread(table.add, chunk)
            progress.count(chunk)
    return progress.messages, progress.size


@contextlib.contextmanager
def complete_or_not_at_all(path: str) -> Iterator[BinaryIO]:
    """Yields a file that gets its name when the block ends, unless it ends with an error: then it is gone. What is no
    file, such as a named pipe, is written to directly."""
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as other:
            yield other
        return
    temporary = f"{path}.{secrets.token_hex(4)}.part"
    with open(temporary, "xb") as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


class _Progress:
    """Counts, and shows the rate on a terminal."""

    def __init__(self) -> None:
        self.messages = self.size = 0
        self._meter = Meter()

    def count(self, chunk: list[Record]) -> None:
        self.messages += len(chunk)
        self.size += sum(len(record.payload) for record in chunk)
        self._meter.show(self.messages, self.size)

    def end(self) -> None:
        self._meter.end()
