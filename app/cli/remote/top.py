"""`whippet top`: a live view of rates, lag, connections and memory; without a terminal, snapshots of the same."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from whippet.app.cli.remote import activity, destination, output
from whippet.app.cli.remote.activity import Activity
from whippet.app.cli.remote.failures import UsageFailure
from whippet.app.cli.remote.framework import Located, connect

if TYPE_CHECKING:
    from whippet.app.cli.remote.top_screen import Screen
    from whippet.app.client import Client

INTERVAL = "2s"
INTERVAL_MIN_S = 0.1
SILENT_S = 3.0
"""A server that takes longer than this to answer is said not to."""

Interval = Annotated[str, typer.Option(metavar="DURATION", help="the time between two readings, such as 500ms or 5s")]
Times = Annotated[
    int | None,
    typer.Option("--count", "-c", min=1, help="how many snapshots (default: one; with ndjson, until Ctrl-C)"),
]
Metrics = Annotated[
    str | None,
    typer.Option(metavar="URL", help="show the shards, too: the server's metrics, http://127.0.0.1:3000/metrics"),
]


async def top(
    on: Located, interval: Interval = INTERVAL, count: Times = None, metrics: Metrics = None
) -> Activity | None:
    """On a terminal: q ends it, left and right choose the column to sort by, r reverses the order, g shows the groups
    instead of the topics, and up and down scroll. Elsewhere it prints a snapshot, and with `--output ndjson` one after
    each interval. The rate out is that at which groups store offsets: the protocol has no other. Of more than 200
    topics, it shows those with the most messages."""
    from whippet.app.client import Reconnect  # noqa: PLC0415 -- not for --help

    seconds = _seconds(interval)
    if metrics is not None and "@" in metrics:
        raise UsageFailure("--metrics must not have a user or a password: other users of this machine could see it")
    found = destination.find(on.given)
    is_live = on.form is output.Format.TABLE and sys.stdout.isatty() and os.environ.get("TERM") not in (None, "dumb")
    pause = min(seconds, 1.0)
    reconnect = Reconnect(None, pause, pause) if is_live else None
    async with await connect(found, reconnect=reconnect) as client:
        if is_live:
            await _live(client, found.server, seconds, count, metrics)
            return None
        before = await activity.read(client, metrics)
        left = count or (None if on.form is output.Format.NDJSON else 1)
        while left is None or left > 0:
            await asyncio.sleep(seconds)
            after = await activity.read(client, metrics)
            on.show(activity.between(before, after, found.server))
            sys.stdout.flush()
            before, left = after, None if left is None else left - 1
    return None


def _seconds(text: str) -> float:
    from whippet.app.config.formats import Invalid, parse_duration  # noqa: PLC0415

    try:
        seconds = parse_duration(text)
    except Invalid:
        raise UsageFailure(f"{text!r} is no duration; examples are 500ms and 5s") from None
    if seconds < INTERVAL_MIN_S:
        raise UsageFailure(f"--interval {text}: at least {INTERVAL_MIN_S} s")
    return seconds


async def _live(client: Client, server: str, seconds: float, count: int | None, metrics: str | None) -> None:
    from rich.console import Console  # noqa: PLC0415 -- only for a terminal
    from rich.live import Live  # noqa: PLC0415

    from whippet.app.cli.remote.terminal import keys  # noqa: PLC0415
    from whippet.app.cli.remote.top_screen import Screen  # noqa: PLC0415

    screen, changed = Screen(server), asyncio.Event()

    def on_key(key: str) -> None:
        screen.press(key)
        changed.set()

    with keys(on_key, changed.set), Live(screen, console=Console(), screen=True, auto_refresh=False) as live:
        reading = asyncio.create_task(_keep_reading(client, screen, changed, server, seconds, count, metrics))
        try:
            while not screen.is_over:
                live.refresh()
                changed.clear()
                await _either(changed, reading)
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading


async def _either(changed: asyncio.Event, reading: asyncio.Task[None]) -> None:
    """Waits until there is something to draw. Raises what has ended the reading."""
    waiting = asyncio.create_task(changed.wait())
    try:
        await asyncio.wait((waiting, reading), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if reading.done():
        reading.result()


async def _keep_reading(
    client: Client,
    screen: Screen,
    changed: asyncio.Event,
    server: str,
    seconds: float,
    count: int | None,
    metrics: str | None,
) -> None:
    before = None
    while count is None or count > 0:
        after = await _read(client, screen, changed, metrics)
        screen.show(activity.between(before or after, after, server))
        changed.set()
        if before is not None:
            count = None if count is None else count - 1
        before = after
        await asyncio.sleep(seconds)
    screen.is_over = True
    changed.set()


async def _read(client: Client, screen: Screen, changed: asyncio.Event, metrics: str | None) -> activity.Reading:
    """The client waits for a server that is gone; meanwhile the screen says so."""
    reading = asyncio.create_task(activity.read(client, metrics))
    try:
        while True:
            done, _ = await asyncio.wait((reading,), timeout=SILENT_S)
            if done:
                return reading.result()
            state = "does not answer" if client.is_connected else "is not reachable: trying again"
            screen.show_trouble(f"the server {state}")
            changed.set()
    finally:
        reading.cancel()
