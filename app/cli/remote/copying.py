"""`whippet copy`: messages of a topic to another one, on this or another server."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from whippet.app.cli.remote import destination, rows
from whippet.app.cli.remote.failures import Failure, Unreachable, UsageFailure
from whippet.app.cli.remote.framework import Located, connect, identifier, required
from whippet.app.cli.remote.progress import Meter

if TYPE_CHECKING:
    from whippet.app.cli.remote.topic_copy import Copied, End
    from whippet.app.client import Client

IDLE_S = 0.1
CLOSE_S = 5.0
AGAIN_S = 1.0
"""The pause before a server that is gone is tried again."""

From = Annotated[
    str, typer.Argument(metavar="FROM", help="STREAM/TOPIC, CONTEXT/STREAM/TOPIC, or iggy://host:port/STREAM/TOPIC")
]
To = Annotated[str, typer.Argument(metavar="TO", help="the same; its partitions get what the same ones of FROM have")]
Partitions = Annotated[str | None, typer.Option(metavar="LIST", help="only these partitions, such as 0,2,5-7")]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="go on with what arrives, and when a server comes back, until Ctrl-C")
]
Create = Annotated[bool, typer.Option("--create", help="create the stream and the topic if they do not exist")]
Restart = Annotated[bool, typer.Option("--restart", help="forget what earlier copies have done, and copy everything")]


class Place(msgspec.Struct, frozen=True):
    server: destination.Found
    stream: str
    topic: str

    @property
    def name(self) -> str:
        return f"{self.server.server}/{self.stream}/{self.topic}"


async def copy(
    on: Located,
    source: From,
    target: To,
    partitions: Partitions = None,
    follow: Follow = False,
    create: Create = False,
    restart: Restart = False,
) -> rows.Copied:
    """Each message is copied once, even if the command is killed: repeat it, and it continues where it was. Ids,
    headers, origin times and the order within a partition stay; offsets and times are those of the destination. How far
    it is, it stores as offsets of consumers whose names begin with whippet-copy. Credentials of a URL come from the
    options or the environment, and those of a context from there."""
    from whippet.app.client import Disconnected  # noqa: PLC0415 -- not for --help

    theirs, ours = place_of(on, source), place_of(on, target)
    if theirs == ours:
        raise UsageFailure("FROM and TO are the same topic")
    wanted = None if partitions is None else numbers(partitions)
    progress, is_connected = _Progress(), False
    while True:
        try:
            async with await connect(theirs.server) as reading, await connect(ours.server) as writing:
                is_connected = progress.has_begun = True
                if create:
                    await _create(reading, theirs, writing, ours)
                ends = _end(reading, theirs), _end(writing, ours)
                await _copy(*ends, wanted, progress, follow=follow, restart=restart)
        except Disconnected as error:
            progress.end()
            sentence = str(error).rstrip(".")
            if not progress.has_begun:
                raise
            if not follow:
                raise Unreachable(f"{sentence}; repeat the command: it continues where it was") from None
            if is_connected:
                on.note(f"{sentence}; trying again")
            # What was in progress is compared when there is a connection again.
            progress.keep()
            is_connected = restart = False
            await asyncio.sleep(AGAIN_S)
        else:
            progress.end()
            return rows.Copied(progress.messages, progress.size, progress.found)


def place_of(on: Located, text: str) -> Place:
    scheme, separator, rest = text.partition("://")
    if separator:
        place, question, query = rest.partition("?")
        parts = place.split("/")
        if len(parts) != 3 or not all(parts):
            raise UsageFailure(f"{text!r} is no topic of a server; an example is iggy://host:8090/orders/eu")
        server = f"{scheme}://{parts[0]}{question}{query}"
        given = msgspec.structs.replace(on.given, server=server, context=None)
    else:
        parts = text.split("/")
        if len(parts) not in (2, 3) or not all(parts):
            raise UsageFailure(f"{text!r} is no topic; examples are orders/eu and production/orders/eu")
        given = on.given if len(parts) == 2 else destination.Given(context=parts[0])
    return Place(destination.find(given), parts[-2], parts[-1])


def numbers(text: str) -> list[int]:
    """Returns the numbers of a list such as 0,2,5-7."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip(), re.ASCII)
        if match is None:
            raise UsageFailure(f"{text!r} is no list of partitions; an example is 0,2,5-7")
        first = int(match[1])
        last = int(match[2] or first)
        if not first <= last < first + 100_000:
            raise UsageFailure(f"{part.strip()} is no range of partitions")
        found.update(range(first, last + 1))
    return sorted(found)


def _end(client: Client, place: Place) -> End:
    from whippet.app.cli.remote.topic_copy import End  # noqa: PLC0415

    return End(client, (identifier(place.stream), identifier(place.topic)), place.name)


async def _create(reading: Client, theirs: Place, writing: Client, ours: Place) -> None:
    source = identifier(theirs.stream), identifier(theirs.topic)
    found = required(await reading.get_topic(*source), f"the topic {theirs.name}", "see `whippet topic list`")
    stream, topic = identifier(ours.stream), identifier(ours.topic)
    if await writing.get_stream(stream) is None:
        _must_be_a_name(ours.stream)
        await writing.create_stream(ours.stream)
    if await writing.get_topic(stream, topic) is None:
        _must_be_a_name(ours.topic)
        info = found.info
        await writing.create_topic(
            stream,
            ours.topic,
            len(found.partitions),
            compression_algorithm=info.compression_algorithm,
            message_expiry=info.message_expiry,
            max_topic_size=info.max_topic_size,
            replication_factor=1,
        )


def _must_be_a_name(text: str) -> None:
    if isinstance(identifier(text), int):
        raise UsageFailure(f"{text} is an id, and nothing has it: only names can be created")


async def _copy(
    source: End, target: End, wanted: list[int] | None, progress: _Progress, *, follow: bool, restart: bool
) -> None:
    from whippet.app.cli.remote.topic_copy import Copy  # noqa: PLC0415
    from whippet.app.client import Disconnected  # noqa: PLC0415

    copy = Copy(source, target, progress.show)
    try:
        await copy.open(await _chosen(source, target, wanted), restart=restart)
        while await copy.round() or follow:
            if follow and not copy.was_busy:
                await asyncio.sleep(IDLE_S)
        await copy.mark()
    finally:
        with contextlib.suppress(Disconnected, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await copy.close()


async def _chosen(source: End, target: End, wanted: list[int] | None) -> list[int]:
    advice = "see `whippet topic list`, or use --create"
    theirs, ours = await source.client.get_topic(*source.place), await target.client.get_topic(*target.place)
    required(theirs, f"the topic {source.name}", "see `whippet topic list`")
    required(ours, f"the topic {target.name}", advice)
    there, here = ({each.id for each in topic.partitions} for topic in (theirs, ours))
    chosen = sorted(there) if wanted is None else wanted
    for number in chosen:
        if number not in there:
            required(None, f"partition {number} of {source.name}", f"it has {len(there)}")
        if number not in here:
            raise Failure(
                f"{target.name} has {len(here)} partitions, and partition {number} is to be copied: add some with "
                "`whippet partition create`"
            )
    return chosen


class _Progress:
    """Adds up what was copied over several connections, and shows it on a terminal."""

    def __init__(self) -> None:
        self.has_begun = False
        """Both servers were there."""
        self._before = (0, 0, 0)
        self.messages = self.size = self.found = 0
        self._meter = Meter()

    def show(self, copied: Copied) -> None:
        messages, size, found = self._before
        self.messages, self.size, self.found = messages + copied.messages, size + copied.size, found + copied.found
        self._meter.show(self.messages, self.size)

    def keep(self) -> None:
        self._before = self.messages, self.size, self.found

    def end(self) -> None:
        self._meter.end()
