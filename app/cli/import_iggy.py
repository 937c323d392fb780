"""`whippet import iggy`: copies the data folder of a stopped Apache Iggy server into a data folder of Whippet."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Annotated

import click
import msgspec
import typer

from whippet.app.access.users import DEFAULT_NAME
from whippet.app.config import ConfigError, load
from whippet.app.config.store import store_options
from whippet.app.encryption_keys import with_keys
from whippet.app.importing.iggy.cipher import Cipher, cipher_of
from whippet.app.importing.iggy.importer import Finished, Interrupted, Root
from whippet.app.importing.iggy.importer import run as import_folder
from whippet.app.importing.iggy.report import Refused, Report
from whippet.storage.errors import StorageError
from whippet.storage.store import now_us

COMPLETE = 0
INCOMPLETE = 1
REFUSED = 2
KEY_VARIABLE = "WHIPPET_IMPORT_KEY"


def run(
    path: Annotated[str, typer.Argument(help="the data folder of the Iggy server, which must be stopped (local_data)")],
    to: Annotated[
        str | None, typer.Option(help="the data folder of Whippet (default: system.path of the configuration)")
    ] = None,
    key_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help=f"a file with the key of an encrypted folder, in base64; {KEY_VARIABLE} can have the key, too",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help=f"refused, because others would see the key: use --key-file or {KEY_VARIABLE}", hidden=True),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the report as a JSON object")] = False,
) -> int:
    """Copies streams, topics, messages, stored offsets, groups, users and personal access tokens of Apache Iggy 0.7 to
    0.9 into a data folder of Whippet that no gateway has open. Everything is imported at once or not at all, the
    source is only read, and what could not be imported is reported: exit code 0 if that is nothing, 1 if it is
    something, 2 if nothing was imported."""
    if key is not None:
        raise click.UsageError(
            f"every user of this machine can see an argument: put the key into a --key-file, or into {KEY_VARIABLE}"
        )
    try:
        loaded = load(os.environ, os.getcwd())
        options = with_keys(store_options(loaded.config), loaded.config)
        if to:
            options = msgspec.structs.replace(options, path=to)
        report = import_folder(
            path,
            options,
            now_us,
            cipher=_cipher(key_file),
            root=_root(loaded.environment),
            progress=_Progress(),
        )
    except Finished:
        print(
            "An earlier import was interrupted while it was put into place. It is complete now, and nothing was "
            "imported again."
        )
        return COMPLETE
    except (ConfigError, Interrupted, Refused, StorageError) as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}; nothing was imported")
    _show(report, as_json)
    return INCOMPLETE if report.lost else COMPLETE


def _root(environment: Mapping[str, str]) -> Root:
    """The configuration masks secrets; str() reveals them."""
    name, password = environment.get("IGGY_ROOT_USERNAME"), environment.get("IGGY_ROOT_PASSWORD")
    return Root(DEFAULT_NAME if name is None else str(name), None if password is None else str(password))


def _cipher(key_file: str | None) -> Cipher | None:
    if key_file:
        with open(key_file, encoding="utf-8") as file:
            return cipher_of(file.read())
    text = os.environ.get(KEY_VARIABLE)
    return cipher_of(text) if text else None


def _refuse(sentence: str) -> int:
    print(f"whippet: {sentence}", file=sys.stderr)
    return REFUSED


def _show(report: Report, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
        return
    print(
        f"imported {_counted(report.streams, 'stream')}, {_counted(report.topics, 'topic')}, "
        f"{_counted(report.partitions, 'partition')}, {_counted(report.messages, 'message')} "
        f"({_counted(report.message_bytes, 'byte')}), {_counted(report.groups, 'group')}, "
        f"{_counted(report.offsets, 'stored offset')}, {_counted(report.users, 'user')}, "
        f"{_counted(report.tokens, 'personal access token')}"
    )
    for sentence in report.notes:
        print(f"  note: {sentence}")
    for sentence in report.lost:
        print(f"  not imported: {sentence}")
    if report.unlisted:
        print(f"  and {report.unlisted} more of these")
    lost = len(report.lost) + report.unlisted
    print(f"not imported: {_counted(lost, 'thing')}, listed above" if report.lost else "everything was imported")


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


class _Progress:
    """Shows the progress on standard error, at most once a second."""

    def __init__(self) -> None:
        self._shown_at = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._shown_at >= 1:
            self._shown_at = now
            print(f"read {done >> 20:,} of {total >> 20:,} MiB of messages", file=sys.stderr)
