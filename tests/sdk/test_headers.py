"""Headers and ids: keys and values of every kind are read as they were sent."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.sdk.support.program import Sdk
from tests.sdk.support.server import Server


@pytest.fixture(scope="module")
def said(newest: Sdk, server: Server) -> dict[str, Any]:
    before = time.time_ns() // 1000
    findings = newest.finished("headers", address=server.address, name="headers").findings()
    return findings | {"before": before, "after": time.time_ns() // 1000}


def test_keys_and_values_of_every_kind_are_read_with_their_kind(said: dict[str, Any]) -> None:
    assert [len(headers) for headers in said["typed"]] == [15, 15]
    assert said["typed_back"] == said["typed"]
    assert said["equal"] == [True, True]


def test_plain_keys_and_values_are_read_as_the_matching_kinds(said: dict[str, Any]) -> None:
    assert said["plain_back"] is True
    assert sorted(said["kinds"], key=str) == sorted(
        [
            ["text", "String"],
            ["bytes", "Raw"],
            ["yes", "Bool"],
            ["small", "Int8"],
            ["big", "UnsignedInt128"],
            ["half", "Float32"],
            [7, "String"],
            [{"hex": b"raw".hex()}, "String"],
        ],
        key=str,
    )


def test_keys_that_differ_only_in_kind_are_distinct(said: dict[str, Any]) -> None:
    assert said["both"] == [["Int8", 1, "String", "a"], ["UnsignedInt64", 1, "String", "b"]]
    assert said["ambiguous"] != "not noticed"


def test_messages_without_headers_have_none(said: dict[str, Any]) -> None:
    assert said["without"] == [None, None, [["String", "k", "String", "v"]]]


def test_many_headers_are_accepted_and_too_many_are_refused_by_the_sdk(said: dict[str, Any]) -> None:
    assert said["much"] is True
    assert said["too_much"] == "Too big headers payload"


def test_an_id_is_kept_and_a_missing_one_is_generated(said: dict[str, Any]) -> None:
    assert said["payloads"] == ["None", "0", "1", f"{2**64}", f"{2**128 - 1}"]
    none, zero, *given = map(int, said["ids"])
    assert given == [1, 2**64, 2**128 - 1]
    assert none
    assert zero
    assert none != zero


def test_a_message_has_its_creation_time_and_its_append_time(said: dict[str, Any]) -> None:
    assert said["before"] <= said["origins"][0]
    assert said["origins"] == sorted(said["origins"])
    assert set(said["timestamps"]) == {said["timestamps"][0]}
    assert said["origins"][-1] <= said["timestamps"][0] <= said["after"]
    assert len(set(said["checksums"])) == 5
    assert said["partitions"] == [0] * 5
