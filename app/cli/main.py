"""The command `whippet`: a table of subcommands, the parser made from it, and the call of the chosen one.

The module of a subcommand is imported only when it is chosen: `--help` or a small command never waits for the server,
the store or numpy to load. A usage error exits with code 2, as in argparse.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

SIGINT_EXIT = 130


class Subcommand(NamedTuple):
    words: tuple[str, ...]
    """A subcommand, as typed after `whippet`."""
    module: str
    """Has `add_arguments(parser)` and `run(arguments) -> exit code`."""
    summary: str


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
    Subcommand(("keys", "new"), "whippet.app.cli.keys_new", "create a key file for encryption at rest, with one key"),
    Subcommand(("keys", "rotate"), "whippet.app.cli.keys_rotate", "add a key to a key file; older data stays readable"),
    Subcommand(("keys", "list"), "whippet.app.cli.keys_list", "list the ids of the keys in a key file"),
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
    Subcommand(("bench", "tcp"), "whippet.bench.tcp", "measure the server over TCP, next to a bare one"),
    Subcommand(("bench", "http"), "whippet.bench.http", "measure the HTTP API, next to a bare application"),
    Subcommand(("bench", "quic"), "whippet.bench.quic", "measure the server over QUIC, next to plain aioquic"),
    Subcommand(("bench", "ws"), "whippet.bench.ws", "measure the server over WebSocket, next to a bare one"),
    Subcommand(("bench", "spark"), "whippet.bench.spark", "measure the data source of Spark, next to Parquet"),
    Subcommand(("version",), "whippet.app.cli.version", "print the version"),
)

GROUPS = {
    "bench": "measure speed",
    "import": "copy the data of another server",
    "keys": "keys for encryption at rest",
    "pipeline": "move data with Spark",
}
"""Summaries of the first words that group several subcommands."""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = _chosen(arguments)
    parser = _parser(chosen)
    parsed = parser.parse_args(arguments)
    if chosen is None:
        parser.error("the subcommand must come first")
    try:
        return int(importlib.import_module(chosen.module).run(parsed))
    except KeyboardInterrupt:
        return SIGINT_EXIT


def _chosen(arguments: Sequence[str]) -> Subcommand | None:
    for subcommand in SUBCOMMANDS:
        if tuple(arguments[: len(subcommand.words)]) == subcommand.words:
            return subcommand
    return None


def _parser(chosen: Subcommand | None) -> argparse.ArgumentParser:
    """Knows the names of all subcommands, but only the arguments of the chosen one."""
    root = argparse.ArgumentParser(
        prog="whippet",
        description="Whippet, a persistent message-streaming gateway compatible with Apache Iggy.",
        epilog="`whippet <subcommand> --help` describes a subcommand.",
    )
    root.add_argument("-V", "--version", action=_ShowVersion, nargs=0, help="print the version and exit")
    levels: dict[tuple[str, ...], argparse._SubParsersAction[argparse.ArgumentParser]] = {
        (): root.add_subparsers(title="subcommands", metavar="<subcommand>", required=True)
    }
    for subcommand in SUBCOMMANDS:
        *group, word = subcommand.words
        if tuple(group) not in levels:
            parser = levels[()].add_parser(group[0], help=GROUPS[group[0]], description=GROUPS[group[0]])
            levels[tuple(group)] = parser.add_subparsers(title="subcommands", metavar="<subcommand>", required=True)
        parser = levels[tuple(group)].add_parser(word, help=subcommand.summary, description=subcommand.summary)
        if subcommand is chosen:
            importlib.import_module(subcommand.module).add_arguments(parser)
    return root


class _ShowVersion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.exit(importlib.import_module("whippet.app.cli.version").run(argparse.Namespace()))


if __name__ == "__main__":
    sys.exit(main())
