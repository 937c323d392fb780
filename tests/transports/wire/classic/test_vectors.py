"""Bytes that real clients sent are decoded, and responses are encoded as clients accepted them, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest

from tests.transports.wire.classic.support import vectors
from tests.transports.wire.classic.support.plainly import Classic, stored
from whippet.app.access.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from whippet.app.commands import requests as commands
from whippet.app.commands import responses
from whippet.app.commands.requests import Consumer, ConsumerKind, Partitioning, PartitioningKind, Strategy, StrategyKind
from whippet.app.errors import Code, CommandError
from whippet.storage import batch as batches
from whippet.transports.wire import primitives
from whippet.transports.wire.classic import frames, requests
from whippet.transports.wire.classic import responses as wire_responses
from whippet.transports.wire.classic.dialect import Dialect
from whippet.transports.wire.primitives import Reader

FIRST = 1_700_000_000_000_000
NEVER = 2**64 - 1
UNLIMITED = 2**64 - 1
GROUP, NUMBER_0 = Consumer(ConsumerKind.GROUP, "g1"), Consumer(ConsumerKind.CONSUMER, 0)
ACTIVE = commands.UserStatus.ACTIVE


def decode(code: int, payload: bytes, dialect: Dialect | None = None) -> Any:
    return requests.decode(code, memoryview(payload), dialect or Dialect(), lambda size: b"\7" * size)


def encode(code: int, answer: object, header_size: int = 64) -> bytes:
    return b"".join(wire_responses.encode(code, answer, Dialect(forced=header_size)))


def offset(value: int) -> Strategy:
    return Strategy(StrategyKind.OFFSET, value)


REQUESTS: dict[str, list[commands.Request]] = {
    "T1": [commands.LoginUser("iggy", "iggy", "0.8.0", "")],
    "T2": [commands.LoginUser("iggy", "iggy", "0.10.0", "")],
    "T3": [commands.LoginUser("iggy", "iggy", "", "")],
    "T5": [commands.LoginWithPersonalAccessToken("iggypat-abc123")],
    "T6": [commands.GetClusterMetadata()],
    "T9": [commands.LogoutUser()],
    "T12": [commands.CreateStream("s1")],
    "T14": [commands.GetStream("s1"), commands.GetStream(0)],
    "T17": [commands.CreateTopic("s1", "t1", 3, 1, 0, 0, 0)],
    "T18": [commands.CreateTopic("s1", "t1", 3, 1, NEVER, 0, 0)],
    "T19": [commands.CreateTopic(0, "t2", 1, 2, 5_000_000, 2_000_000_000, 2)],
    "T21": [commands.GetTopic("s1", "t1")],
    "T22": [commands.UpdateTopic(0, 0, "t9", 1, 0, 0, 1)],
    "T23": [commands.DeleteTopic("s1", "t1")],
    "T24": [commands.CreatePartitions(0, 0, 2), commands.DeletePartitions(0, 0, 2)],
    "T25": [commands.DeleteSegments(0, 0, 0, 1)],
    "T31": [commands.PollMessages(NUMBER_0, "s1", "t1", 0, offset(0), 2, True)],
    "T32": [
        commands.PollMessages(NUMBER_0, "s1", "t1", 0, Strategy(StrategyKind.FIRST), 2, True),
        commands.PollMessages(NUMBER_0, "s1", "t1", 0, Strategy(StrategyKind.LAST), 2, True),
        commands.PollMessages(NUMBER_0, "s1", "t1", 0, Strategy(StrategyKind.NEXT), 2, True),
        commands.PollMessages(NUMBER_0, "s1", "t1", 0, Strategy(StrategyKind.TIMESTAMP, 1_234_567), 2, True),
    ],
    "T33": [commands.PollMessages(NUMBER_0, 0, 0, 1, offset(100), 10, False)],
    "T34": [commands.PollMessages(GROUP, "s1", "t1", None, Strategy(StrategyKind.NEXT), 10, True)],
    "T39": [commands.FlushUnsavedBuffer("s1", "t1", 0, False)],
    "T40": [commands.StoreConsumerOffset(GROUP, "s1", "t1", 0, 1)],
    "T41": [commands.StoreConsumerOffset(NUMBER_0, "s1", "t1", 0, 5)],
    "T42": [commands.DeleteConsumerOffset(GROUP, "s1", "t1", 0)],
    "T44": [commands.GetConsumerGroup("s1", "t1", "g1")],
    "T46": [commands.JoinConsumerGroup("s1", "t1", "g1"), commands.LeaveConsumerGroup("s1", "t1", "g1")],
    "T49": [commands.CreateUser("bob", "secret", ACTIVE, None)],
    "T50": [
        commands.CreateUser(
            "bob",
            "secret",
            ACTIVE,
            Permissions(GlobalPermissions(manage_servers=True, read_streams=True, poll_messages=True)),
        )
    ],
    "T53": [commands.UpdateUser(1, "rob", commands.UserStatus.INACTIVE)],
    "T54": [commands.ChangePassword(1, "a1b2", "c3d4")],
}
WITH_TRAILING_BYTES = {"T23": 4, "T49": 5}


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_of_real_clients_are_understood_and_our_client_sends_the_same(name: str) -> None:
    found = vectors.requests_in(name)
    assert [decode(code, payload) for code, payload in found] == REQUESTS[name]
    for (code, payload), request in zip(found, REQUESTS[name], strict=True):
        assert requests.code_of(request) == code
        sent = frames.request(code, requests.encode_request(request))
        surplus = WITH_TRAILING_BYTES.get(name, 0)
        assert sent[8:] == payload[: len(payload) - surplus]
        assert frames.measure(sent) == len(sent)
        assert frames.code_of(sent) == code


TOPIC_1 = responses.TopicInfo(0, FIRST, 3, NEVER, 1, UNLIMITED, 1, 0, 3, "t1")
TOPIC_2 = responses.TopicInfo(1, FIRST, 1, NEVER, 1, UNLIMITED, 1, 0, 3, "t2")
NODE = responses.ClusterNode("iggy-node", "127.0.0.1", 8090, 8080, 3000, 8092, 0, 0)
BOBS = Permissions(
    GlobalPermissions(manage_servers=True, manage_users=True, read_streams=True, poll_messages=True),
    {
        7: StreamPermissions(
            read_stream=True,
            read_topics=True,
            poll_messages=True,
            topics={9: TopicPermissions(read_topic=True, poll_messages=True)},
        )
    },
)
BOB = responses.UserInfo(1, FIRST, ACTIVE, "bob")
HERE = "127.0.0.1:5000"
ANSWERS: dict[str, tuple[int, object]] = {
    "T4": (38, responses.LoggedIn(0)),
    "T7": (12, responses.ClusterMetadata("single-node", (NODE,))),
    "T13": (202, responses.StreamDetails(responses.StreamInfo(0, FIRST, 0, 0, 0, "s1"), ())),
    "T16": (200, responses.StreamDetails(responses.StreamInfo(0, FIRST, 2, 0, 0, "s1"), (TOPIC_1, TOPIC_2))),
    "T20": (
        302,
        responses.TopicDetails(
            responses.TopicInfo(0, FIRST, 3, NEVER, 1, UNLIMITED, 1, 0, 0, "t1"),
            tuple(responses.PartitionInfo(i, FIRST, 1, 0, 0, 0) for i in range(3)),
        ),
    ),
    "T47": (
        600,
        responses.GroupDetails(
            responses.GroupInfo(0, 3, 2, "g1"), (responses.GroupMember(0, (0, 2)), responses.GroupMember(1, (1,)))
        ),
    ),
    "T48": (601, (responses.GroupInfo(0, 3, 2, "g1"), responses.GroupInfo(1, 3, 0, "g2"))),
    "T51": (31, responses.UserDetails(BOB, BOBS)),
    "T52": (33, responses.UserDetails(BOB, None)),
    "T56": (41, (responses.TokenInfo("tok1", 0), responses.TokenInfo("tok2", FIRST))),
    "T57": (20, responses.ClientInfo(77, 0, 1, HERE, (responses.GroupMembership(0, 0, 3),))),
    "T59": (
        10,
        responses.Stats(
            process_id=1,
            cpu_usage=1.0,
            total_cpu_usage=2.0,
            memory_usage=1,
            total_memory=1,
            available_memory=1,
            run_time=1,
            start_time=1,
            read_bytes=1,
            written_bytes=1,
            messages_size_bytes=1,
            streams_count=1,
            topics_count=1,
            partitions_count=1,
            segments_count=1,
            messages_count=1,
            clients_count=1,
            consumer_groups_count=1,
            hostname="h",
            os_name="o",
            os_version="v",
            kernel_version="k",
            server_version="0.8.0",
            server_semver=8000,
            threads_count=4,
            free_disk_space=1000,
            total_disk_space=2000,
        ),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_responses_that_real_clients_accept_are_what_is_sent_and_our_client_understands_them(name: str) -> None:
    code, answer = ANSWERS[name]
    payload = vectors.response(name)
    assert wire_responses.decode_response(code, memoryview(payload), Dialect()) == answer
    assert encode(code, answer) == payload
    whole = b"".join(frames.success(wire_responses.encode(code, answer, Dialect())))
    assert whole == vectors.octets(name)


def test_the_list_of_clients_counts_groups_and_does_not_name_them() -> None:
    groups = (responses.GroupMembership(0, 0, 3), responses.GroupMembership(0, 1, 4))
    clients = (responses.ClientInfo(77, 0, 1, HERE, ()), responses.ClientInfo(78, 0, 1, HERE, groups))
    assert encode(22, clients) == vectors.response("T58")
    assert wire_responses.decode_response(22, memoryview(vectors.response("T58")), Dialect())[1].client_id == 78


EXCHANGES: dict[str, tuple[commands.Request, object]] = {
    "T8": (commands.Ping(), None),
    "T15": (commands.GetStream("nope"), None),
    "T43": (commands.GetConsumerOffset(NUMBER_0, "s1", "t1", 0), responses.ConsumerOffset(0, 5, 3)),
    "T45": (
        commands.CreateConsumerGroup("s1", "t1", "g1"),
        responses.GroupDetails(responses.GroupInfo(0, 1, 0, "g1"), ()),
    ),
    "T55": (commands.CreatePersonalAccessToken("tok1", 3_600_000_000), responses.RawToken("tokentokentoken")),
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_requests_and_their_responses(name: str) -> None:
    request, answer = EXCHANGES[name]
    code, asked, answered = vectors.request_and_response(name)
    assert decode(code, asked) == request
    assert requests.encode_request(request) == asked
    assert encode(code, answer) == answered
    assert wire_responses.decode_response(code, memoryview(answered), Dialect()) == answer


def test_a_failure_has_nothing_after_its_header() -> None:
    assert frames.failure(Code.STREAM_NAME_ALREADY_EXISTS) == vectors.octets("T10")
    assert frames.failure(Code.UNAUTHENTICATED) == vectors.octets("T11")
    assert frames.response_header(vectors.octets("T10")) == (1012, 0)


# ----------------------------------------------------------------------------------------------------------- messages

TO_PARTITION_0 = Partitioning(PartitioningKind.PARTITION_ID, 0)
SENDS: dict[str, tuple[int, object, object, Partitioning, list[tuple[int, bytes]]]] = {
    "T26": (
        64,
        "s1",
        "t1",
        TO_PARTITION_0,
        [(0x6_6088_F314_01A7, b"hello"), (0x6_6088_F314_01AA, b"\0\1\2")],
    ),
    "T27": (
        56,
        "s1",
        "t1",
        TO_PARTITION_0,
        [(0x6_6088_FA1D_C235, b"hello"), (0x6_6088_FA1D_C23C, b"\0\1\2")],
    ),
    "T28": (64, 0, 0, Partitioning(PartitioningKind.PARTITION_ID, 2), [(0x6_6088_F314_0254, b"abc")]),
}
FOO_BAR = bytes.fromhex("0203000000666f6f0203000000626172")


@pytest.mark.parametrize("name", SENDS)
def test_messages_of_real_clients_become_a_good_batch(name: str) -> None:
    header_size, stream, topic, to, expected = SENDS[name]
    dialect = Dialect()
    ((code, payload),) = vectors.requests_in(name)
    request = decode(code, payload, dialect)
    assert (request.stream, request.topic, request.partitioning) == (stream, topic, to)
    assert dialect.header_size == header_size
    (batch,) = request.batches
    batches.check(batch)
    found = list(batches.messages(batch))
    assert [(m.origin_timestamp, m.payload) for m in found] == expected
    assert all(m.id and not m.user_headers for m in found)
    again = bytearray(requests.encode_request(request, header_size))
    for i in range(len(expected)):
        at = len(payload) - sum(header_size + len(m[1]) for m in expected[i:])
        again[at + 8 : at + 24] = bytes(16)
    assert again == payload


@pytest.mark.parametrize(("name", "header_size"), [("T29", 64), ("T30", 56)])
def test_user_headers_of_both_layouts_are_stored_in_one_and_sent_in_their_own(name: str, header_size: int) -> None:
    ((code, payload),) = vectors.requests_in(name)
    request = decode(code, payload)
    assert request.partitioning == Partitioning(PartitioningKind.MESSAGES_KEY, key=b"k1")
    (message,) = batches.messages(request.batches[0])
    assert (message.id, message.payload, message.user_headers) == (42, b"hey", FOO_BAR)
    assert requests.encode_request(request, header_size) == payload


@pytest.mark.parametrize(("name", "header_size", "origins"), [
    ("T35", 64, (0x6_6088_F314_01A7, 0x6_6088_F314_01AA)),
    ("T36", 56, (0x6_6088_FA1D_C235, 0x6_6088_FA1D_C23C)),
])  # fmt: skip
def test_polled_messages_are_those_that_real_clients_accept(
    name: str, header_size: int, origins: tuple[int, int]
) -> None:
    identity = 0x100F_0E0D_0C0B_0A09_0807_0605_0403_0201
    kept = (
        stored([Classic(identity, 0, FIRST, origins[0], b"hello")]),
        stored([Classic(identity, 1, FIRST + 1, origins[1], b"\0\1\2")]),
    )
    answer = responses.Polled(0, 2, 2, kept)
    assert encode(100, answer, header_size) == vectors.response(name)
    again = wire_responses.decode_response(100, memoryview(vectors.response(name)), Dialect(forced=header_size))
    assert again == answer


def test_a_poll_that_finds_nothing_still_has_sixteen_bytes() -> None:
    assert encode(100, responses.Polled(1, 2, 0, ())) == vectors.response("T37")


def test_the_checksum_of_a_stored_message() -> None:
    kept = stored([Classic(42, 7, FIRST, FIRST - 1_000_000, b"hey", FOO_BAR)])
    assert encode(100, responses.Polled(0, 7, 1, (kept,)))[16:] == vectors.octets("T38")


# ------------------------------------------------------------------------------------------------------------- pieces


PARTITIONING = primitives.Part(primitives.read_partitioning, primitives.partitioning)


@pytest.mark.parametrize(
    ("name", "part", "value"),
    [
        ("U1", primitives.IDENTIFIER, 1),
        (
            "U2",
            PARTITIONING,
            Partitioning(PartitioningKind.BALANCED),
        ),
        (
            "U3",
            PARTITIONING,
            Partitioning(PartitioningKind.PARTITION_ID, 1),
        ),
        ("U4", primitives.STRATEGY, offset(1)),
    ],
)
def test_pieces(name: str, part: primitives.Part, value: object) -> None:
    assert part.read(Reader(memoryview(vectors.octets(name)))) == value
    assert part.write(value) == vectors.octets(name)


@pytest.mark.parametrize(
    ("name", "code", "request_"),
    [
        ("U5", 38, commands.LoginUser("u", "p", "", "")),
        ("U7", 602, commands.CreateConsumerGroup(1, 2, "grp")),
        ("U8", 102, commands.FlushUnsavedBuffer(1, 2, 3, True)),
        ("U9", 202, commands.CreateStream("test")),
        ("U10", 21, commands.GetClient(1)),
    ],
)
def test_payloads(name: str, code: int, request_: commands.Request) -> None:
    assert decode(code, vectors.octets(name)) == request_
    assert requests.encode_request(request_) == vectors.octets(name)


def test_a_user_without_a_status_is_refused() -> None:
    with pytest.raises(CommandError) as refused:
        decode(33, vectors.octets("U6"))
    assert refused.value.code == Code.INVALID_COMMAND


def test_every_vector_is_checked() -> None:
    looked_at = {*REQUESTS, *ANSWERS, *EXCHANGES, *SENDS}
    looked_at |= {"T10", "T11", "T29", "T30", "T35", "T36", "T37", "T38", "T58"}
    assert set(vectors.VECTORS) == looked_at
