"""`whippet tail` and `whippet cat`: the messages of a topic, as lines.

All partitions are polled in turn, several requests at once. A payload is printed as it is, with a line feed after it;
`--output ndjson` prints offset, time, headers and payload of each message as an object.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from whippet.app.cli.remote import destination, json_text, name_completion, output, starts
from whippet.app.cli.remote.activity import end_of
from whippet.app.cli.remote.failures import UsageFailure
from whippet.app.cli.remote.framework import Located, Online, connect, identifier, required
from whippet.app.cli.remote.messages import row_of
from whippet.app.cli.remote.starts import MANY

if TYPE_CHECKING:
    from whippet.app.client import Client
    from whippet.app.client.consumer import Received
    from whippet.app.commands.requests import Strategy
    from whippet.app.commands.responses import Polled

REFRESH_S = 5.0
"""How often a tail looks for new partitions."""
IDLE_S = 0.1
RECONNECT_S_MAX = 5.0
"""The protocol has no long polls: after the last message, the server is asked again this often."""
NAME = "whippet"
"""The consumer of the polls. No offsets are stored."""

Place = Annotated[
    str, typer.Argument(metavar="STREAM/TOPIC", help="their names or ids", autocompletion=name_completion.places)
]
TailFrom = Annotated[
    str,
    typer.Option("--from", metavar="WHERE", help="first, end, -10, an offset, 2h-ago, or 2026-07-31T12:00:00Z"),
]
Only = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="only this partition")]
Filter = Annotated[
    str | None, typer.Option("--filter", help="only messages whose JSON is so, such as '$.amount > 100'")
]
GroupName = Annotated[
    str | None, typer.Option("--group", "-g", help="read as a member of this consumer group, and store offsets")
]
Many = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="stop after this many messages")]


def split(place: str) -> tuple[int | str, int | str]:
    stream, slash, topic = place.partition("/")
    if not (stream and slash and topic):
        raise UsageFailure(f"{place!r} is no stream and topic; an example is orders/eu")
    return identifier(stream), identifier(topic)


async def tail(
    on: Located,
    topic: Place,
    begin: TailFrom = "end",
    partition: Only = None,
    condition: Filter = None,
    group: GroupName = None,
    limit: Many = None,
) -> None:
    """Prints messages as they arrive, until Ctrl-C. After a restart of the server it continues where it was."""
    from whippet.app.client import Reconnect  # noqa: PLC0415 -- not for --help

    place, printer = split(topic), _Printer(on.form, condition, limit)
    start, wanted = starts.parse(begin), Reconnect(None, interval_max_s=RECONNECT_S_MAX)
    if group is not None:
        if partition is not None or begin != "end":
            raise UsageFailure("--group continues after the group's offsets: it excludes --from and --partition")
        async with await connect(destination.find(on.given), reconnect=wanted) as client:
            await _read_as_member(client, place, group, printer)
        return
    async with await connect(destination.find(on.given), reconnect=wanted) as client:
        reader = await _Reader.of(client, topic, place, partition, start)
        refreshed = time.monotonic()
        while not printer.is_full:
            if not await reader.round(printer):
                await asyncio.sleep(IDLE_S)
            if partition is None and time.monotonic() - refreshed >= REFRESH_S:
                await reader.add_new_partitions()
                refreshed = time.monotonic()


async def cat(
    on: Online,
    topic: Place,
    begin: TailFrom = "first",
    partition: Only = None,
    condition: Filter = None,
    limit: Many = None,
) -> None:
    """Prints what is there now, and ends, also if more arrives meanwhile."""
    printer = _Printer(on.form, condition, limit)
    reader = await _Reader.of(on.client, topic, split(topic), partition, starts.parse(begin), ends=True)
    while not printer.is_full and await reader.round(printer):
        pass


async def _read_as_member(client: Client, place: tuple[int | str, int | str], group: str, printer: _Printer) -> None:
    from whippet.app.client import GroupConsumer  # noqa: PLC0415

    async with GroupConsumer(client, *place, identifier(group)) as consumer:
        async for message in consumer:
            printer.show(iter([message]))
            if printer.is_full:
                return


class _Printer:
    """Writes messages in the chosen form."""

    def __init__(self, form: output.Format, condition: str | None, limit: int | None) -> None:
        from whippet.app.cli.remote import filters  # noqa: PLC0415

        self._as_rows = form in (output.Format.JSON, output.Format.NDJSON)
        self._holds: Callable[[bytes], bool] | None = filters.parse(condition) if condition is not None else None
        self._left = limit
        self._escapes = sys.stdout.isatty()
        self._colours = output.is_colourful(sys.stdout)

    @property
    def is_full(self) -> bool:
        return self._left == 0

    def show(self, messages: Iterator[Received]) -> None:
        lines = []
        for message in messages:
            if self.is_full:
                break
            if self._holds is not None and not self._holds(message.payload):
                continue
            if self._left is not None:
                self._left -= 1
            lines.append(self._line(message))
        if lines:
            sys.stdout.flush()
            sys.stdout.buffer.write(b"".join(lines))
            sys.stdout.buffer.flush()

    def _line(self, message: Received) -> bytes:
        line = msgspec.json.encode(row_of(message)) if self._as_rows else message.payload
        if self._escapes:
            # Payloads may be from anybody: none of them commands the terminal.
            text = line.decode(errors="replace")
            is_json = self._as_rows or json_text.is_json(text)
            line = (json_text.shown(text, colours=self._colours) if is_json else output.printable(text)).encode()
        return line + b"\n"


class _Reader:
    """The positions in the partitions of a topic."""

    def __init__(
        self,
        client: Client,
        name: str,
        place: tuple[int | str, int | str],
        positions: dict[int, tuple[Strategy, int]],
        ends: dict[int, int] | None,
    ) -> None:
        self._client = client
        self._name = name
        self._place = place
        self._positions = positions
        self._ends = ends
        """Where to stop: the offsets after the last messages."""
        self._reached: set[int] = set()
        """The partitions whose position was once the end, or after a message: an offset from the user may be one that
        comes."""

    @classmethod
    async def of(
        cls,
        client: Client,
        name: str,
        place: tuple[int | str, int | str],
        partition: int | None,
        start: tuple[Strategy, int] | None,
        *,
        ends: bool = False,
    ) -> _Reader:
        advice = f"`whippet topic list {place[0]}` shows those that there are"
        found = required(await client.get_topic(*place), f"the topic {name}", advice)
        every = [each.id for each in found.partitions]
        if partition is not None and partition not in every:
            required(None, f"partition {partition} of {name}", f"it has {len(every)}")
        chosen = every if partition is None else [partition]
        positions = {each: start or (await _end(client, place, each), MANY) for each in chosen}
        stops = {each.id: end_of(each) for each in found.partitions} if ends else None
        reader = cls(client, name, place, positions, stops)
        if start is None:
            reader._reached.update(chosen)
        return reader

    async def add_new_partitions(self) -> None:
        """They are read from their first message on."""
        from whippet.app.client.commands import FIRST  # noqa: PLC0415

        found = required(await self._client.get_topic(*self._place), f"the topic {self._name}", "it is gone")
        for each in found.partitions:
            self._positions.setdefault(each.id, (FIRST, MANY))

    async def round(self, printer: _Printer) -> bool:
        """Polls every partition once, and returns False if there was nothing."""
        from whippet.app.client.commands import FIRST  # noqa: PLC0415

        polls = [
            _poll(self._client, self._place, each, strategy, count)
            for each, (strategy, count) in self._positions.items()
        ]
        any_messages = False
        for each, polled in zip(list(self._positions), await asyncio.gather(*polls), strict=True):
            if polled.messages_count:
                any_messages = True
                self._reached.add(each)
                after, _ = self._positions[each] = _after(polled)
                messages = _received(polled)
                if self._ends is not None:
                    messages = _before(self._ends[each], messages)
                    if after.value >= self._ends[each]:
                        del self._positions[each]
                printer.show(messages)
            elif each in self._reached and self._positions[each][0].value > polled.current_offset + 1:
                # The partition was purged: its offsets start from 0 again.
                self._reached.discard(each)
                self._positions[each] = FIRST, MANY
        return any_messages


def _poll(
    client: Client, place: tuple[int | str, int | str], partition: int, strategy: Strategy, count: int
) -> asyncio.Future[Polled]:
    from whippet.app.commands.requests import Consumer, ConsumerKind  # noqa: PLC0415

    consumer = Consumer(ConsumerKind.CONSUMER, NAME)
    return client.poll_messages(*place, consumer, partition_id=partition, strategy=strategy, count=count)


async def _end(client: Client, place: tuple[int | str, int | str], partition: int) -> Strategy:
    """Returns the offset after the last message, also of a partition that retention has emptied."""
    from whippet.app.client.commands import LAST, from_offset  # noqa: PLC0415

    polled = await _poll(client, place, partition, LAST, 1)
    if polled.messages_count:
        return _after(polled)[0]
    return from_offset(polled.current_offset + 1 if polled.current_offset else 0)


def _after(polled: Polled) -> tuple[Strategy, int]:
    from whippet.app.client.commands import from_offset  # noqa: PLC0415
    from whippet.app.client.consumer import last_offset  # noqa: PLC0415

    return from_offset(last_offset(polled) + 1), MANY


def _before(end: int, messages: Iterator[Received]) -> Iterator[Received]:
    return (message for message in messages if message.offset < end)


def _received(polled: Polled) -> Iterator[Received]:
    from whippet.app.client.consumer import received  # noqa: PLC0415

    return received(polled)
