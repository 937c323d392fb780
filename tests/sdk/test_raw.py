"""Commands without a call in the SDK, sent as bytes: their responses, and what is refused."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

from tests.sdk.support.inspector import named, text8
from tests.sdk.support.program import Sdk
from tests.sdk.support.server import Server

NAME = "raw"
TOPIC = named(NAME) + named("t")
CONSUMER = b"\x01" + named("c")
PARTITION = struct.pack("<BI", 1, 0)
WHERE = CONSUMER + TOPIC + PARTITION
POLL = WHERE + struct.pack("<BQIB", 3, 0, 3, 0)
QUORUM = b"\x01"
ZIP_DEFLATED, OF_CONFIG = 2, 6
NOBODY = 2**32 - 1
OF_THE_SDK = (38, 39, 40, 44, 45)

REQUESTS: dict[str, tuple[int, bytes]] = {
    "ping": (1, b""),
    "stats": (10, b""),
    "snapshot": (11, bytes([ZIP_DEFLATED, 1, OF_CONFIG])),
    "roster": (12, b""),
    "options": (13, b"\x01"),
    "options of nothing": (13, b"\x09"),
    "me": (20, b""),
    "nobody": (21, struct.pack("<I", NOBODY)),
    "clients": (22, b""),
    "token": (42, text8("first") + struct.pack("<Q", 0)),
    "same token": (42, text8("first") + struct.pack("<Q", 0)),
    "short token": (42, text8("second") + struct.pack("<Q", 3_600_000_000)),
    "tokens": (41, b""),
    "token deleted": (43, text8("first")),
    "token deleted again": (43, text8("first")),
    "second token deleted": (43, text8("second")),
    "poll": (100, POLL),
    "poll on primary": (104, POLL),
    "poll routing": (103, POLL),
    "flush": (102, TOPIC + struct.pack("<IB", 0, 1)),
    "no offset": (120, WHERE),
    "offset routing": (123, WHERE),
    "offset stored": (121, WHERE + struct.pack("<Q", 3) + QUORUM),
    "offset beyond": (121, WHERE + struct.pack("<Q", 5) + QUORUM),
    "offset": (120, WHERE),
    "offset deleted": (122, WHERE + QUORUM),
    "offset deleted again": (122, WHERE + QUORUM),
    "group made": (602, TOPIC + text8("g")),
    "no member": (606, TOPIC + named("g")),
    "joined": (604, TOPIC + named("g")),
    "member": (606, TOPIC + named("g")),
    "group of nobody": (606, TOPIC + named("nobody made this")),
    "unknown": (60_000, b""),
    "cut off": (200, b"\x02\x05ab"),
    **{f"of the SDK {code}": (code, b"") for code in OF_THE_SDK},
    "still there": (1, b""),
}


@pytest.fixture(scope="module")
def answers(newest: Sdk, server: Server) -> dict[str, Any]:
    requests = [[code, payload.hex()] for code, payload in REQUESTS.values()]
    program = newest.finished("raw", address=server.address, name=NAME, requests=requests)
    said = program.all("answer")
    return dict(zip(REQUESTS, (bytes.fromhex(one) if isinstance(one, str) else one for one in said), strict=True))


@pytest.fixture(scope="module")
def refusal(answers: dict[str, Any], newest: Sdk) -> Callable[[str], str | None]:
    return lambda request: newest.error(answers[request]["refused"])


def test_a_ping_returns_nothing_at_the_start_and_at_the_end(answers: dict[str, Any]) -> None:
    assert answers["ping"] == answers["still there"] == b""


def test_a_snapshot_is_a_zip_file(answers: dict[str, Any]) -> None:
    assert zipfile.ZipFile(io.BytesIO(answers["snapshot"])).testzip() is None


def test_the_cluster_is_this_server_alone_at_the_address_that_clients_use(
    answers: dict[str, Any], server: Server
) -> None:
    reader = Reader(answers["roster"])
    assert reader.text32()
    assert reader.take("<I") == (1,)
    assert reader.text32()
    assert f"{reader.text32()}:{reader.take('<HHHH')[0]}" == server.address
    assert reader.take("<BB") == (0, 0)
    assert reader.ended()


def test_options_are_described_and_an_unknown_scope_is_refused(
    answers: dict[str, Any], refusal: Callable[[str], str | None]
) -> None:
    assert struct.unpack_from("<I", answers["options"])[0] == 18
    assert refusal("options of nothing") == "InvalidCommand"


def test_clients_are_listed_and_this_one_knows_itself(answers: dict[str, Any]) -> None:
    me = Reader(answers["me"])
    identity, user, transport = me.take("<IIB")
    assert (user, transport) == (0, 1)
    assert me.text32().startswith("127.0.0.1:")
    assert me.take("<I") == (0,)
    assert me.ended()
    clients, listed = Reader(answers["clients"]), []
    while not clients.ended():
        listed.append(clients.take("<IIB")[0])
        assert clients.text32()
        clients.take("<I")
    assert identity in listed
    assert answers["nobody"] == b""


def test_tokens_are_created_listed_and_deleted(answers: dict[str, Any], refusal: Callable[[str], str | None]) -> None:
    assert answers["token"][0] == len(answers["token"]) - 1 > 30
    assert refusal("same token") == "PersonalAccessTokenAlreadyExists"
    tokens, listed = Reader(answers["tokens"]), {}
    while not tokens.ended():
        token = tokens.text8()
        listed[token] = tokens.take("<Q")[0]
    assert {"first", "second"} <= listed.keys()
    assert (listed["first"] == 0, listed["second"] > 0) == (True, True)
    assert answers["token deleted"] == answers["second token deleted"] == b""
    assert refusal("token deleted again") == "ResourceNotFound"


def test_both_codes_of_a_poll_return_the_same(answers: dict[str, Any]) -> None:
    assert struct.unpack_from("<IQI", answers["poll"]) == (0, 4, 3)
    assert answers["poll on primary"] == answers["poll"]


def test_every_route_leads_here(answers: dict[str, Any], server: Server) -> None:
    for request in ("poll routing", "offset routing"):
        reader = Reader(answers[request])
        client, session, _ = reader.take("<16sQQ")
        assert any(client), request
        assert session, request
        assert reader.text32()
        assert f"{reader.text32()}:{reader.take('<HHHH')[0]}" == server.address
        assert reader.take("<BB") == (0, 0)
        assert reader.ended()


def test_offsets_are_stored_found_and_deleted(answers: dict[str, Any], refusal: Callable[[str], str | None]) -> None:
    assert answers["flush"] == b""
    assert answers["no offset"] == answers["offset stored"] == answers["offset deleted"] == b""
    assert refusal("offset beyond") == "InvalidOffset"
    assert struct.unpack("<IQQ", answers["offset"]) == (0, 4, 3)
    assert refusal("offset deleted again") == "ConsumerOffsetNotFound"


def test_unsupported_commands_are_refused_and_the_connection_stays_usable(refusal: Callable[[str], str | None]) -> None:
    assert refusal("unknown") == "InvalidCommand"
    assert refusal("cut off") in ("InvalidCommand", "InvalidFormat")
    assert {refusal(f"of the SDK {code}") for code in OF_THE_SDK} == {"InvalidCommand"}


def test_a_member_of_a_group_learns_which_partitions_it_has(answers: dict[str, Any]) -> None:
    assert answers["no member"] == answers["joined"] == b""
    generation, *partitions = struct.unpack("<QII", answers["member"])
    assert generation
    assert partitions == [1, 0]
    assert answers["group of nobody"] == b""


class Reader:
    """Decodes a response from its start."""

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    def take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self._data, self._position)
        self._position += struct.calcsize(layout)
        return values

    def text8(self) -> str:
        return self._text(self.take("<B")[0])

    def text32(self) -> str:
        return self._text(self.take("<I")[0])

    def _text(self, length: int) -> str:
        self._position += length
        return self._data[self._position - length : self._position].decode()

    def ended(self) -> bool:
        assert self._position <= len(self._data)
        return self._position == len(self._data)
