"""The table of subcommands: what is typed, and where the function is. It imports none of them."""

from __future__ import annotations

from typing import NamedTuple


class Subcommand(NamedTuple):
    words: tuple[str, ...]
    """A subcommand, as typed after `whippet`."""
    module: str
    summary: str
    """A line without a full stop, for lists; the docstring of the function follows it in the help."""
    function: str = "run"
    """Its parameters are the arguments and options. It returns the exit code."""
    aliases: tuple[str, ...] = ()
    """What may be typed instead of the last word."""


class Group(NamedTuple):
    summary: str
    aliases: tuple[str, ...] = ()


SUBCOMMANDS = (
    Subcommand(("serve",), "whippet.app.cli.serve", "run the gateway until SIGTERM or Ctrl-C"),
    Subcommand(
        ("config",), "whippet.app.cli.config", "show the effective configuration and where each value comes from"
    ),
    Subcommand(
        ("check",), "whippet.app.cli.check", "read every message of a data folder or an archive and report damage"
    ),
    Subcommand(("repair",), "whippet.app.cli.repair", "repair a damaged data folder from its archive"),
    Subcommand(("backup",), "whippet.app.cli.backup", "copy a data folder, also while a server has it open"),
    Subcommand(("restore",), "whippet.app.cli.restore", "make a data folder from the archive"),
    Subcommand(
        ("keys", "new"), "whippet.app.cli.keys", "create a key file for encryption at rest, with one key", "new"
    ),
    Subcommand(("keys", "rotate"), "whippet.app.cli.keys", "add a key; older data stays readable", "rotate"),
    Subcommand(("keys", "list"), "whippet.app.cli.keys", "list the ids of the keys in a key file", "show"),
    Subcommand(
        ("root-password",),
        "whippet.app.cli.root_password",
        "set a new password for the root user while the server is stopped",
    ),
    Subcommand(
        ("import", "iggy"), "whippet.app.cli.import_iggy", "import the data folder of a stopped Apache Iggy server"
    ),
    Subcommand(("certs",), "whippet.app.cli.certs", "create an authority and a certificate for development"),
    Subcommand(
        ("pipeline", "run"), "whippet.app.cli.pipeline_run", "run a pipeline on Spark: source, transforms, sinks"
    ),
    Subcommand(
        ("pipeline", "check"),
        "whippet.app.cli.pipeline_check",
        "report what a pipeline would do, or what is wrong with it",
    ),
    Subcommand(
        ("bench", "storage"), "whippet.bench.storage", "measure the store on this machine, next to its yardsticks"
    ),
    Subcommand(
        ("bench", "archive"), "whippet.bench.archive", "measure the archive on this machine, next to its yardsticks"
    ),
    Subcommand(("bench", "tcp"), "whippet.bench.tcp", "measure the server over TCP, next to a bare one"),
    Subcommand(("bench", "http"), "whippet.bench.http", "measure the HTTP API, next to a bare application"),
    Subcommand(("bench", "quic"), "whippet.bench.quic", "measure the server over QUIC, next to plain aioquic"),
    Subcommand(("bench", "ws"), "whippet.bench.ws", "measure the server over WebSocket, next to a bare one"),
    Subcommand(("bench", "spark"), "whippet.bench.spark", "measure the data source of Spark, next to Parquet"),
    Subcommand(("version",), "whippet.app.cli.version", "print the version"),
)

GROUPS = {
    "bench": Group("measure speed"),
    "import": Group("copy the data of another server"),
    "keys": Group("keys for encryption at rest"),
    "pipeline": Group("move data with Spark"),
}
"""The first words that several subcommands have in common."""
