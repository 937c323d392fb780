"""`metadata/journal.wal` of Iggy 0.9: the requests that change the catalogue, each an entry of 256 bytes and a body.

An entry is a request, not yet its result. Iggy decides again at every start whether the user had the right and whether
the request fits, and so does this module. Numbers of streams, topics, users and groups follow from the entries before,
so nothing after a damaged entry can be used: it would end up under the numbers of other objects.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import xxhash

from whippet.app.access import permissions as rights
from whippet.app.importing.iggy.catalogue import (
    ROOT,
    SERVER_DEFAULT,
    Catalogue,
    Group,
    Partition,
    Rejected,
    Stream,
    Topic,
    User,
    find,
    lowest_free,
)
from whippet.app.importing.iggy.report import Report
from whippet.app.importing.iggy.state_log import PARTITIONS_MAX, add_token
from whippet.app.importing.iggy.wire import Identifier, Malformed, Reader
from whippet.app.model.options import Option, decode
from whippet.app.model.topic_options import NUMBERS_OF_COMPRESSIONS, TOPIC_OPTIONS

HEADER_BYTES = 256
ENTRY_BYTES_MAX = 64 << 20
PREPARE = 6
"""The kind of message that a journal consists of."""
TOKEN_HASH_BYTES = 64

_SUM = struct.Struct("<QQQQ")
"""The checksums of the header and of the body, 128 bits each, of which 64 are used."""
_SIZE_AT, _VIEW_AT, _KIND_AT = 48, 52, 60
_NUMBERS = struct.Struct("<QQQQB")
"""op, commit, time, request, operation"""
_NUMBERS_AT = 176
_USER_AT = 224


class Entry(NamedTuple):
    position: int
    op: int
    time: int
    operation: int
    user_id: int
    body: bytes


def read(content: bytes, path: str, catalogue: Catalogue, first_op: int, report: Report) -> None:
    """Applies the entries from `first_op` on to a catalogue, which must have the root user: Iggy creates that one at
    every start from its environment, and does not record it."""
    entries, end, reason = _entries(content)
    if reason is not None:
        report.lose(
            f"{path}: the {len(content) - end} bytes from position {end} on cannot be used ({reason}); changes of "
            "streams, topics, groups and users that were recorded there are not imported"
        )
    # Entries may be written again under the same number; the last one holds.
    expected = first_op
    for op, entry in sorted({entry.op: entry for entry in entries}.items()):
        if op < first_op:
            continue
        if op != expected:
            report.lose(
                f"{path}: entry {expected} is missing, the one at position {entry.position} is {op}; nothing from "
                "there on is imported"
            )
            return
        expected = op + 1
        try:
            _apply(catalogue, entry)
        except Rejected:
            # Iggy rejects it, too.
            continue
        except Malformed as error:
            name = _NAMES.get(entry.operation, f"operation {entry.operation}")
            report.lose(
                f"{path}: the entry at position {entry.position} ({name}) cannot be understood ({error}); nothing "
                "from there on is imported"
            )
            return


def _entries(content: bytes) -> tuple[list[Entry], int, str | None]:
    """All entries up to the end, or up to the first that cannot be used, its position, and the reason."""
    found: list[Entry] = []
    position = 0
    while position < len(content):
        head = content[position : position + HEADER_BYTES]
        if len(head) < HEADER_BYTES:
            return found, position, "the file ends inside an entry"
        (size,) = struct.unpack_from("<I", head, _SIZE_AT)
        if head[_KIND_AT] != PREPARE or not HEADER_BYTES <= size <= ENTRY_BYTES_MAX:
            return found, position, "not an entry"
        if position + size > len(content):
            return found, position, "the file ends inside an entry"
        body = content[position + HEADER_BYTES : position + size]
        checksum, _, checksum_of_body, _ = _SUM.unpack_from(head)
        if checksum and checksum != _header_checksum(head):
            return found, position, "the checksum of an entry is wrong"
        if checksum_of_body and checksum_of_body != xxhash.xxh3_64_intdigest(body):
            return found, position, "the checksum of the content of an entry is wrong"
        op, _, time, _, operation = _NUMBERS.unpack_from(head, _NUMBERS_AT)
        (user_id,) = struct.unpack_from("<I", head, _USER_AT)
        found.append(Entry(position, op, time, operation, user_id, body))
        position += size
    return found, position, None


def _header_checksum(head: bytes) -> int:
    covered = bytearray(head)
    covered[:16] = bytes(16)
    covered[_VIEW_AT : _VIEW_AT + 4] = bytes(4)
    return int(xxhash.xxh3_64_intdigest(covered))


# ------------------------------------------------------------------------------------------------------------- requests


def _apply(catalogue: Catalogue, entry: Entry) -> None:
    known = _OPERATIONS.get(entry.operation)
    if known is None:
        if entry.operation in _OF_SESSIONS:
            return
        raise Malformed(f"operation {entry.operation} is unknown")
    known[1](catalogue, Reader(entry.body), entry)


def _permit(catalogue: Catalogue, entry: Entry, right: rights.Right, stream: int = -1, topic: int = -1) -> None:
    if entry.user_id == ROOT:
        return
    user = catalogue.users.get(entry.user_id)
    if user is None or not right(user.permissions or rights.NONE, stream, topic):
        raise Rejected("the user did not have the right")


def _permitted_stream(catalogue: Catalogue, entry: Entry, right: rights.Right, identifier: Identifier) -> Stream:
    stream = catalogue.stream(identifier)
    _permit(catalogue, entry, right, stream.id)
    return stream


def _permitted_topic(
    catalogue: Catalogue, entry: Entry, right: rights.Right, stream: Identifier, topic: Identifier
) -> tuple[Stream, Topic]:
    found, of_it = catalogue.stream(stream), catalogue.topic(stream, topic)
    _permit(catalogue, entry, right, found.id, of_it.id)
    return found, of_it


def _create_stream(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    name = fields.name()
    _permit(catalogue, entry, rights.manage_streams)
    catalogue.add_stream(Stream(lowest_free(catalogue.streams), name, entry.time))


def _update_stream(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    identifier, name = fields.identifier(), fields.name()
    stream = _permitted_stream(catalogue, entry, rights.manage_stream, identifier)
    catalogue.rename_stream(stream.id, name)


def _delete_stream(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    stream = _permitted_stream(catalogue, entry, rights.manage_stream, fields.identifier())
    catalogue.remove_stream(stream.id)


def _purge_stream(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    stream = _permitted_stream(catalogue, entry, rights.manage_stream, fields.identifier())
    for topic in stream.topics.values():
        _purge(topic)


def _purge(topic: Topic) -> None:
    for partition in topic.partitions:
        partition.purges += 1
        partition.deleted_before = 0


def _create_topic(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    request = fields.sized()
    identifier, _, name, explicit = request.identifier(), request.u32(), request.name(), request.options()
    derived = fields.sized().options()
    partitions = _assigned(fields)
    stream = _permitted_stream(catalogue, entry, rights.manage_topics, identifier)
    values = derived | explicit
    topic = Topic(
        id=lowest_free(stream.topics),
        name=name,
        created_at=entry.time,
        message_expiry=number_in(values, "message_expiry"),
        max_topic_size=number_in(values, "max_topic_size"),
        compression_algorithm=compression_in(values),
        replication_factor=1,
        partitions=[Partition() for _ in range(partitions)],
        explicit=explicit,
    )
    catalogue.add_topic(stream.id, topic)


def _assigned(fields: Reader) -> int:
    """The number of partitions; each has its number and that of its consensus group."""
    count = fields.u32()
    if count > PARTITIONS_MAX:
        raise Malformed(f"{count} partitions")
    for _ in range(count):
        fields.u32()
        fields.u64()
    return count


def number_in(options: dict[str, Option], key: str) -> int:
    """The value of an option that is a number; 0 if none was chosen."""
    value = _value(options, key)
    return value if isinstance(value, int) else SERVER_DEFAULT


def compression_in(options: dict[str, Option]) -> int:
    return NUMBERS_OF_COMPRESSIONS.get(str(_value(options, "compression_algorithm")), 1)


def _value(options: dict[str, Option], key: str) -> object:
    """Clients may have sent a text instead of a number, and the journal has what they sent."""
    option = options.get(key)
    try:
        return None if option is None else TOPIC_OPTIONS[key].parse(decode(option))
    except ValueError:
        raise Rejected(f"option {key!r} has a value that is not possible") from None


def _update_topic(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    stream, identifier, name, changed = fields.identifier(), fields.identifier(), fields.name(), fields.options()
    of, topic = _permitted_topic(catalogue, entry, rights.manage_topic, stream, identifier)
    catalogue.rename_topic(of.id, topic.id, name)
    topic.message_expiry = number_in(changed, "message_expiry") or topic.message_expiry
    topic.max_topic_size = number_in(changed, "max_topic_size") or topic.max_topic_size
    if "compression_algorithm" in changed:
        topic.compression_algorithm = compression_in(changed)
    topic.explicit = topic.explicit | changed


def _delete_topic(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    stream, identifier = fields.identifier(), fields.identifier()
    of, topic = _permitted_topic(catalogue, entry, rights.manage_topic, stream, identifier)
    catalogue.remove_topic(of.id, topic.id)


def _purge_topic(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    stream, identifier = fields.identifier(), fields.identifier()
    _purge(_permitted_topic(catalogue, entry, rights.manage_topic, stream, identifier)[1])


def _create_partitions(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    request = fields.sized()
    stream, identifier = request.identifier(), request.identifier()
    count = _assigned(fields)
    of, topic = _permitted_topic(catalogue, entry, rights.manage_topic, stream, identifier)
    catalogue.add_partitions(of.id, topic.id, count)


def _delete_partitions(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    stream, identifier, count = fields.identifier(), fields.identifier(), fields.u32()
    of, topic = _permitted_topic(catalogue, entry, rights.manage_topic, stream, identifier)
    if count > len(topic.partitions):
        raise Rejected("the topic has fewer partitions")
    catalogue.remove_partitions(of.id, topic.id, count)


def _truncate_partition(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    stream, identifier, number, before = fields.identifier(), fields.identifier(), fields.u32(), fields.u64()
    _, topic = _permitted_topic(catalogue, entry, rights.manage_topic, stream, identifier)
    if number >= len(topic.partitions):
        raise Rejected("the topic has no such partition")
    partition = topic.partitions[number]
    partition.deleted_before = max(partition.deleted_before, before)


def _create_group(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    stream, identifier, name = fields.identifier(), fields.identifier(), fields.name()
    of, topic = _permitted_topic(catalogue, entry, rights.read_topic, stream, identifier)
    catalogue.add_group(of.id, topic.id, Group(topic.groups_created, name, entry.time))


def _delete_group(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    stream, identifier, group = fields.identifier(), fields.identifier(), fields.identifier()
    of, topic = _permitted_topic(catalogue, entry, rights.read_topic, stream, identifier)
    catalogue.remove_group(of.id, topic.id, group)


def _create_user(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    name, password_hash, is_active = fields.name(), fields.password_hash(), fields.u8() != _INACTIVE
    permissions = fields.optional_permissions()
    _permit(catalogue, entry, rights.manage_users)
    identity = lowest_free(catalogue.users)
    catalogue.add_user(User(identity, name, password_hash, entry.time, is_active, permissions))


def _update_user(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    identifier = fields.identifier()
    name = fields.name() if fields.flag() else None
    is_active = fields.u8() != _INACTIVE if fields.flag() else None
    _permit(catalogue, entry, rights.manage_users)
    catalogue.update_user(identifier, name, is_active)


def _delete_user(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    identifier = fields.identifier()
    _permit(catalogue, entry, rights.manage_users)
    if catalogue.user(identifier).id == ROOT:
        raise Rejected("it is the root user")
    catalogue.remove_user(identifier)


def _change_password(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    identifier = fields.identifier()
    # The old password, which Iggy leaves empty.
    fields.password_hash()
    password_hash = fields.password_hash()
    if not password_hash:
        raise Rejected("the new password is empty")
    user = find(catalogue.users, identifier)
    if user is None or user.id != entry.user_id:
        _permit(catalogue, entry, rights.manage_users)
    catalogue.user(identifier).password_hash = password_hash


def _update_permissions(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    identifier, permissions = fields.identifier(), fields.optional_permissions()
    _permit(catalogue, entry, rights.manage_users)
    user = catalogue.user(identifier)
    if user.id == ROOT:
        raise Rejected("it is the root user")
    user.permissions = permissions


def _create_token(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    owner, name, expiry, token_hash = fields.u32(), fields.name(), fields.u64(), fields.text(TOKEN_HASH_BYTES)
    user = catalogue.user(owner)
    if name in user.tokens:
        raise Rejected("the user has a token of that name")
    add_token(user, name, token_hash, entry.time, expiry)


def _delete_token(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    owner, name, only_if_expired = fields.u32(), fields.name(), fields.flag()
    token = catalogue.user(owner).tokens.get(name)
    if token is None:
        raise Rejected("the user has no token of that name")
    if not only_if_expired or 0 < token.expires_at <= entry.time:
        del catalogue.user(owner).tokens[name]


_INACTIVE = 2
_OF_SESSIONS = {0, 1, 2, 3, 66, 67, 148, 149}
"""Logins, logouts, and memberships of groups, which end with their connections."""
_OPERATIONS: dict[int, tuple[str, Callable[[Catalogue, Reader, Entry], None]]] = {
    64: ("create_topic", _create_topic),
    65: ("create_partitions", _create_partitions),
    68: ("delete_segments", _truncate_partition),
    128: ("create_stream", _create_stream),
    129: ("update_stream", _update_stream),
    130: ("delete_stream", _delete_stream),
    131: ("purge_stream", _purge_stream),
    133: ("update_topic", _update_topic),
    134: ("delete_topic", _delete_topic),
    135: ("purge_topic", _purge_topic),
    137: ("delete_partitions", _delete_partitions),
    139: ("create_consumer_group", _create_group),
    140: ("delete_consumer_group", _delete_group),
    141: ("create_user", _create_user),
    142: ("update_user", _update_user),
    143: ("delete_user", _delete_user),
    144: ("change_password", _change_password),
    145: ("update_permissions", _update_permissions),
    146: ("create_personal_access_token", _create_token),
    147: ("delete_personal_access_token", _delete_token),
}
_NAMES = {operation: name for operation, (name, _) in _OPERATIONS.items()}
