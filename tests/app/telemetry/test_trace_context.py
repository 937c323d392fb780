"""The trace context of W3C in headers of requests and of messages."""

from __future__ import annotations

import os
import struct

import pytest

from whippet.app.telemetry import trace_context
from whippet.app.telemetry.trace_context import TraceContext
from whippet.storage.batch import Message, build, messages

TEXT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def context() -> TraceContext:
    found = trace_context.parse(TEXT)
    assert found is not None
    return found


def part(kind: int, text: bytes) -> bytes:
    return struct.pack("<BI", kind, len(text)) + text


def entry(key: bytes, value: bytes) -> bytes:
    return part(2, key) + part(2, value)


def test_a_context_is_understood() -> None:
    found = context()
    assert found.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert found.span_id.hex() == "b7ad6b7169203331"
    assert found.is_sampled
    unsampled = trace_context.parse(TEXT[:-2] + b"00")
    assert unsampled is not None
    assert not unsampled.is_sampled
    assert trace_context.parse(b"01" + TEXT[2:] + b"-more") is not None


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"",
        b"ff" + TEXT[2:],
        b"00-" + 32 * b"0" + TEXT[35:],
        TEXT[:36] + 16 * b"0" + b"-01",
        TEXT.upper(),
        TEXT + b"-more",
        TEXT[:-1],
        b"01" + TEXT[2:] + b"-" + 300 * b"x",
        TEXT + b"\n",
    ],
)
def test_what_is_malformed_is_ignored(text: bytes | None) -> None:
    assert trace_context.parse(text) is None


@pytest.mark.parametrize(
    "block",
    [b"", entry(b"a", b"1"), entry(b"zz", b"1"), entry(b"a", b"1") + entry(b"zz", b"2"), part(1, b"k") + part(1, b"v")],
)
def test_messages_carry_the_context_of_their_request_in_the_order_of_headers(block: bytes) -> None:
    given = build([Message(b"payload", 7, block, 1_000_000)], 5, os.urandom)
    (carried,) = trace_context.carried((given,), context(), 100_000)
    (found,) = messages(carried)
    assert (bytes(found.payload), found.id, found.origin_timestamp) == (b"payload", 7, 1_000_000)
    added = entry(b"traceparent", TEXT)
    assert bytes(found.user_headers).replace(added, b"") == block
    assert trace_context.of_batches((carried,)) == context()
    entries = [(kind, key) for kind, key, _, _ in trace_context._entries(bytes(found.user_headers))]
    assert entries == sorted(entries)


@pytest.mark.parametrize(
    "block", [entry(b"traceparent", b"mine"), b"encrypted by the client", entry(b"a", b"1") + b"\1"]
)
def test_a_context_of_its_own_and_what_is_not_understood_stay_as_they_are(block: bytes) -> None:
    given = build([Message(b"payload", 7, block)], 5, os.urandom)
    (carried,) = trace_context.carried((given,), context(), 100_000)
    (found,) = messages(carried)
    assert bytes(found.user_headers) == block


def test_headers_without_room_stay_as_they_are() -> None:
    block = entry(b"a", b"1")
    given = build([Message(b"payload", 7, block)], 5, os.urandom)
    (carried,) = trace_context.carried((given,), context(), len(block) + 75)
    (found,) = messages(carried)
    assert bytes(found.user_headers) == block
