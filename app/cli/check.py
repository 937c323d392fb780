"""`whippet check`: reads every message of a data folder or of an archive and reports damage. It changes nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from whippet.app import archiving
from whippet.app.config import ConfigError, load
from whippet.app.config.store import archive_options, store_options
from whippet.app.encryption_keys import keys_if_known
from whippet.storage.errors import StorageError
from whippet.storage.options import ArchiveOptions, StoreOptions
from whippet.storage.survey import Surveyed, SurveyedDocuments, survey_all

SOUND = 0
DAMAGED = 1
REFUSED = 2


def run(
    path: Annotated[
        str | None,
        typer.Argument(help="the data folder, or an archive's (default: system.path of the configuration)"),
    ] = None,
    archive: Annotated[bool, typer.Option("--archive", help="check the archive of the configuration")] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="print a JSON list: an object per partition, then one about all other files"),
    ] = False,
) -> int:
    """Exit code 0: everything is sound; 1: something is damaged; 2: nothing could be checked."""
    try:
        config = load(os.environ, os.getcwd()).config
        options = keys_if_known(store_options(config), config)
        if path:
            options = msgspec.structs.replace(options, path=path)
        found = []
        for one in _survey(archive, path, options, archive_options(config)):
            found.append(one)
            if not as_json:
                _show(one)
                # This is the progress, also in a pipe.
                sys.stdout.flush()
        is_archive = archive or archiving.is_archive(options.path)
        if not is_archive and (awaited := archiving.awaited(options)):
            print(f"{awaited} more partitions are still only in the archive of this folder", file=sys.stderr)
    except (ConfigError, StorageError) as error:
        print(f"whippet: {error}", file=sys.stderr)
        return REFUSED
    except OSError as error:
        print(f"whippet: {error.filename}: {error.strerror}", file=sys.stderr)
        return REFUSED
    partitions = [one for one in found if isinstance(one, Surveyed)]
    damaged = sum(bool(partition.damage) for partition in partitions)
    documents = sum(len(one.damage) for one in found if isinstance(one, SurveyedDocuments))
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        others = f"; {documents} other files are damaged" if documents else ""
        print(f"{len(partitions)} partitions, {damaged} of them damaged{others}")
    return DAMAGED if damaged or documents else SOUND


def _survey(
    archive: bool, path: str | None, options: StoreOptions, configured: ArchiveOptions
) -> Iterator[Surveyed | SurveyedDocuments]:
    if archive and path:
        raise ConfigError("give either a path or --archive")
    if archive:
        return archiving.survey(configured)
    if archiving.is_archive(options.path):
        return archiving.survey(ArchiveOptions(kind="disk", path=options.path))
    return survey_all(options, processes=os.cpu_count() or 1)


def _show(found: Surveyed | SurveyedDocuments) -> None:
    if isinstance(found, Surveyed):
        print(
            f"{found.name}: {found.messages:,} messages in {found.segments} segments, "
            f"first offset {found.first_offset}, next offset {found.next_offset}, {found.size_bytes:,} bytes"
        )
    else:
        print(f"streams, topics, users and other documents: {found.documents}")
    for damage in found.damage:
        print(f"  damaged: {damage}")
