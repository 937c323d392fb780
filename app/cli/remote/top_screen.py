"""What `whippet top` shows on a terminal, and what its keys do. It only draws: top.py reads the server."""

from __future__ import annotations

import msgspec
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from whippet.app.cli.remote.activity import Activity, GroupActivity, TopicActivity
from whippet.app.cli.remote.output import duration_text, printable, size_text
from whippet.app.cli.remote.terminal import END

HEAD_LINES = 6
HELP = "q quit   left right sort   r reverse   g topics or groups   up down scroll"
LAGS = 10_000
"""More than this behind is shown in yellow."""

TOPIC_COLUMNS = (
    ("topic", "topic", "name"),
    ("partitions_count", "partitions", "number"),
    ("messages_count", "messages", "number"),
    ("size_bytes", "size", "size"),
    ("in_per_second", "in/s", "number"),
    ("in_size", "in bytes/s", "size"),
    ("out_per_second", "out/s", "number"),
    ("lag", "lag", "lag"),
)
GROUP_COLUMNS = (
    ("topic", "topic", "name"),
    ("group", "group", "name"),
    ("members_count", "members", "number"),
    ("out_per_second", "out/s", "number"),
    ("lag", "lag", "lag"),
)


class Screen:
    """What was read last, and what the user has chosen."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._activity: Activity | None = None
        self._trouble = ""
        self._groups = False
        self._sorted_by = [4, 4]
        """The column of either table."""
        self._reversed = [True, True]
        self._first = 0
        self._page = 10
        self.is_over = False

    def show(self, activity: Activity) -> None:
        self._activity, self._trouble = activity, ""

    def show_trouble(self, sentence: str) -> None:
        self._trouble = sentence

    def press(self, key: str) -> None:
        which = int(self._groups)
        columns = GROUP_COLUMNS if self._groups else TOPIC_COLUMNS
        if key in ("q", "Q", "escape", END, "\x04"):
            self.is_over = True
        elif key in ("left", "right", "s"):
            step = -1 if key == "left" else 1
            self._sorted_by[which] = (self._sorted_by[which] + step) % len(columns)
            # Names from the first one on, numbers from the largest one on.
            self._reversed[which] = columns[self._sorted_by[which]][2] != "name"
        elif key == "r":
            self._reversed[which] = not self._reversed[which]
        elif key == "g":
            self._groups, self._first = not self._groups, 0
        else:
            step = {"up": -1, "down": 1, "page up": -self._page, "page down": self._page}.get(key, 0)
            self._first = 0 if key == "home" else max(0, self._first + step)

    # ---------------------------------------------------------------------------------------------------- drawing

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._head()
        shards = len(self._activity.shards) + 1 if self._activity and self._activity.shards else 0
        self._page = max(1, (options.height or console.height) - HEAD_LINES - shards)
        if self._activity is not None:
            yield self._table(self._activity)
            if shards:
                yield _shards(self._activity)
        yield Text(HELP, style="dim", no_wrap=True, overflow="ellipsis")

    def _head(self) -> list[Text]:
        found = self._activity
        first = Text(f"whippet top  {printable(self._server)}", style="bold", no_wrap=True, overflow="ellipsis")
        if self._trouble:
            first.append(f"  {printable(self._trouble)}", style="bold red")
        if found is None:
            return [first, Text("reading ...")]
        if found.version:
            first.append(f"  {printable(found.version)}", style="not bold")
        if found.run_time is not None:
            first.append(f"  up {duration_text(found.run_time)}", style="not bold")
        machine = []
        if found.cpu_percent is not None and found.memory is not None and found.free_disk is not None:
            machine.append(f"CPU {found.cpu_percent:.0f} %   memory {size_text(found.memory)}")
            machine.append(f"free disk {size_text(found.free_disk)}")
        if found.connections is not None:
            kinds = ", ".join(f"{count} {name}" for name, count in sorted(found.connections.items()))
            machine.append(f"connections {kinds or 'none'}")
        rates = (
            f"in {found.in_per_second:,.0f}/s, {size_text(found.in_size)}/s   out {found.out_per_second:,.0f}/s   "
            f"lag {found.lag:,}   topics {found.topics_count:,}"
        )
        lines = ["   ".join(machine) or "the user may not read the statistics", rates]
        return [first, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines)]

    def _table(self, found: Activity) -> Table:
        which, columns = int(self._groups), GROUP_COLUMNS if self._groups else TOPIC_COLUMNS
        field = columns[self._sorted_by[which]][0]
        rows: list[TopicActivity] | list[GroupActivity] = found.groups if self._groups else found.topics
        every = sorted(rows, key=lambda row: _order(getattr(row, field)), reverse=self._reversed[which])
        self._first = min(self._first, max(0, len(every) - self._page))
        table = Table(box=None, pad_edge=False, expand=True, header_style="reverse")
        for number, (_, title, kind) in enumerate(columns):
            mark = "" if number != self._sorted_by[which] else " v" if self._reversed[which] else " ^"
            justify = "left" if kind == "name" else "right"
            table.add_column(f"{title}{mark}", justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
        for row in every[self._first : self._first + self._page]:
            table.add_row(*(_cell(kind, getattr(row, name)) for name, _, kind in columns))
        return table


def _order(value: str | float | None) -> tuple[bool, str | float]:
    """What has no value comes as the least."""
    return (value is not None, value if value is not None else 0)


def _cell(kind: str, value: str | float | None) -> Text:
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, str):
        # What users have chosen is no markup, and does not command the terminal.
        return Text(printable(value))
    if kind == "size":
        return Text(size_text(int(value)), style="" if value else "dim")
    style = "yellow" if kind == "lag" and value > LAGS else "" if value else "dim"
    return Text(f"{value:,.0f}", style=style)


def _shards(found: Activity) -> Table:
    table = Table(box=None, pad_edge=False, header_style="reverse")
    for title in ("shard", "waiting", "writes/s", "syncs/s"):
        table.add_column(title, justify="right")
    for each in found.shards:
        table.add_row(
            *(f"{value:,.0f}" if not isinstance(value, str) else value for value in msgspec.structs.astuple(each))
        )
    return table
