"""`whippet repair`: repairs what is damaged in the data folder of a stopped server from its archive.

Nothing that is healthy changes, and what is replaced is kept beside it until the operator removes it.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import msgspec
import typer

from whippet.app import archiving
from whippet.app.config import Config, ConfigError, load
from whippet.app.config.store import archive_options, store_options
from whippet.app.encryption_keys import keys_if_known
from whippet.storage.errors import StorageError
from whippet.storage.files import Files
from whippet.storage.options import ArchiveOptions
from whippet.storage.repair import Repair
from whippet.storage.repair_source import Finding, Outcome, Source
from whippet.storage.survey import name_of

SOUND = 0
"""Nothing is damaged, or not any more."""
LEFT = 1
REFUSED = 2


def run(
    path: Annotated[
        str | None, typer.Argument(help="the data folder (default: system.path of the configuration)")
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="a folder with the archive (default: the archive of the configuration)"),
    ] = None,
    no_archive: Annotated[
        bool,
        typer.Option("--no-archive", help="use no archive: build indexes anew, and say what else is damaged"),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="change nothing, and say what would be repaired")] = False,
    trust_archive: Annotated[
        bool,
        typer.Option(
            "--trust-archive",
            help="also replace what is intact but differs from the archive, such as the log of another topic",
        ),
    ] = False,
    upload: Annotated[
        bool,
        typer.Option("--upload", help="also upload damaged objects of the archive again, if the data folder has them"),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print a JSON list with everything that was found")] = False,
) -> int:
    """Exit code 0: nothing is damaged, or not any more; 1: something could not be repaired; 2: nothing was done."""
    try:
        config = load(os.environ, os.getcwd()).config
        options = keys_if_known(store_options(config), config)
        if path:
            options = msgspec.structs.replace(options, path=path)
        source = _source(archive, no_archive, trust_archive or upload, config)
        if not as_json:
            _show_source(source)
        repair = Repair(
            options, Files(), source, dry_run=dry_run, trusts_archive=trust_archive, uploads=upload
        )  # fmt: skip
        outcomes = []
        for outcome in repair.run():
            outcomes.append(outcome)
            if not as_json:
                _show(outcome, dry_run=dry_run)
    except (ConfigError, StorageError) as error:
        print(f"whippet: {error}", file=sys.stderr)
        return REFUSED
    except OSError as error:
        print(f"whippet: {error.filename or path or 'the data folder'}: {error.strerror}", file=sys.stderr)
        return REFUSED
    findings = [finding for outcome in outcomes for finding in outcome.findings]
    lost = sum(not finding.repaired for finding in findings)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(outcomes), indent=2).decode())
    else:
        done = "would be repaired" if dry_run else "repaired"
        print(f"{len(findings) - lost} {done}, {lost} not" if findings else "nothing is damaged")
    return LEFT if lost else SOUND


def _source(archive: str | None, no_archive: bool, needs_archive: bool, config: Config) -> Source | None:
    if no_archive and (archive or needs_archive):
        raise ConfigError("give either an archive or --no-archive")
    if archive:
        if not archiving.is_archive(archive):
            raise ConfigError(f"{archive} is not the folder of an archive: it has no archive.json")
        return archiving.source_of(ArchiveOptions(kind="disk", path=archive))
    if no_archive or not config.data_maintenance.archiver.enabled:
        return None
    return archiving.source_of(archive_options(config))


def _show_source(source: Source | None) -> None:
    if source is None:
        print("without an archive: only indexes are repaired (--archive PATH, or data_maintenance.archiver)")
    else:
        print(f"from the archive {source.location}")


def _show(outcome: Outcome, *, dry_run: bool) -> None:
    if outcome.place is not None:
        names = outcome.stream_name, outcome.topic_name
        print(f"{name_of(outcome.place, names)}:")
    elif outcome.findings or outcome.notes:
        print("streams, topics, users and other documents:")
    for finding in outcome.findings:
        _show_finding(finding, dry_run=dry_run)
    for note in outcome.notes:
        print(f"  note: {note}")


def _show_finding(finding: Finding, *, dry_run: bool) -> None:
    done = ("would be repaired" if dry_run else "repaired") if finding.repaired else "not repaired"
    print(f"  {done}: {finding.damage}")
    print(f"    {finding.how}")
    for kept in finding.kept_in:
        print(f"    what it was is kept in {kept}")
