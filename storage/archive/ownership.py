"""Which data folder writes to an archive: one, and nobody else.

An archive has an owner document with a random claim, and the data folder keeps the claims that it made. Each start of a
server replaces the claim, on the condition that the document is unchanged. So an archive of another store is refused;
and of two copies of one folder, the first to start gets the archive, and the other is refused, at its start or at the
next round of its archiver.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from whippet.storage.archive.documents import OWNER, Owner, decode, encode
from whippet.storage.archive.objects import Objects, Version
from whippet.storage.document_checksums import with_checksum
from whippet.storage.documents import NOT_UNDERSTOOD
from whippet.storage.errors import ArchiveConflict, ArchiveUnavailable
from whippet.storage.files import Files, read_all, replace
from whippet.storage.layout import CLAIMS_FILE, Layout

BEGUN_MAX = 1000
"""How many claims without a known result are kept; a request is not on its way for longer."""


class Known(msgspec.Struct, frozen=True):
    """The claims of this folder to one archive."""

    claim: str | None = None
    """The last one that succeeded."""
    begun: tuple[str, ...] = ()
    """Those that were begun later, any of which may have succeeded."""

    def has(self, claim: str) -> bool:
        return claim == self.claim or claim in self.begun


class Claims(msgspec.Struct, frozen=True):
    """The file `archive_claims.json` of a data folder."""

    archives: dict[str, Known] = {}
    """Keyed by the location of the archive."""


class Ownership(NamedTuple):
    """The claim of a running server."""

    owner: Owner
    version: Version


def read_claims(files: Files, layout: Layout) -> Claims:
    path = layout.below(CLAIMS_FILE)
    try:
        return msgspec.json.decode(read_all(files, path), type=Claims)
    except FileNotFoundError:
        return Claims()
    except NOT_UNDERSTOOD as error:
        raise ArchiveConflict(
            f"{path} cannot be decoded, so this folder may not be the one that the archive belongs to: {error}"
        ) from error


def _keep(files: Files, layout: Layout, location: str, known: Known) -> None:
    claims = read_claims(files, layout)
    content = with_checksum(msgspec.json.encode(Claims(claims.archives | {location: known})))
    replace(files, layout.below(CLAIMS_FILE), content)


def claim(
    objects: Objects, files: Files, layout: Layout, store: str, clock: Callable[[], int], *, take_over: bool = False
) -> Ownership:
    """Claims the archive for a data folder, or raises ArchiveConflict. `take_over` is for a folder that is about to be
    restored from the archive: it becomes the only one that may write to it."""
    found = objects.get(OWNER)
    known = read_claims(files, layout).archives.get(objects.location, Known())
    owner = None if found is None else decode(found.content, Owner, f"{objects.location}/{OWNER}")
    if owner is not None and not take_over:
        _check(objects.location, owner, store, known)
    if owner is not None and owner.claim in known.begun:
        known = Known(owner.claim, known.begun)
    mine = uuid.uuid4().hex
    known = Known(known.claim, (*known.begun, mine)[-BEGUN_MAX:])
    _keep(files, layout, objects.location, known)
    claimed = Owner(
        store=store, generation=0 if owner is None else owner.generation + 1, claim=mine, claimed_at=clock()
    )
    expected = None if found is None else found.version
    try:
        version = objects.replace(OWNER, encode(claimed), expected)
    except ArchiveConflict as error:
        found = objects.get(OWNER)
        late = None if found is None else decode(found.content, Owner, f"{objects.location}/{OWNER}").claim
        if late is not None and known.has(late):
            # A write of ours that had seemed to fail has arrived after all. The next attempt continues from there.
            raise ArchiveUnavailable(f"{objects.location}: an earlier claim of this server has just arrived") from error
        raise ArchiveConflict(f"{objects.location}: another server has just claimed this archive") from error
    if expected is None:
        # The first version of an archive has no older one with which the conditions could be tried.
        expected, claimed = version, msgspec.structs.replace(claimed, claimed_at=claimed.claimed_at + 1)
        version = _replace_again(objects, claimed, expected)
    _require_conditions(objects, claimed, expected)
    _keep(files, layout, objects.location, Known(mine))
    return Ownership(claimed, version)


def _check(location: str, owner: Owner, store: str, known: Known) -> None:
    if owner.store != store:
        raise ArchiveConflict(
            f"{location} is the archive of another data folder, with the id {owner.store}; this one has the id "
            f"{store}. Choose another prefix or folder for the archive of this one"
        )
    if not known.has(owner.claim):
        raise ArchiveConflict(
            f"{location} was continued by another copy of this data folder since this one used it last, so nothing is "
            "written to it. If this copy is the one to continue with, choose another prefix or folder for its archive"
        )


def _replace_again(objects: Objects, claimed: Owner, expected: Version) -> Version:
    try:
        return objects.replace(OWNER, encode(claimed), expected)
    except ArchiveConflict as error:
        found = objects.get(OWNER)
        if found is None or found.version != expected:
            raise ArchiveConflict(f"{objects.location}: another server has just claimed this archive") from error
        raise ArchiveUnavailable(
            f"{objects.location}: the service does not replace an object although it is the version that was expected "
            "(If-Match), so nothing can be archived there"
        ) from error


def _require_conditions(objects: Objects, claimed: Owner, replaced: Version) -> None:
    """Refuses a service that ignores the conditions of writes: nothing would keep two servers apart."""
    for stale in (None, replaced):
        try:
            objects.replace(OWNER, encode(claimed), stale)
        except ArchiveConflict:
            continue
        raise ArchiveUnavailable(
            f"{objects.location}: the service ignores the conditions of conditional writes (If-Match and "
            "If-None-Match), so nothing would keep two servers from overwriting each other's archive"
        )


def require(objects: Objects, ownership: Ownership) -> None:
    """Raises ArchiveConflict if another server has claimed the archive since."""
    found = objects.get(OWNER)
    if found is None:
        raise ArchiveConflict(f"{objects.location}/{OWNER} was removed, so nothing more is written to this archive")
    if decode(found.content, Owner, f"{objects.location}/{OWNER}").claim != ownership.owner.claim:
        raise ArchiveConflict(
            f"{objects.location} was claimed by another server, so nothing more is written to it; messages received "
            "from now on are not archived"
        )


def mark_complete(objects: Objects, ownership: Ownership) -> None:
    """Records that the archive has everything that the data folder has, because the server stops."""
    content = encode(msgspec.structs.replace(ownership.owner, complete=True))
    objects.replace(OWNER, content, ownership.version)
