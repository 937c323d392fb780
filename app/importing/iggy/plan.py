"""Decides which number and name everything of the source gets in the target, and refuses what would be in the way.

Numbers stay as they are if they are free in the target: permissions, stored offsets and clients name them. Nothing in
the target is overwritten, except the root user of a folder that has nothing else yet.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from whippet.app.access.passwords import intact
from whippet.app.access.permissions import Permissions
from whippet.app.access.users import UserDocument
from whippet.app.importing.iggy.catalogue import ROOT, Catalogue, Stream, User
from whippet.app.importing.iggy.report import Refused, Report
from whippet.storage.catalog_loading import LoadedCatalog
from whippet.storage.documents import NOT_UNDERSTOOD

NAMED_IN_REFUSAL = 5


class Plan(msgspec.Struct):
    """Numbers of the source, and those that they get."""

    streams: dict[int, int]
    users: dict[int, int]
    """Users of whom nothing is imported are missing."""
    foreign_streams: set[int]
    """Numbers that the target's own streams have."""
    root_mark: str | None
    """The mark of the target's root user, if that one stays."""


def plan(source: Catalogue, target: LoadedCatalog, streams_folder: str, report: Report) -> Plan:
    """Raises Refused if names are taken."""
    users = _users_in(target.users)
    is_fresh = not target.streams and not target.tokens and set(target.users) <= {ROOT}
    taken_streams = {stream.document.name for stream in target.streams.values()}
    in_the_way = [f"a stream {stream.name!r}" for stream in source.streams.values() if stream.name in taken_streams]
    root = source.users.get(ROOT)
    importing_root = root is not None and intact(root.password_hash) and (is_fresh or ROOT not in target.users)
    staying = {user.username for identity, user in users.items() if identity != ROOT or not importing_root}
    wanted = [user for user in source.users.values() if user.id != ROOT or importing_root]
    in_the_way += [f"a user {user.name!r}" for user in wanted if user.name in staying]
    if in_the_way:
        more = len(in_the_way) - NAMED_IN_REFUSAL
        shown = ", ".join(in_the_way[:NAMED_IN_REFUSAL]) + (f" and {more} more" if more > 0 else "")
        raise Refused(f"the target already has {shown}; nothing is overwritten, and nothing was imported")
    reserved = target.reserved.get(streams_folder, set())
    streams = _numbers(dict(source.streams), set(target.streams) | reserved, "stream", report)
    occupied = {identity for identity in target.users if identity != ROOT or not importing_root}
    numbers = _numbers({user.id: user for user in wanted}, occupied, "user", report)
    _report_root(root, importing_root, users.get(ROOT), report)
    staying_root = None if importing_root else users.get(ROOT)
    return Plan(streams, numbers, set(target.streams) | reserved, None if staying_root is None else staying_root.mark)


def _numbers(wanted: Mapping[int, Stream | User], taken: set[int], kind: str, report: Report) -> dict[int, int]:
    numbers: dict[int, int] = {}
    free = max([*taken, *wanted], default=-1) + 1
    for identity, thing in sorted(wanted.items()):
        numbers[identity] = identity
        if identity in taken:
            numbers[identity] = free
            free += 1
            report.note(f"{kind} {thing.name!r} has the number {numbers[identity]} here, it was {identity} in Iggy")
    return numbers


def _users_in(documents: Mapping[int, bytes]) -> dict[int, UserDocument]:
    users = {}
    for identity, content in documents.items():
        try:
            users[identity] = msgspec.json.decode(content, type=UserDocument)
        except NOT_UNDERSTOOD as error:
            raise Refused(f"users/{identity}.json of the target cannot be read: repair it first ({error})") from error
    return users


def _report_root(root: User | None, importing: bool, present: UserDocument | None, report: Report) -> None:
    if root is not None and importing:
        if present is not None:
            report.note(
                f"the root user is now {root.name!r} with the password it had in Iggy; {present.username!r}, which the "
                "target had before, is replaced"
            )
        return
    if present is not None:
        report.note(f"the target keeps its own root user {present.username!r}, with its password")
    elif root is not None and root.password_hash:
        report.lose(f"the root user {root.name!r}: its password hash is damaged; the first start creates another one")
    else:
        report.lose(
            "the root user: its password is not in the folder, because Iggy 0.9 takes it from IGGY_ROOT_USERNAME and "
            "IGGY_ROOT_PASSWORD at every start. With the same variables, the import creates it with its tokens, and "
            "the first start of Whippet creates it without them"
        )


def moved(user: User, plan: Plan, report: Report) -> Permissions | None:
    """A user's permissions with the new numbers of streams. What Iggy granted for a number that belongs to another
    stream here is left out."""
    permissions = user.permissions
    if permissions is None:
        return None
    streams = {}
    for identity, held in permissions.streams.items():
        number = plan.streams.get(identity, identity)
        if identity not in plan.streams and number in plan.foreign_streams:
            report.note(f"user {user.name!r}: the permissions for stream {identity}, which did not exist, are left out")
            continue
        streams[number] = held
    return msgspec.structs.replace(permissions, streams=streams)
