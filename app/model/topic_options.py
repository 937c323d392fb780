"""The options of topics: which there are, how their values are written, and their defaults.

`TOPIC_OPTIONS` is the one table. A value is given in its own kind or as a text ("7 days", "128 MiB", "true") and is
stored in the kind that the table names. The chosen values are a `TopicOptions` of the store: a new option is a row here
and a field there.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from whippet.app.config.formats import Invalid, parse_expiry, parse_size
from whippet.app.config.system import System
from whippet.app.errors import Code, CommandError
from whippet.app.model import options
from whippet.app.model.options import Option, Value, ValueKind, abbreviated
from whippet.storage.documents import TopicDocument
from whippet.storage.options import GIB, MIB, Durability, StoreOptions, TopicOptions

UNLIMITED = 2**64 - 1
"""No expiry, or no limit."""
U32_MAX = 2**32 - 1
SEGMENT_STEP_BYTES = 512
MESSAGES_TO_SAVE_MAX = 16_777_216
IDS_MAX = 1_000_000_000
RESERVED_BYTES_MAX = 64 * GIB
"""Disk space that the segments of all partitions of a topic may reserve together."""

COMPRESSIONS = {1: "none", 2: "gzip", 3: "zstd"}
"""Keyed by their numbers in the protocol; only classic clients can send the last one."""
NUMBERS_OF_COMPRESSIONS = {name: number for number, name in COMPRESSIONS.items()}
SERVER_DEFAULT = ("default", "server_default")
"""Words by which clients request the server's default; the number 0 means the same."""
MUTABLE, FIXED = "mutable", "fixed"
"""Values of `partition_resize_policy`."""
REPLICATION_FACTOR_MAX = 32
"""The largest factor that 0.12 clients may send; more than 1 needs more nodes."""
DURABILITIES = ("replicated", "persisted")
"""Values of `durability`, by whether `enforce_fsync` is true."""


class TopicOption(NamedTuple):
    kind: ValueKind
    requirement: str
    """A description of valid values; completes '... is needed'."""
    parse: Callable[[Value], Value | None]
    """Converts a value of the kind, or a text, to the stored value. None means that nothing was chosen; raises
    ValueError for an invalid value."""
    default: Callable[[System, StoreOptions], Value]
    """The value that applies if none was chosen."""
    can_change: bool
    """Can be changed for an existing topic."""
    description: str


# ------------------------------------------------------------------------------------------------------ parsing values


def _number(value: Value) -> int | None:
    """Returns a number, also one in a text; None for another text."""
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"\s*\d{1,20}\s*", value, re.ASCII) else None
    if not isinstance(value, int):
        raise Invalid(value)
    return value


def _word(value: Value, words: Sequence[str]) -> str:
    word = value.strip().lower() if isinstance(value, str) else value
    if not isinstance(word, str) or word not in words:
        raise Invalid(value)
    return word


def _compression(value: Value) -> str:
    if isinstance(value, int):
        value = COMPRESSIONS.get(value, "")
    return _word(value, tuple(COMPRESSIONS.values()))


def _is_word(value: Value, *words: str) -> bool:
    return isinstance(value, str) and value.strip().lower() in words


def _expiry(value: Value) -> int | None:
    if _is_word(value, *SERVER_DEFAULT):
        return None
    number = _number(value)
    if number is None:
        microseconds = parse_expiry(value)
        return UNLIMITED if microseconds is None else microseconds
    return _at_most(UNLIMITED, number) or None


def _topic_size(value: Value) -> int | None:
    if _is_word(value, *SERVER_DEFAULT):
        return None
    if _is_word(value, "unlimited"):
        return UNLIMITED
    return _at_most(UNLIMITED, _size(value)) or None


def _ids(value: Value) -> int | None:
    if _is_word(value, "unlimited"):
        return UNLIMITED
    number = _number(value)
    if number is None:
        raise Invalid(value)
    return number if number == UNLIMITED else _at_most(IDS_MAX, number) or None


def _segment_size(value: Value) -> int | None:
    size = _size(value)
    if size and (not MIB <= size <= GIB or size % SEGMENT_STEP_BYTES):
        raise Invalid(value)
    return size or None


def _size_to_save(value: Value) -> int | None:
    return _at_most(GIB, _size(value)) or None


def _size(value: Value) -> int:
    number = _number(value)
    if number is not None:
        return number
    size = parse_size(value)
    if not size:
        # A word such as none has no clear meaning here.
        raise Invalid(value)
    return size


def _messages_to_save(value: Value) -> int:
    number = _number(value)
    if not number:
        raise Invalid(value)
    return _at_most(MESSAGES_TO_SAVE_MAX, number)


def _at_most(most: int, number: int) -> int:
    if number > most:
        raise Invalid(number)
    return number


def _durability(value: Value) -> str:
    return _word(value, DURABILITIES)


def _resize_policy(value: Value) -> str:
    return _word(value, (MUTABLE, FIXED))


def _replication_factor(value: Value) -> int:
    number = _number(value)
    if not number or number > REPLICATION_FACTOR_MAX:
        raise Invalid(value)
    if number > 1:
        raise CommandError(Code.INVALID_REPLICATION_FACTOR, f"'replication_factor' is {number}: there is one node")
    return number


def _boolean(value: Value) -> bool:
    return value if isinstance(value, bool) else _word(value, ("true", "false")) == "true"


def _default_durability(_: System, store: StoreOptions) -> str:
    return DURABILITIES[store.durability is Durability.SYNCED]


# ----------------------------------------------------------------------------------------------------------- the table

O = TopicOption  # noqa: E741 -- in a table the shortest name reads best
TOPIC_OPTIONS: Mapping[str, TopicOption] = {
    "archive_retention": O(
        ValueKind.UINT64,
        "a number of microseconds, a duration such as 400 days, or never_expire,",
        _expiry,
        lambda *_: UNLIMITED,
        True,
        "How long messages stay in the archive at least after they were deleted here: microseconds, or a duration.",
    ),
    "compression_algorithm": O(
        ValueKind.STRING,
        "none, gzip or zstd",
        _compression,
        lambda system, _: system.compression.default_algorithm,
        True,
        "How messages are compressed on the disk from now on: none, gzip or zstd.",
    ),
    "consumer_offset_durability": O(
        ValueKind.STRING,
        "replicated or persisted",
        _durability,
        _default_durability,
        False,
        "When a stored offset is acknowledged: persisted: when it is on the disk; replicated: at the server's level.",
    ),
    "durability": O(
        ValueKind.STRING,
        "replicated or persisted",
        _durability,
        _default_durability,
        False,
        "When messages are acknowledged: persisted: when they are on the disk; replicated: at the server's level.",
    ),
    "enforce_fsync": O(
        ValueKind.BOOL,
        "true or false",
        _boolean,
        lambda _, store: store.durability is Durability.SYNCED,
        False,
        "Older name of durability: true is persisted, false is replicated.",
    ),
    "local_retention_size": O(
        ValueKind.UINT64,
        "a number of bytes, a size such as 10 GiB, or unlimited,",
        _topic_size,
        lambda *_: UNLIMITED,
        True,
        "Size in bytes beyond which archived segments are deleted here; they are still read, from the archive.",
    ),
    "local_retention_time": O(
        ValueKind.UINT64,
        "a number of microseconds, a duration such as 1 day, or never_expire,",
        _expiry,
        lambda *_: UNLIMITED,
        True,
        "Age from which archived segments are deleted here; they are still read, from the archive.",
    ),
    "max_topic_size": O(
        ValueKind.UINT64,
        "a number of bytes, a size such as 10 GiB, or unlimited,",
        _topic_size,
        lambda system, _: UNLIMITED if system.topic.max_size is None else system.topic.max_size,
        True,
        "Size in bytes beyond which the oldest segments are deleted, or sends refused; at least one segment.",
    ),
    "message_deduplication": O(
        ValueKind.BOOL,
        "true or false",
        _boolean,
        lambda system, _: system.message_deduplication.enabled,
        True,
        "Whether a message is dropped if its partition has recently received the same id.",
    ),
    "message_deduplication_expiry": O(
        ValueKind.UINT64,
        "a number of microseconds, a duration such as 1 hour, or never_expire,",
        _expiry,
        lambda system, _: int(system.message_deduplication.expiry * 1_000_000) or UNLIMITED,
        True,
        "How long an id is remembered: microseconds, or a duration such as 1 hour.",
    ),
    "message_deduplication_max_entries": O(
        ValueKind.UINT64,
        f"a number of ids up to {IDS_MAX}, or unlimited,",
        _ids,
        lambda system, _: system.message_deduplication.max_entries or UNLIMITED,
        True,
        "Number of ids that each partition remembers, some 30 bytes each: more than are repeated after a failure.",
    ),
    "message_expiry": O(
        ValueKind.UINT64,
        "a number of microseconds, a duration such as 7 days, or never_expire,",
        _expiry,
        lambda system, _: UNLIMITED if system.topic.message_expiry is None else system.topic.message_expiry,
        True,
        "How long messages are kept at least: microseconds, or a duration such as 7 days.",
    ),
    "messages_required_to_save": O(
        ValueKind.UINT32,
        f"a number from 1 to {MESSAGES_TO_SAVE_MAX}",
        _messages_to_save,
        lambda _, store: min(store.messages_required_to_save, U32_MAX),
        False,
        "Messages of a partition that are collected before a write; above 1 they are acknowledged from memory.",
    ),
    "partition_resize_policy": O(
        ValueKind.STRING,
        "mutable or fixed",
        _resize_policy,
        lambda *_: MUTABLE,
        False,
        "Whether partitions can be added and deleted later (mutable) or not (fixed).",
    ),
    "preallocate_segments": O(
        ValueKind.BOOL,
        "true or false",
        _boolean,
        lambda *_: False,
        False,
        "Whether the disk space of a whole segment is reserved when it is created.",
    ),
    "replication_factor": O(
        ValueKind.UINT32,
        "1",
        _replication_factor,
        lambda *_: 1,
        False,
        "Number of nodes that store each partition: 1, because there is one node.",
    ),
    "segment_size": O(
        ValueKind.UINT64,
        f"a multiple of {SEGMENT_STEP_BYTES} bytes from 1 MiB to 1 GiB, as a number or a size such as 128 MiB,",
        _segment_size,
        lambda _, store: store.segment_bytes,
        False,
        "Size in bytes at which a segment is closed and the next one is created.",
    ),
    "size_of_messages_required_to_save": O(
        ValueKind.UINT64,
        "a number of bytes or a size such as 1 MiB, at most 1 GiB,",
        _size_to_save,
        lambda _, store: store.bytes_required_to_save,
        False,
        "Bytes of collected messages that cause a write, however few messages they are.",
    ),
}
"""All options, in the order of their keys, as in all responses."""

NEWER = frozenset({"partition_resize_policy", "replication_factor"})
"""Options of clients from 0.12 on, which assume the defaults where a topic is described without them."""
ARCHIVED = frozenset({"archive_retention", "local_retention_size", "local_retention_time"})
"""Options that need an archive. A topic is described with those that were chosen for it."""
WHIPPET_ONLY = frozenset(key for key in TOPIC_OPTIONS if key.startswith("message_deduplication"))
"""Not of Iggy, where programs may count on nine options: topics are described with them where they have a meaning."""


def parse_options(given: Sequence[Option], *, changing: bool = False) -> TopicOptions:
    """Returns what a request chooses; for an existing topic, only options that can be changed."""
    options.check(given)
    chosen: dict[str, Any] = {option.key: _parse(option, changing) for option in given}
    durability, enforce_fsync = chosen.get("durability"), chosen.get("enforce_fsync")
    if durability is not None and enforce_fsync is not None and durability != DURABILITIES[enforce_fsync]:
        raise CommandError(
            Code.INVALID_OPTION_VALUE,
            f"'durability' ({durability}) and 'enforce_fsync' ({str(enforce_fsync).lower()}) contradict each "
            f"other: enforce_fsync = {str(enforce_fsync).lower()} means durability = {DURABILITIES[enforce_fsync]}",
        )
    return TopicOptions(**chosen)


def _parse(option: Option, changing: bool) -> Value | None:
    known = TOPIC_OPTIONS.get(option.key)
    if known is None:
        near = difflib.get_close_matches(option.key, TOPIC_OPTIONS, 1)
        hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(TOPIC_OPTIONS)}"
        raise CommandError(Code.UNSUPPORTED_OPTION_KEY, f"{abbreviated(option.key)} is not a topic option; {hint}")
    if changing and not known.can_change:
        allowed = ", ".join(key for key, one in TOPIC_OPTIONS.items() if one.can_change)
        raise CommandError(
            Code.UNSUPPORTED_OPTION_KEY, f"{option.key!r} is fixed when a topic is created; {allowed} can change"
        )
    shown: Value = option.value
    try:
        shown = options.decode(option)
        if option.kind not in _kinds(option.key, known):
            raise Invalid(shown)
        return known.parse(shown)
    except ValueError:
        kind = "" if option.kind is ValueKind.STRING else f" ({option.kind.name.lower()})"
        raise CommandError(
            Code.INVALID_OPTION_VALUE, f"{option.key!r} is {abbreviated(shown)}{kind}: {known.requirement} is needed"
        ) from None


def _kinds(key: str, known: TopicOption) -> tuple[ValueKind, ...]:
    also = (ValueKind.UINT8,) if key == "compression_algorithm" else ()
    return known.kind, ValueKind.STRING, *also


class TopicDefaults:
    """The values that apply on this server where a topic chooses none, and descriptions of topics with them."""

    def __init__(self, system: System, store: StoreOptions) -> None:
        self.values = {key: known.default(system, store) for key, known in TOPIC_OPTIONS.items()}
        self.options = {key: _option(key, value) for key, value in self.values.items()}

    def number(self, key: str) -> int:
        value = self.values[key]
        assert isinstance(value, int)
        return value

    def stored(self, key: str) -> int:
        """The default as topics' documents have it."""
        value = self.values[key]
        return NUMBERS_OF_COMPRESSIONS[str(value)] if key == "compression_algorithm" else self.number(key)

    def describe(self, document: TopicDocument) -> tuple[tuple[Option, ...], tuple[Option, ...]]:
        """Returns the options that were chosen for a topic, and all others as they apply, each in the order of the
        keys."""
        explicit: list[Option] = []
        derived: list[Option] = []
        chosen = document.options
        for key, default in self.options.items():
            value = getattr(chosen, key)
            if value is None and self._left_out(key, chosen):
                continue
            kept = _KEPT.get(key)
            if kept is not None:
                held = _option(key, kept(document))
            elif key == "durability" and value is None and chosen.enforce_fsync is not None:
                held = _option(key, DURABILITIES[chosen.enforce_fsync])
            else:
                held = default if value is None else _option(key, value)
            (derived if value is None else explicit).append(held)
        return tuple(explicit), tuple(derived)

    def _left_out(self, key: str, chosen: TopicOptions) -> bool:
        """Returns True if a topic is described without an option that was not chosen for it. Clients of Iggy 0.9.0
        choose a `durability` for every topic and do not know `enforce_fsync`."""
        if key == "enforce_fsync":
            return chosen.durability is not None
        return key in NEWER or key in ARCHIVED or (key in WHIPPET_ONLY and not self._deduplicates(chosen))

    def _deduplicates(self, chosen: TopicOptions) -> bool:
        enabled = chosen.message_deduplication
        return bool(self.values["message_deduplication"] if enabled is None else enabled)


_KEPT: Mapping[str, Callable[[TopicDocument], Value]] = {
    "compression_algorithm": lambda document: COMPRESSIONS.get(document.compression_algorithm, "none"),
    "max_topic_size": lambda document: document.max_topic_size,
    "message_expiry": lambda document: document.message_expiry,
}
"""Stored when a topic is created or changed, and independent of the server's default since."""


def _option(key: str, value: Value) -> Option:
    kind = TOPIC_OPTIONS[key].kind
    return Option(key, kind, options.encode(kind, value))
