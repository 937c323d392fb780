"""Classic responses, encoded and decoded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transports.wire.classic.support import worlds
from whippet.app.commands import responses
from whippet.app.errors import Code, CommandError
from whippet.storage.options import Durability
from whippet.transports.wire.classic import frames
from whippet.transports.wire.classic import responses as wire_responses
from whippet.transports.wire.classic.dialect import Dialect

fuzz = settings(deadline=None, max_examples=40)


def encode(code: int, answer: Any) -> bytes:
    return b"".join(wire_responses.encode(code, answer, Dialect()))


def decode(code: int, payload: bytes) -> Any:
    return wire_responses.decode_response(code, memoryview(payload), Dialect())


def test_every_kind_of_answer_is_made_up() -> None:
    assert set(wire_responses.LAYOUTS) == set(worlds.ANSWERS) - {1}


@pytest.mark.parametrize("code", worlds.ANSWERS)
@fuzz
@given(data=st.data())
def test_an_answer_there_and_back_is_the_same(code: int, data: st.DataObject) -> None:
    answer = data.draw(worlds.ANSWERS[code])
    payload = encode(code, answer)
    assert decode(code, payload) == answer
    assert len(payload) != 1, "clients do not read a payload of one byte"


@pytest.mark.parametrize("code", [1, 34, 39, 101, 102, 121, 203, 402, 503, 604])
def test_a_command_without_a_result_has_an_empty_payload(code: int) -> None:
    assert frames.success(wire_responses.encode(code, None, Dialect())) == [bytes(8)]


def test_a_send_of_a_classic_client_has_an_empty_response() -> None:
    assert wire_responses.encode(101, responses.Sent(0, 0, 0, 0, 1, Durability.WRITTEN), Dialect()) == []


@pytest.mark.parametrize("code", sorted(wire_responses.LISTS))
def test_an_empty_list_and_a_missing_object_have_an_empty_payload(code: int) -> None:
    assert encode(code, ()) == encode(code, None) == b""
    assert decode(code, b"") == ()


def test_a_wrong_count_is_never_sent() -> None:
    wrong = responses.StreamDetails(responses.StreamInfo(0, 0, 1, 0, 0, "s"), ())
    with pytest.raises(AssertionError):
        encode(200, wrong)


def test_cache_metrics_of_another_server_are_skipped() -> None:
    stats = responses.Stats(
        **{
            name: {"int": 1, "float": 1.0, "str": ""}[str(kind)]  # type: ignore[arg-type]
            for name, kind in responses.Stats.__annotations__.items()
            if name not in ("classic_size_bytes", "open_files_count", "open_files_limit")
        }
    )
    payload = encode(10, stats)
    before, after = payload[:-24], payload[-20:]
    assert decode(10, before + b"\2\0\0\0" + bytes(64) + after) == stats


def test_our_client_refuses_a_response_with_extra_bytes() -> None:
    with pytest.raises(CommandError) as refused:
        decode(38, bytes(5))
    assert refused.value.code == Code.INVALID_FORMAT
