"""The options of topics: described, set by clients, derived by default, and refused if invalid."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sdk.support.program import Sdk
from tests.sdk.support.server import Server

NEVER = UNLIMITED = 2**64 - 1
HOUR_US = 3_600_000_000
KINDS = {
    "archive_retention": "uint64",
    "compression_algorithm": "string",
    "local_retention_size": "uint64",
    "local_retention_time": "uint64",
    "message_deduplication": "bool",
    "message_deduplication_expiry": "uint64",
    "message_deduplication_max_entries": "uint64",
    "message_expiry": "uint64",
    "max_topic_size": "uint64",
    "segment_size": "uint64",
    "durability": "string",
    "consumer_offset_durability": "string",
    "messages_required_to_save": "uint32",
    "size_of_messages_required_to_save": "uint64",
    "preallocate_segments": "bool",
    "partition_resize_policy": "string",
    "replication_factor": "uint32",
}
DEDUPLICATION = {
    "message_deduplication": ["Bool", False],
    "message_deduplication_expiry": ["UnsignedInt64", 60_000_000],
    "message_deduplication_max_entries": ["UnsignedInt64", 10_000],
}
"""Whippet's own options: the SDK has no names for them, and takes them as texts."""
ONLY_DESCRIBED_IF_SET = {
    "partition_resize_policy": ["String", "mutable"],
    "replication_factor": ["UnsignedInt32", 1],
    "archive_retention": ["UnsignedInt64", UNLIMITED],
    "local_retention_size": ["UnsignedInt64", UNLIMITED],
    "local_retention_time": ["UnsignedInt64", UNLIMITED],
}
"""Topics report these options only where a client has set them: older programs count the options of a topic."""
DEFAULTS = {
    "compression_algorithm": ["String", "none"],
    "message_expiry": ["UnsignedInt64", NEVER],
    "max_topic_size": ["UnsignedInt64", UNLIMITED],
    "segment_size": ["UnsignedInt64", 1 << 30],
    "durability": ["String", "replicated"],
    "consumer_offset_durability": ["String", "replicated"],
    # Iggy gathers 1024 messages; Whippet writes what it acknowledges, unless its operator configures otherwise.
    "messages_required_to_save": ["UnsignedInt32", 1],
    "size_of_messages_required_to_save": ["UnsignedInt64", 1 << 20],
    "preallocate_segments": ["Bool", False],
}
GIVEN = {
    "compression_algorithm": ["String", "gzip"],
    "message_expiry": ["UnsignedInt64", HOUR_US],
    "max_topic_size": ["UnsignedInt64", 20 << 30],
    "segment_size": ["UnsignedInt64", 128 << 20],
    "durability": ["String", "persisted"],
    "consumer_offset_durability": ["String", "persisted"],
    "messages_required_to_save": ["UnsignedInt32", 17],
    "size_of_messages_required_to_save": ["UnsignedInt64", 1 << 20],
    "preallocate_segments": ["Bool", False],
}
ALWAYS_SENT = ("consumer_offset_durability", "durability")
"""Sent by the SDK whether or not they were set."""


@pytest.fixture(scope="module")
def said(newest: Sdk, server: Server) -> dict[str, Any]:
    return newest.finished("options", address=server.address, name="options").findings()


def without(options: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in keys}


def only(options: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: options[key] for key in keys}


def test_the_catalogue_lists_every_topic_option_with_its_kind_and_default(said: dict[str, Any]) -> None:
    defaults = DEFAULTS | DEDUPLICATION | ONLY_DESCRIBED_IF_SET | {"enforce_fsync": ["Bool", False]}
    kinds = KINDS | {"enforce_fsync": "bool"}
    assert said["catalogue"] == {key: [kind, defaults[key], True] for key, kind in kinds.items()}
    assert said["empty"] == [[], []]


def test_options_that_are_not_set_are_derived(said: dict[str, Any]) -> None:
    assert said["none"] == {"explicit": only(DEFAULTS, *ALWAYS_SENT), "derived": without(DEFAULTS, *ALWAYS_SENT)}


def test_options_that_are_set_are_explicit(said: dict[str, Any]) -> None:
    assert said["every"] == {"explicit": GIVEN, "derived": {}}


def test_numbers_may_be_given_as_text(said: dict[str, Any]) -> None:
    durability = only(DEFAULTS, *ALWAYS_SENT)
    own = {"message_deduplication": ["Bool", True], "message_deduplication_expiry": ["UnsignedInt64", HOUR_US]}
    derived = only(DEDUPLICATION, "message_deduplication_max_entries")
    assert said["text"] == {"explicit": GIVEN | durability | own, "derived": derived}


def test_invalid_options_are_refused_and_no_topic_is_created(said: dict[str, Any], newest: Sdk) -> None:
    assert [newest.error(answer) for answer in said["refused"]] == [
        "UnsupportedOptionKey",
        # The SDK always sends `durability`, which contradicts `enforce_fsync`.
        *["InvalidOptionValue"] * 5,
        "InvalidTopicSize",
        *["InvalidOptionValue"] * 2,
    ]
    assert said["topics_left"] == ["none", "every", "text"]


def test_an_update_makes_an_option_explicit(said: dict[str, Any]) -> None:
    changed = {"max_topic_size": ["UnsignedInt64", 5 << 30]}
    assert said["updated"] == {
        "explicit": only(DEFAULTS, *ALWAYS_SENT) | changed,
        "derived": without(DEFAULTS, *ALWAYS_SENT, "max_topic_size"),
    }
