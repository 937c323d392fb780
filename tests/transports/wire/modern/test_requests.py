"""Requests of 0.9 clients, encoded and decoded, and the errors for invalid ones."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transports.wire.modern.support import worlds
from whippet.app.commands import requests as commands
from whippet.app.commands.registry import COMMANDS
from whippet.app.errors import Code, CommandError
from whippet.app.model.options import Option, ValueKind
from whippet.storage import batch as batches
from whippet.transports.wire.modern import operations, requests

fuzz = settings(deadline=None, max_examples=40)
LAYOUTS: dict[int, type[commands.Request]] = {
    **{code: kind for code, (kind, _) in requests.LAYOUTS.items()},
    101: commands.SendMessages,
}
ON_PRIMARY = 104
OF_0_12 = {105, 106, 107, 109}


def decode(code: int, body: bytes) -> Any:
    return requests.decode(code, memoryview(body))


def encode(request: commands.Request) -> bytes:
    return b"".join(requests.encode(request))


def refused(code: int, body: bytes) -> Code:
    with pytest.raises(CommandError) as error:
        decode(code, body)
    return error.value.code


def test_every_command_but_the_logins_has_a_layout_and_every_layout_is_of_a_command() -> None:
    assert set(LAYOUTS) == {command.code for command in COMMANDS} - operations.LOGINS - OF_0_12 | {ON_PRIMARY}
    assert set(LAYOUTS.values()) == set(worlds.REQUESTS)


@pytest.mark.parametrize("code", LAYOUTS)
@fuzz
@given(data=st.data())
def test_a_request_there_and_back_is_the_same(code: int, data: st.DataObject) -> None:
    request = data.draw(worlds.request(LAYOUTS[code]))
    if code != ON_PRIMARY:
        assert requests.code_of(request) == code
    assert decode(code, encode(request)) == request


@pytest.mark.parametrize("code", LAYOUTS)
@settings(deadline=None, max_examples=8)
@given(data=st.data())
def test_a_request_cut_off_anywhere_is_refused_or_a_request(code: int, data: st.DataObject) -> None:
    body = encode(data.draw(worlds.request(LAYOUTS[code])))
    for size in range(len(body)):
        try:
            decode(code, body[:size])
        except CommandError:
            continue
        # Options may end after any of them; permissions without the flags that end them are those of the Node SDK.
        assert code in (33, 35, 36, 101, 202, 204, 302, 304), size


@pytest.mark.parametrize("code", [0, 2, 38, 39 + 256, 40, 44, 45, 105, 500, 2**32 - 1])
def test_unknown_commands_are_refused(code: int) -> None:
    assert refused(code, b"") == Code.INVALID_COMMAND


def test_a_commit_has_a_number_of_replicas() -> None:
    consumer = commands.Consumer(commands.ConsumerKind.CONSUMER, 1)
    store = encode(commands.StoreConsumerOffset(consumer, 0, 0, 0, 7))
    delete = encode(commands.DeleteConsumerOffset(consumer, 0, 0, 0))
    assert store[-1] == delete[-1] == 1
    for code, body in ((121, store), (122, delete)):
        assert refused(code, body[:-1]) == Code.INVALID_COMMAND
        assert decode(code, body[:-1] + b"\0") == decode(code, body)


@pytest.mark.parametrize(
    ("compression", "options"),
    [
        (1, ()),
        (2, (Option("compression_algorithm", ValueKind.STRING, b"gzip"),)),
        (3, (Option("compression_algorithm", ValueKind.STRING, b"zstd"),)),
        (4, ()),
    ],
)
def test_a_compression_that_is_named_by_a_number_elsewhere_is_an_option_here(
    compression: int, options: tuple[Option, ...]
) -> None:
    create = commands.CreateTopic("s", "t", 1, compression_algorithm=compression)
    assert decode(302, encode(create)).options == options
    update = commands.UpdateTopic("s", "t", "u", compression_algorithm=compression)
    assert decode(304, encode(update)).options == options


@pytest.mark.parametrize("scope", [0, 4, 255])
def test_options_of_something_else_are_not_described(scope: int) -> None:
    assert refused(13, bytes((scope,))) == Code.INVALID_COMMAND


# --------------------------------------------------------------------------------------------------------------- sends

DESTINATION = bytes.fromhex("010400000000 010400000000 020400000000")


def send(batch: bytes | bytearray, count: int, destination: bytes = DESTINATION) -> bytes:
    return struct.pack("<I", len(destination) + 4) + destination + struct.pack("<I", count) + batch


def batch_of(*payloads: bytes, origin: int = 10**15) -> bytearray:
    plain = [batches.Message(payload, number + 1, b"", origin) for number, payload in enumerate(payloads)]
    return batches.build(plain, 0, bytes)


def test_the_content_of_a_batch_is_left_to_the_log() -> None:
    batch = batch_of(b"one", b"two")
    batch[300] ^= 1
    assert decode(101, send(batch, 2)).batches[0] == batch
    assert decode(101, send(bytes(256), 0)).batches[0] == bytes(256)


@pytest.mark.parametrize("size", [0, 1, 255])
def test_a_send_without_a_header_of_a_batch_is_refused(size: int) -> None:
    assert refused(101, send(bytes(size), 0)) == Code.INVALID_MESSAGES_SIZE


@pytest.mark.parametrize("count", [0, 1, 3, 2**32 - 1])
def test_both_counts_of_a_send_have_to_be_the_same(count: int) -> None:
    assert refused(101, send(batch_of(b"one", b"two"), count)) == Code.INVALID_MESSAGES_COUNT


def test_an_origin_time_that_could_overflow_is_refused() -> None:
    latest = 2**64 - 2**32
    batch = batch_of(b"late", origin=latest)
    assert decode(101, send(batch, 1)).batches[0] == batch
    for origin in (latest + 1, 2**64 - 1):
        assert refused(101, send(batch_of(b"too late", origin=origin), 1)) == Code.TIMESTAMP_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", Code.INVALID_NUMBER_ENCODING),
        (b"\0\0\0", Code.INVALID_NUMBER_ENCODING),
        (b"\0\0\0\0", Code.INVALID_IDENTIFIER),
        (b"\xff\xff\xff\xff" + bytes(300), Code.INVALID_COMMAND),
        (send(bytes(256), 0, DESTINATION[:-1]), Code.INVALID_NUMBER_ENCODING),
        (send(bytes(256), 0, DESTINATION + b"\0"), Code.INVALID_COMMAND),
        (send(bytes(256), 0, b"\7" + DESTINATION[1:]), Code.INVALID_IDENTIFIER),
        (send(bytes(256), 0, DESTINATION[:12] + bytes.fromhex("0300")), Code.INVALID_COMMAND),
        (send(bytes(256), 0, DESTINATION[:12] + bytes.fromhex("0400")), Code.INVALID_COMMAND),
    ],
)
def test_an_invalid_destination_is_refused(body: bytes, code: Code) -> None:
    assert refused(101, body) == code
