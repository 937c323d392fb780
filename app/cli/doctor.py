"""`whippet doctor`: checks what a server on this machine depends on, and says what to change. It changes nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, TextIO

import typer

from whippet.app.cli import exit_codes
from whippet.app.cli.remote import output
from whippet.app.diagnosis.finding import Finding, Status

if TYPE_CHECKING:
    from whippet.app.config import Config

TIME_SERVER = "pool.ntp.org"
COLOURS = {Status.OK: "\x1b[32m", Status.WARN: "\x1b[33m", Status.FAIL: "\x1b[31m"}
PLAIN = "\x1b[0m"

Output = Annotated[output.Format, typer.Option("--output", help="the form of the findings")]
TimeServer = Annotated[
    str,
    typer.Option(metavar="HOST", help="the server whose time the clock is compared with (SNTP); `none` asks nobody"),
]


class Row(output.Row, frozen=True):
    identity: ClassVar[str] = "found"
    status: Status
    check: str
    found: str
    advice: str


def run(form: Output = output.Format.TABLE, time_server: TimeServer = TIME_SERVER) -> int:
    """Checks the configuration, the limits of the machine, the disk of the data folder, the clock, the ports and the
    certificates; with or without a running server. Exit code 1: something fails; what is marked `warn` is worth a
    look."""
    rows = []
    for found in findings(None if time_server in ("", "none") else time_server):
        row = Row(found.status, found.check, found.found, found.advice)
        rows.append(row)
        if form is output.Format.TABLE:
            _show(row, sys.stdout)
    failed, warned = (sum(row.status is status for row in rows) for status in (Status.FAIL, Status.WARN))
    if form is output.Format.TABLE:
        print(f"{len(rows)} findings: {failed} fail, {warned} warn")
    elif form is output.Format.QUIET:
        output.show([row for row in rows if row.status is not Status.OK], form)
    else:
        output.show(rows, form)
    return exit_codes.FAILED if failed else exit_codes.DONE


def findings(time_server: str | None) -> Iterator[Finding]:
    # Not for --help.
    from whippet.app.diagnosis import certificates, clock, configuration, disk, machine, ports  # noqa: PLC0415

    loaded, found = configuration.loaded(os.environ, os.getcwd())
    yield from found
    if loaded is not None:
        config = loaded.config
        server = _server(config)
        yield from machine.findings(config, server)
        yield from disk.findings(config, server)
    yield from clock.findings(time_server)
    if loaded is not None:
        yield from ports.findings(config, server)
        yield from certificates.findings(config)


def _server(config: Config) -> int | None:
    """Returns the process that has the data folder open."""
    from whippet.app.config.store import store_options  # noqa: PLC0415
    from whippet.app.diagnosis import processes  # noqa: PLC0415
    from whippet.storage.layout import LOCK_FILE, Layout  # noqa: PLC0415

    return processes.holder_of_lock(Layout(store_options(config)).below(LOCK_FILE))


def _show(row: Row, out: TextIO) -> None:
    status = row.status.ljust(4)
    if output.is_colourful(out):
        status = f"{COLOURS[row.status]}{status}{PLAIN}"
    advice = f"; {row.advice}" if row.advice else ""
    print(f"{status}  {row.check}: {output.printable(row.found + advice)}", file=out, flush=True)
