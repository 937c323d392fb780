"""The table of topic options: how values are written, which are refused and how, and the defaults."""

from __future__ import annotations

import msgspec
import pytest

from tests.app.model.support.option_texts import to_text
from whippet.app.config.system import MessageDeduplication, System
from whippet.app.errors import Code, CommandError
from whippet.app.model.options import Option, Value, ValueKind, encode, from_text
from whippet.app.model.topic_options import (
    ARCHIVED,
    NEWER,
    TOPIC_OPTIONS,
    UNLIMITED,
    WHIPPET_ONLY,
    TopicDefaults,
    parse_options,
)
from whippet.storage.documents import TopicDocument
from whippet.storage.options import GIB, MIB, Durability, StoreOptions, TopicOptions, settings_of

DAY = 86_400_000_000
KINDS = {
    "archive_retention": ValueKind.UINT64,
    "compression_algorithm": ValueKind.STRING,
    "consumer_offset_durability": ValueKind.STRING,
    "durability": ValueKind.STRING,
    "enforce_fsync": ValueKind.BOOL,
    "local_retention_size": ValueKind.UINT64,
    "local_retention_time": ValueKind.UINT64,
    "max_topic_size": ValueKind.UINT64,
    "message_deduplication": ValueKind.BOOL,
    "message_deduplication_expiry": ValueKind.UINT64,
    "message_deduplication_max_entries": ValueKind.UINT64,
    "message_expiry": ValueKind.UINT64,
    "messages_required_to_save": ValueKind.UINT32,
    "partition_resize_policy": ValueKind.STRING,
    "preallocate_segments": ValueKind.BOOL,
    "replication_factor": ValueKind.UINT32,
    "segment_size": ValueKind.UINT64,
    "size_of_messages_required_to_save": ValueKind.UINT64,
}
CAN_CHANGE = (
    *("archive_retention", "compression_algorithm", "local_retention_size", "local_retention_time", "max_topic_size"),
    *("message_deduplication", "message_deduplication_expiry", "message_deduplication_max_entries"),
    "message_expiry",
)


def of_kind(key: str, value: Value, kind: ValueKind | None = None) -> Option:
    kind = KINDS.get(key, ValueKind.STRING) if kind is None else kind
    return Option(key, kind, encode(kind, value))


def refused(*given: Option, changing: bool = False) -> CommandError:
    with pytest.raises(CommandError) as caught:
        parse_options(given, changing=changing)
    return caught.value


def test_the_table_has_the_options_of_the_protocol_sorted_by_key() -> None:
    assert {key: known.kind for key, known in TOPIC_OPTIONS.items()} == KINDS
    assert list(TOPIC_OPTIONS) == sorted(TOPIC_OPTIONS)
    assert {key for key, known in TOPIC_OPTIONS.items() if known.can_change} == set(CAN_CHANGE)
    assert all(known.description.endswith(".") for known in TOPIC_OPTIONS.values())


def test_the_store_keeps_every_option_under_its_name() -> None:
    assert set(TopicOptions.__struct_fields__) == set(TOPIC_OPTIONS)


@pytest.mark.parametrize(
    ("key", "given", "stored"),
    [
        ("compression_algorithm", "gzip", "gzip"),
        ("compression_algorithm", "ZSTD", "zstd"),
        ("compression_algorithm", " None ", "none"),
        ("durability", "persisted", "persisted"),
        ("enforce_fsync", "True", True),
        ("enforce_fsync", "false", False),
        ("durability", "REPLICATED", "replicated"),
        ("consumer_offset_durability", "Persisted", "persisted"),
        ("message_expiry", "7 days", 7 * DAY),
        ("message_expiry", "1h 30m", 5_400_000_000),
        ("message_expiry", "250", 250),
        ("message_expiry", "never_expire", UNLIMITED),
        ("message_expiry", "18446744073709551615", UNLIMITED),
        ("message_expiry", "0", None),
        ("message_expiry", "server_default", None),
        ("message_expiry", "Default", None),
        ("max_topic_size", "server_default", None),
        ("max_topic_size", "10 GB", 10**10),
        ("max_topic_size", "1.5 GiB", 3 * GIB // 2),
        ("max_topic_size", "unlimited", UNLIMITED),
        ("max_topic_size", "18446744073709551615", UNLIMITED),
        ("max_topic_size", "0", None),
        ("segment_size", "128 MiB", 128 * MIB),
        ("segment_size", "1 GiB", GIB),
        ("segment_size", f"{MIB + 512}", MIB + 512),
        ("segment_size", "0", None),
        ("messages_required_to_save", "1", 1),
        ("messages_required_to_save", "16777216", 16_777_216),
        ("size_of_messages_required_to_save", "4 KiB", 4096),
        ("size_of_messages_required_to_save", "1", 1),
        ("size_of_messages_required_to_save", "0", None),
        ("partition_resize_policy", "Fixed", "fixed"),
        ("replication_factor", "1", 1),
        ("preallocate_segments", "true", True),
        ("preallocate_segments", "False", False),
        ("message_deduplication", "true", True),
        ("message_deduplication_expiry", "1 hour", 3_600_000_000),
        ("message_deduplication_expiry", "never_expire", UNLIMITED),
        ("message_deduplication_expiry", "0", None),
        ("archive_retention", "400 days", 400 * DAY),
        ("local_retention_time", "never_expire", UNLIMITED),
        ("local_retention_size", "10 GiB", 10 << 30),
        ("local_retention_size", "unlimited", UNLIMITED),
        ("message_deduplication_max_entries", "5000000", 5_000_000),
        ("message_deduplication_max_entries", "unlimited", UNLIMITED),
        ("message_deduplication_max_entries", "0", None),
    ],
)
def test_every_option_accepts_a_text_and_converts_it_to_its_kind(
    key: str, given: str, stored: str | int | bool | None
) -> None:
    chosen = getattr(parse_options([from_text(key, given)]), key)
    assert chosen == stored
    assert type(chosen) is type(stored)


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [
        ("message_expiry", 5, 5),
        ("message_expiry", 0, None),
        ("message_expiry", UNLIMITED, UNLIMITED),
        ("max_topic_size", UNLIMITED, UNLIMITED),
        ("max_topic_size", 0, None),
        ("segment_size", MIB, MIB),
        ("segment_size", 0, None),
        ("messages_required_to_save", 7, 7),
        ("size_of_messages_required_to_save", GIB, GIB),
        ("size_of_messages_required_to_save", 0, None),
        ("preallocate_segments", True, True),
        ("preallocate_segments", False, False),
        ("durability", "persisted", "persisted"),
    ],
)
def test_every_option_accepts_its_own_kind_and_0_stands_for_the_default(
    key: str, value: Value, stored: Value | None
) -> None:
    assert getattr(parse_options([of_kind(key, value)]), key) == stored


def test_the_compression_may_be_given_as_a_number() -> None:
    for number, name in ((1, "none"), (2, "gzip"), (3, "zstd")):
        assert parse_options([of_kind("compression_algorithm", number, ValueKind.UINT8)]).compression_algorithm == name


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (from_text("compression_algorithm", "lz4"), "'lz4': none, gzip or zstd is needed"),
        (of_kind("compression_algorithm", 4, ValueKind.UINT8), r"4 \(uint8\): none, gzip or zstd is needed"),
        (from_text("durability", "fsync"), "'fsync': replicated or persisted is needed"),
        (of_kind("durability", 1, ValueKind.UINT8), r"1 \(uint8\): replicated or persisted is needed"),
        (from_text("message_expiry", "soon"), "'soon': a number of microseconds, a duration such as 7 days"),
        (from_text("message_expiry", "-1"), "'-1'"),
        (from_text("message_expiry", "18446744073709551616"), "'18446744073709551616'"),
        (of_kind("message_expiry", 5, ValueKind.UINT32), r"5 \(uint32\)"),
        (of_kind("message_expiry", -5, ValueKind.INT64), r"-5 \(int64\)"),
        (from_text("max_topic_size", "large"), "a size such as 10 GiB, or unlimited, is needed"),
        (from_text("segment_size", "2 GiB"), "a multiple of 512 bytes from 1 MiB to 1 GiB"),
        (from_text("segment_size", "1 KiB"), "'1 KiB'"),
        (from_text("segment_size", "unlimited"), "'unlimited'"),
        (of_kind("segment_size", MIB + 1), f"{MIB + 1}"),
        (of_kind("messages_required_to_save", 0), "a number from 1 to 16777216"),
        (of_kind("messages_required_to_save", 16_777_217), "a number from 1 to 16777216"),
        (of_kind("messages_required_to_save", 5, ValueKind.UINT64), "a number from 1"),
        (from_text("messages_required_to_save", "many"), "'many'"),
        (of_kind("size_of_messages_required_to_save", GIB + 1), "at most 1 GiB"),
        (from_text("enforce_fsync", "persisted"), "'persisted': true or false is needed"),
        (from_text("partition_resize_policy", "elastic"), "'elastic': mutable or fixed is needed"),
        (from_text("replication_factor", "0"), "'0': 1 is needed"),
        (Option("replication_factor", ValueKind.UINT32, b"\x21\0\0\0"), r"33 \(uint32\): 1 is needed"),
        (from_text("preallocate_segments", "yes"), "'yes': true or false is needed"),
        (Option("preallocate_segments", ValueKind.BOOL, b"\x02"), r"b'\\x02' \(bool\): true or false is needed"),
        (Option("segment_size", ValueKind.UINT64, b"\x00\x00\x10"), r"b'\\x00\\x00\\x10' \(uint64\)"),
        (Option("durability", ValueKind.STRING, b"\xff"), r"b'\\xff': replicated or persisted is needed"),
    ],
    ids=lambda value: f"{value.key}={value.value!r}" if isinstance(value, Option) else "",
)
def test_an_invalid_value_is_refused_with_its_key_and_what_is_needed(option: Option, sentence: str) -> None:
    error = refused(option)
    assert error.code == Code.INVALID_OPTION_VALUE
    assert option.key in str(error)
    with pytest.raises(CommandError, match=sentence):
        raise error


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("segment_sise", "did you mean segment_size?"),
        ("max_size", "did you mean max_topic_size?"),
        ("enforce_sync", "did you mean enforce_fsync?"),
        (
            "colour",
            "the options are archive_retention, compression_algorithm, consumer_offset_durability, durability, ",
        ),
        ("Durability", "did you mean durability?"),
        ("x" * 255, "xxx"),
    ],
)
def test_an_unknown_key_is_refused_with_a_suggestion(key: str, hint: str) -> None:
    error = refused(from_text("durability", "replicated"), from_text(key, "1"))
    assert error.code == Code.UNSUPPORTED_OPTION_KEY
    assert hint in str(error)
    assert key[:20] in str(error)


def test_the_same_key_twice_is_refused() -> None:
    error = refused(from_text("durability", "persisted"), from_text("durability", "persisted"))
    assert error.code == Code.INVALID_OPTION_VALUE


@pytest.mark.parametrize("key", TOPIC_OPTIONS)
def test_only_some_options_can_be_changed(key: str) -> None:
    option = from_text(key, {"compression_algorithm": "gzip", "message_deduplication": "true"}.get(key, "2"))
    if key in CAN_CHANGE:
        assert getattr(parse_options([option], changing=True), key) is not None
    else:
        error = refused(option, changing=True)
        assert error.code == Code.UNSUPPORTED_OPTION_KEY
        assert f"{', '.join(CAN_CHANGE)} can change" in str(error)


# ---------------------------------------------------------------------------------------- defaults and descriptions


def defaults(system: System | None = None, **store: object) -> TopicDefaults:
    return TopicDefaults(system or System(), msgspec.structs.replace(StoreOptions(path=""), **store))


def texts(options: tuple[Option, ...]) -> dict[str, str]:
    assert [option.kind for option in options] == [KINDS[option.key] for option in options]
    return {option.key: to_text(option) for option in options}


def document(**fields: object) -> TopicDocument:
    plain = TopicDocument(id=0, name="t", created_at=1, partitions_count=1)
    return msgspec.structs.replace(plain, **fields)


def test_a_topic_without_options_has_the_servers_defaults() -> None:
    explicit, derived = defaults().describe(document())
    assert explicit == ()
    assert texts(derived) == {
        "compression_algorithm": "none",
        "consumer_offset_durability": "replicated",
        "durability": "replicated",
        "enforce_fsync": "false",
        "max_topic_size": "18446744073709551615",
        "message_expiry": "18446744073709551615",
        "messages_required_to_save": "1",
        "preallocate_segments": "false",
        "segment_size": "1073741824",
        "size_of_messages_required_to_save": "1048576",
    }
    assert list(texts(derived)) == sorted(KINDS.keys() - WHIPPET_ONLY - NEWER - ARCHIVED)


@pytest.mark.parametrize(
    ("given", "explicit", "derived"),
    [
        ({"enforce_fsync": "true"}, {"enforce_fsync": "true"}, {"durability": "persisted"}),
        ({"enforce_fsync": "false"}, {"enforce_fsync": "false"}, {"durability": "replicated"}),
        ({"durability": "persisted"}, {"durability": "persisted"}, {}),
        (
            {"durability": "persisted", "enforce_fsync": "true"},
            {"durability": "persisted", "enforce_fsync": "true"},
            {},
        ),
    ],
)
def test_enforce_fsync_is_durability_under_another_name(
    given: dict[str, str], explicit: dict[str, str], derived: dict[str, str]
) -> None:
    chosen = parse_options([from_text(key, text) for key, text in given.items()])
    described = defaults().describe(document(options=chosen))
    names = ("durability", "enforce_fsync")
    shown = [{key: text for key, text in texts(part).items() if key in names} for part in described]
    assert shown == [explicit, derived]
    synced = settings_of(chosen, StoreOptions(path="")).durability is Durability.SYNCED
    assert synced is ((explicit | derived)["durability"] == "persisted")


@pytest.mark.parametrize(("durability", "enforce_fsync"), [("replicated", "true"), ("persisted", "false")])
def test_enforce_fsync_and_durability_that_contradict_each_other_are_refused(
    durability: str, enforce_fsync: str
) -> None:
    error = refused(from_text("enforce_fsync", enforce_fsync), from_text("durability", durability))
    assert error.code == Code.INVALID_OPTION_VALUE
    assert f"'durability' ({durability}) and 'enforce_fsync' ({enforce_fsync}) contradict" in str(error)


def test_options_that_iggy_lacks_are_described_only_where_they_apply() -> None:
    on = parse_options([from_text("message_deduplication", "true")])
    explicit, derived = defaults().describe(document(options=on))
    assert texts(explicit) == {"message_deduplication": "true"}
    found = {key: text for key, text in texts(derived).items() if key in WHIPPET_ONLY}
    assert found == {"message_deduplication_expiry": "60000000", "message_deduplication_max_entries": "10000"}
    system = System(message_deduplication=MessageDeduplication(enabled=True, max_entries=0, expiry=0))
    derived = defaults(system).describe(document())[1]
    assert [text for key, text in texts(derived).items() if key in WHIPPET_ONLY] == [
        "true",
        f"{UNLIMITED}",
        f"{UNLIMITED}",
    ]
    off = parse_options([from_text("message_deduplication", "false")])
    explicit, derived = defaults(system).describe(document(options=off))
    assert (texts(explicit), WHIPPET_ONLY & texts(derived).keys()) == ({"message_deduplication": "false"}, frozenset())


def test_the_described_defaults_are_those_that_apply() -> None:
    made = defaults(
        durability=Durability.SYNCED, messages_required_to_save=2**40, bytes_required_to_save=77, segment_bytes=512
    )
    derived = texts(made.describe(document())[1])
    assert derived["durability"] == derived["consumer_offset_durability"] == "persisted"
    assert derived["messages_required_to_save"] == "4294967295"
    assert (derived["size_of_messages_required_to_save"], derived["segment_size"]) == ("77", "512")


def test_new_topics_get_the_configured_defaults() -> None:
    system = System()
    system = msgspec.structs.replace(
        system,
        topic=msgspec.structs.replace(system.topic, max_size=5 * GIB, message_expiry=DAY),
        compression=msgspec.structs.replace(system.compression, default_algorithm="gzip"),
    )
    values = defaults(system).values
    assert (values["max_topic_size"], values["message_expiry"]) == (5 * GIB, DAY)
    assert values["compression_algorithm"] == "gzip"


def test_chosen_options_are_explicit_and_all_others_derived() -> None:
    chosen = parse_options([from_text("durability", "replicated"), from_text("message_expiry", "7 days")])
    explicit, derived = defaults().describe(document(options=chosen, message_expiry=7 * DAY, compression_algorithm=3))
    assert texts(explicit) == {"durability": "replicated", "message_expiry": "604800000000"}
    assert texts(derived)["compression_algorithm"] == "zstd"
    assert sorted([*texts(explicit), *texts(derived)]) == sorted(
        KINDS.keys() - WHIPPET_ONLY - NEWER - ARCHIVED - {"enforce_fsync"}
    )


def test_described_options_can_be_used_to_create_the_same_topic() -> None:
    """The texts in the description of a topic create the same topic."""
    given = {"durability": "persisted", "segment_size": "128 MiB", "preallocate_segments": "true"}
    chosen = parse_options([from_text(key, text) for key, text in given.items()])
    explicit, derived = defaults().describe(document(options=chosen))
    assert parse_options([from_text(key, text) for key, text in texts(explicit).items()]) == chosen
    assert parse_options(explicit) == chosen
    parse_options([*explicit, *derived])
