"""`state/log` of Iggy 0.7 and 0.8: every command that has changed the catalogue, in its order, with a checksum.

Numbers are part of the entries, so an entry that is damaged can be left out, and what it did is reported; the entries
after it still mean what they say. A log whose end is torn ends with its last whole entry, as in Iggy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import xxhash

from whippet.app.importing.iggy.catalogue import Catalogue, Group, Partition, Rejected, Stream, Token, Topic, User
from whippet.app.importing.iggy.cipher import Cipher, NotDecrypted
from whippet.app.importing.iggy.report import Refused, Report
from whippet.app.importing.iggy.wire import Malformed, Reader

OLDEST_RELEASE = 7_000
"""0.7.0, as the number in the entries."""
PARTITIONS_MAX = 1_000_000

_HEAD = struct.Struct("<QQIIQQIQI")
"""index, term, leader, release, flags, time, user, checksum, bytes of the context"""
_COMMAND = struct.Struct("<II")
"""code, bytes of the command"""
_CHECKSUM_AT, _CHECKSUM_END = 44, 52


class Entry(NamedTuple):
    """One entry. `command` is None if its checksum is wrong."""

    position: int
    length: int
    number: int
    release: int
    time: int
    user_id: int
    code: int
    command: bytes | None


def read(content: bytes, path: str, cipher: Cipher | None, says_encrypted: bool, report: Report) -> Catalogue:
    """Replays the log. Raises Refused if it is of another version, or needs another key."""
    entries, end = _entries(content, cipher)
    if not entries:
        raise Refused(
            f"{path}: no entry at the start of this file can be read, so nothing is known of streams and users"
        )
    _refuse_foreign(entries, path, cipher, says_encrypted)
    catalogue = Catalogue()
    expected = 0
    for entry in entries:
        where = f"{path}: the entry at position {entry.position} ({_NAMES.get(entry.code, f'command {entry.code}')})"
        if entry.number != expected and entry.position:
            report.lose(f"{where} has number {entry.number} where {expected} is expected; commands between are missing")
        expected = entry.number + 1
        if entry.command is None:
            report.lose(f"{where} is damaged; what it did is not imported")
            continue
        try:
            _apply(catalogue, entry)
        except (Malformed, Rejected) as error:
            report.lose(f"{where} has no effect: {error}")
    if end < len(content):
        report.lose(
            f"{path}: the {len(content) - end} bytes from position {end} on are not whole entries; changes of streams, "
            "topics, groups and users that were recorded there are not imported"
        )
    return catalogue


def _refuse_foreign(entries: list[Entry], path: str, cipher: Cipher | None, says_encrypted: bool) -> None:
    first = entries[0]
    if first.release < OLDEST_RELEASE:
        raise Refused(f"{path}: written by an Iggy server before 0.7, whose format is not supported")
    if any(entry.command is not None for entry in entries):
        return
    if cipher is not None:
        raise Refused(f"{path}: nothing can be decrypted: it is not the key of this folder, or the file is damaged")
    if says_encrypted:
        raise Refused(
            "this folder is encrypted: its key is needed (--key-file, or the variable WHIPPET_IMPORT_KEY); it is "
            "system.encryption.key of Iggy's configuration"
        )
    raise Refused(
        f"{path}: the checksum of every entry is wrong: the file is damaged, or the folder is encrypted and its key is "
        "needed (--key-file, or the variable WHIPPET_IMPORT_KEY)"
    )


def _entries(content: bytes, cipher: Cipher | None) -> tuple[list[Entry], int]:
    """All entries up to the end of the log, or up to where no entry follows any more, and that position."""
    found: list[Entry] = []
    position = 0
    while position < len(content):
        entry = _entry_at(content, position, cipher)
        if entry is None:
            break
        after = position + entry.length
        if entry.command is None and after < len(content) and not _follows(content, after, entry.number, cipher):
            # Its length cannot be trusted.
            break
        if entry.command is None and after == len(content) and found:
            break
        found.append(entry)
        position = after
    return found, position


def _follows(content: bytes, position: int, index: int, cipher: Cipher | None) -> bool:
    following = _entry_at(content, position, cipher)
    return following is not None and following.number == index + 1 and following.code in _NAMES


def _entry_at(content: bytes, position: int, cipher: Cipher | None) -> Entry | None:
    if len(content) - position < _HEAD.size:
        return None
    index, _, _, release, _, time, user_id, checksum, context = _HEAD.unpack_from(content, position)
    at = position + _HEAD.size + context
    if len(content) - at < _COMMAND.size:
        return None
    code, length = _COMMAND.unpack_from(content, at)
    end = at + _COMMAND.size + length
    if end > len(content):
        return None
    command: bytes | None = content[end - length : end]
    covered = content[position : position + _CHECKSUM_AT] + content[position + _CHECKSUM_END : at]
    if xxhash.xxh3_64_intdigest(covered + content[at:end]) != checksum:
        # The checksum of an encrypted entry is that of the command before it was encrypted.
        command = _decrypted(command, cipher)
        plain = b"" if command is None else _COMMAND.pack(code, len(command)) + command
        if xxhash.xxh3_64_intdigest(covered + plain) != checksum:
            command = None
    return Entry(position, end - position, index, release, time, user_id, code, command)


def _decrypted(command: bytes | None, cipher: Cipher | None) -> bytes | None:
    if command is None or cipher is None:
        return None
    try:
        return cipher.decrypt(command)
    except NotDecrypted:
        return None


def is_encrypted(content: bytes) -> bool:
    """Whether the entries of a log cannot be read without a key."""
    entries, _ = _entries(content, None)
    return bool(entries) and not any(entry.command is not None for entry in entries)


# ------------------------------------------------------------------------------------------------------------- commands


def _apply(catalogue: Catalogue, entry: Entry) -> None:
    assert entry.command is not None
    known = _COMMANDS.get(entry.code)
    if known is None:
        raise Malformed("this version does not know the command")
    fields = Reader(entry.command)
    known[1](catalogue, fields, entry)


def _with_id(fields: Reader) -> tuple[int, Reader]:
    return fields.u32(), fields.sized()


def _create_stream(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    identity, request = _with_id(fields)
    catalogue.add_stream(Stream(identity, request.name(), entry.time))


def _update_stream(catalogue: Catalogue, fields: Reader, _: Entry) -> None:
    catalogue.rename_stream(fields.identifier(), fields.name())


def _delete_stream(catalogue: Catalogue, fields: Reader, _: Entry) -> None:
    catalogue.remove_stream(fields.identifier())


def _create_topic(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    identity, request = _with_id(fields)
    stream, partitions = request.identifier(), request.u32()
    compression, expiry, size, replication = request.u8(), request.u64(), request.u64(), request.u8()
    if partitions > PARTITIONS_MAX:
        raise Malformed(f"a topic with {partitions} partitions")
    made = [Partition() for _ in range(partitions)]
    topic = Topic(identity, request.name(), entry.time, expiry, size, compression, replication, made)
    catalogue.add_topic(stream, topic)


def _update_topic(catalogue: Catalogue, fields: Reader, _: Entry) -> None:
    stream, identifier = fields.identifier(), fields.identifier()
    compression, expiry, size, replication = fields.u8(), fields.u64(), fields.u64(), fields.u8()
    topic = catalogue.rename_topic(stream, identifier, fields.name())
    topic.compression_algorithm, topic.message_expiry, topic.max_topic_size = compression, expiry, size
    topic.replication_factor = replication


def _delete_topic(catalogue: Catalogue, fields: Reader, _: Entry) -> None:
    catalogue.remove_topic(fields.identifier(), fields.identifier())


def _create_partitions(catalogue: Catalogue, fields: Reader, _: Entry) -> None:
    stream, topic, count = fields.identifier(), fields.identifier(), fields.u32()
    if count > PARTITIONS_MAX:
        raise Malformed(f"{count} more partitions")
    catalogue.add_partitions(stream, topic, count)


def _delete_partitions(catalogue: Catalogue, fields: Reader, _: Entry) -> None:
    catalogue.remove_partitions(fields.identifier(), fields.identifier(), fields.u32())


def _create_group(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    identity, request = _with_id(fields)
    stream, topic = request.identifier(), request.identifier()
    catalogue.add_group(stream, topic, Group(identity, request.name(), entry.time))


def _delete_group(catalogue: Catalogue, fields: Reader, _: Entry) -> None:
    catalogue.remove_group(fields.identifier(), fields.identifier(), fields.identifier())


def _create_user(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    identity, request = _with_id(fields)
    name, password_hash, is_active = request.name(), request.password_hash(), request.u8() == 1
    catalogue.add_user(User(identity, name, password_hash, entry.time, is_active, request.optional_permissions()))


def _update_user(catalogue: Catalogue, fields: Reader, _: Entry) -> None:
    identifier = fields.identifier()
    name = fields.name() if fields.flag() else None
    catalogue.update_user(identifier, name, fields.u8() == 1 if fields.flag() else None)


def _delete_user(catalogue: Catalogue, fields: Reader, _: Entry) -> None:
    catalogue.remove_user(fields.identifier())


def _update_permissions(catalogue: Catalogue, fields: Reader, _: Entry) -> None:
    identifier, permissions = fields.identifier(), fields.optional_permissions()
    catalogue.user(identifier).permissions = permissions


def _change_password(catalogue: Catalogue, fields: Reader, _: Entry) -> None:
    identifier = fields.identifier()
    # The old password, which Iggy leaves empty.
    fields.password_hash()
    catalogue.user(identifier).password_hash = fields.password_hash()


def _create_token(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    token_hash, request = fields.text(fields.u32()), fields.sized()
    name, expiry = request.name(), request.u64()
    add_token(catalogue.user(entry.user_id), name, token_hash, entry.time, expiry)


def _delete_token(catalogue: Catalogue, fields: Reader, entry: Entry) -> None:
    catalogue.user(entry.user_id).tokens.pop(fields.name(), None)


def _nothing(_: Catalogue, __: Reader, ___: Entry) -> None:
    """Purging and deleting segments removes files, which are gone."""


def add_token(user: User, name: str, token_hash: str, created_at: int, expiry: int) -> None:
    """`expiry` is a duration; 0 and the highest number mean never."""
    never = expiry in (0, 2**64 - 1)
    user.tokens[name] = Token(name, token_hash, created_at, 0 if never else min(created_at + expiry, 2**64 - 1))


_COMMANDS: dict[int, tuple[str, Callable[[Catalogue, Reader, Entry], None]]] = {
    33: ("create_user", _create_user),
    34: ("delete_user", _delete_user),
    35: ("update_user", _update_user),
    36: ("update_permissions", _update_permissions),
    37: ("change_password", _change_password),
    42: ("create_personal_access_token", _create_token),
    43: ("delete_personal_access_token", _delete_token),
    202: ("create_stream", _create_stream),
    203: ("delete_stream", _delete_stream),
    204: ("update_stream", _update_stream),
    205: ("purge_stream", _nothing),
    302: ("create_topic", _create_topic),
    303: ("delete_topic", _delete_topic),
    304: ("update_topic", _update_topic),
    305: ("purge_topic", _nothing),
    402: ("create_partitions", _create_partitions),
    403: ("delete_partitions", _delete_partitions),
    503: ("delete_segments", _nothing),
    602: ("create_consumer_group", _create_group),
    603: ("delete_consumer_group", _delete_group),
}
_NAMES = {code: name for code, (name, _) in _COMMANDS.items()}
