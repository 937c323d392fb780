"""`whippet check`: reads every message of a data folder or of an archive and reports damage. It changes nothing."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator

import msgspec

from whippet.app import archiving
from whippet.app.config import ConfigError, load
from whippet.app.config.store import archive_options, store_options
from whippet.storage.errors import StorageError
from whippet.storage.options import ArchiveOptions, StoreOptions
from whippet.storage.survey import Surveyed, survey

SOUND = 0
DAMAGED = 1
REFUSED = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        nargs="?",
        help="the data folder, or an archive's (default: system.path of the configuration)",
    )
    parser.add_argument("--archive", action="store_true", help="check the archive of the configuration")
    parser.add_argument("--json", action="store_true", help="print a JSON list with an object per partition")


def run(arguments: argparse.Namespace) -> int:
    try:
        config = load(os.environ, os.getcwd()).config
        options = store_options(config)
        if arguments.path:
            options = msgspec.structs.replace(options, path=arguments.path)
        partitions = []
        for partition in _survey(arguments, options, archive_options(config)):
            partitions.append(partition)
            if not arguments.json:
                _show(partition)
    except (ConfigError, StorageError) as error:
        print(f"whippet: {error}", file=sys.stderr)
        return REFUSED
    except OSError as error:
        print(f"whippet: {error.filename}: {error.strerror}", file=sys.stderr)
        return REFUSED
    damaged = sum(bool(partition.damage) for partition in partitions)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(partitions), indent=2).decode())
    else:
        print(f"{len(partitions)} partitions, {damaged} of them damaged")
    return DAMAGED if damaged else SOUND


def _survey(arguments: argparse.Namespace, options: StoreOptions, archive: ArchiveOptions) -> Iterator[Surveyed]:
    if arguments.archive and arguments.path:
        raise ConfigError("give either a path or --archive")
    if arguments.archive:
        return archiving.survey(archive)
    if archiving.is_archive(options.path):
        return archiving.survey(ArchiveOptions(kind="disk", path=options.path))
    return survey(options)


def _show(partition: Surveyed) -> None:
    print(
        f"{partition.place}: {partition.messages:,} messages in {partition.segments} segments, "
        f"first offset {partition.first_offset}, next offset {partition.next_offset}, {partition.size_bytes:,} bytes"
    )
    for damage in partition.damage:
        print(f"  damaged: {damage}")
