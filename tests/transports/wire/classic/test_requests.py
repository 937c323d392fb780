"""Classic requests, encoded and decoded, and the errors for invalid ones."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transports.wire.classic.support import worlds
from whippet.app.access.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from whippet.app.commands import requests as commands
from whippet.app.errors import Code, CommandError
from whippet.transports.wire.classic import requests
from whippet.transports.wire.classic.dialect import Dialect

fuzz = settings(deadline=None, max_examples=40)
LAYOUTS: dict[int, type[commands.Request]] = {
    **{code: kind for code, (kind, _) in requests.LAYOUTS.items()},
    101: commands.SendMessages,
}


def decode(code: int, payload: bytes) -> Any:
    """What else is known of the batches of a send is not part of the request."""
    request = requests.decode(code, memoryview(payload), Dialect(), lambda size: b"\7" * size)
    return msgspec.structs.replace(request, checked=()) if isinstance(request, commands.SendMessages) else request


def refused(code: int, payload: str) -> int:
    with pytest.raises(CommandError) as error:
        decode(code, bytes.fromhex(payload))
    return error.value.code


def test_every_command_of_classic_clients_has_a_layout() -> None:
    assert sorted(LAYOUTS) == [
        *(1, 10, 11, 12, 20, 21, 22, 31, 32, 33, 34, 35, 36, 37, 38, 39, 41, 42, 43, 44, 100, 101, 102, 120, 121, 122),
        *(200, 201, 202, 203, 204, 205, 300, 301, 302, 303, 304, 305, 402, 403, 503, 600, 601, 602, 603, 604, 605),
    ]
    assert set(LAYOUTS.values()) == set(worlds.REQUESTS)


@pytest.mark.parametrize("code", LAYOUTS)
@fuzz
@given(data=st.data())
def test_a_request_there_and_back_is_the_same(code: int, data: st.DataObject) -> None:
    request = data.draw(worlds.request(LAYOUTS[code]))
    assert requests.code_of(request) == code
    payload = bytes(requests.encode_request(request))
    assert decode(code, payload) == request


@fuzz
@given(request=worlds.ANY_REQUEST.filter(lambda one: not isinstance(one, commands.SendMessages)), surplus=st.binary())
def test_bytes_after_the_last_part_are_ignored(request: commands.Request, surplus: bytes) -> None:
    payload = bytes(requests.encode_request(request))
    if isinstance(request, commands.LoginUser):
        assert decode(38, payload + surplus) == request
    else:
        assert decode(requests.code_of(request), payload + surplus) == request


def test_a_login_may_end_after_the_password_or_the_version() -> None:
    assert decode(38, bytes.fromhex("0175 0170")) == commands.LoginUser("u", "p", "", "")
    assert decode(38, bytes.fromhex("0175 0170 01000000 31")) == commands.LoginUser("u", "p", "1", "")


@pytest.mark.parametrize("code", [0, 2, 40, 45, 500, 2**32 - 1])
def test_an_unknown_command_is_refused(code: int) -> None:
    assert refused(code, "") == Code.INVALID_COMMAND


@pytest.mark.parametrize(
    ("code", "payload", "number"),
    [
        (200, "", 3),
        (200, "01", 3),
        (200, "0104 0000", 3),  # data missing
        (200, "0003 616263", 3),  # no such kind
        (200, "0303 616263", 3),
        (200, "0103 000000", 4),  # a number has four bytes
        (200, "0105 0000000000", 4),
        (200, "0200", 4),  # an empty name
        (200, "0204 6162", 3),
        (200, "0201 ff", 4),  # not UTF-8
        (202, "00", 4),
        (202, "", 3),
        (202, "03 6162", 3),
        (202, "01 c3", 4),
        (302, "0201 73 01000000 00 0000000000000000 0000000000000000 00 0174", 3),  # compression
        (302, "0201 73 01000000 03 0000000000000000 0000000000000000 00 0174", 3),
        (302, "0201 73 01000000 01 0000000000000000 0000000000000000 00 00", 4),
        (33, "0175 0170 03 00", 3),  # status
        (33, "0175 0170 01 01 ffffffff 00", 80),  # more permissions than bytes
        (33, "0175 0170 01 01 0a000000 00000000000000000000", 4),  # one byte too few
        (33, "0175 0170 01 01 0c000000 000000000000000000000000", 4),  # one too many
        (38, "0175 0170 ffffffff 31", 80),
        (38, "0175 0170 0000", 3),
        (100, "03 010400000000 010400000000 010400000000 0000000000 05 0000000000000000 01000000 00", 3),
        (100, "01 010400000000 010400000000 010400000000 0000000000 00 0000000000000000 01000000 00", 3),
        (100, "01 010400000000 010400000000 010400000000 0000000000 06 0000000000000000 01000000 00", 3),
        (11, "01 05 01", 3),
    ],
)
def test_an_invalid_request_has_its_error_number(code: int, payload: str, number: int) -> None:
    assert refused(code, payload) == number


def test_a_partition_is_present_only_if_its_flag_is_one() -> None:
    before, after = "01 010400000000 010400000000 010400000000", "05 0000000000000000 01000000 00"
    for flag, partition in (("00", None), ("01", 7), ("02", None), ("ff", None)):
        request = decode(100, bytes.fromhex(f"{before} {flag} 07000000 {after}"))
        assert request.partition_id == partition


def test_the_value_of_a_strategy_that_has_none_is_ignored() -> None:
    payload = "01 010400000000 010400000000 010400000000 0000000000 05 0900000000000000 01000000 07"
    request = decode(100, bytes.fromhex(payload))
    assert request.strategy == commands.Strategy(commands.StrategyKind.NEXT)
    assert request.auto_commit is True


NODES_PERMISSIONS = Permissions(
    GlobalPermissions(), {1: StreamPermissions(read_stream=True, topics={2: TopicPermissions(send_messages=True)})}
)


@pytest.mark.parametrize(
    "after_the_flags",
    [
        "01 01000000 000100000000 01 02000000 00000001",  # as Node writes it: no chain is ended
        "01 01000000 000100000000 01 02000000 00000001 00",
        "01 01000000 000100000000 01 02000000 00000001 00 00",
    ],
)
def test_permissions_may_leave_out_the_flags_that_end_them(after_the_flags: str) -> None:
    blob = bytes(10) + bytes.fromhex(after_the_flags)
    payload = b"\1\4" + bytes(4) + b"\1" + struct.pack("<I", len(blob)) + blob
    assert decode(36, payload) == commands.UpdatePermissions(0, NODES_PERMISSIONS)


def test_flags_of_permissions_are_true_when_they_are_not_zero() -> None:
    payload = bytes.fromhex("010400000000 01 0b000000 00000000000000000002 00")
    assert decode(36, payload).permissions == Permissions(GlobalPermissions(send_messages=True))


def test_permissions_are_written_in_the_order_of_ids() -> None:
    one, other = StreamPermissions(), StreamPermissions(read_stream=True)
    forth = requests.encode_request(commands.UpdatePermissions(0, Permissions(streams={1: one, 2: other})))
    back = requests.encode_request(commands.UpdatePermissions(0, Permissions(streams={2: other, 1: one})))
    assert forth == back


@pytest.mark.parametrize(
    "request_",
    [
        commands.CreateStream(""),
        commands.CreateStream("é" * 128),
        commands.GetStream(""),
        commands.GetStream(-1),
        commands.GetStream(2**32),
        commands.GetClient(2**32),
        commands.UpdatePermissions(0, Permissions(streams={2**32: StreamPermissions()})),
        commands.SendMessages(0, 0, commands.Partitioning(commands.PartitioningKind.MESSAGES_KEY, key=b""), ()),
    ],
)
def test_our_client_refuses_values_that_cannot_be_encoded(request_: commands.Request) -> None:
    with pytest.raises(CommandError):
        requests.encode_request(request_)


def test_an_update_encodes_unchanged_fields_as_such() -> None:
    body = requests.encode_request(commands.UpdateTopic(1, 2, "name"))
    assert body == bytes.fromhex("0104 01000000 0104 02000000 01 0000000000000000 0000000000000000 00 04 6e616d65")
