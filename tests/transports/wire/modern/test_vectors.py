"""Bytes that the 0.9 wheel sent are decoded, and responses are encoded as it accepted them, byte for byte."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest
import xxhash

from tests.transports.wire.modern.support import vectors
from whippet.app.access.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from whippet.app.commands import requests as commands
from whippet.app.commands import responses
from whippet.app.commands.requests import Consumer, ConsumerKind, Partitioning, PartitioningKind, Strategy, StrategyKind
from whippet.app.errors import Code
from whippet.app.model.options import Option, ValueKind
from whippet.storage import batch as batches
from whippet.storage.options import Durability
from whippet.transports.wire.modern import frames, registration, requests
from whippet.transports.wire.modern import responses as wire_responses
from whippet.transports.wire.modern.frames import HEADER_BYTES, Reason
from whippet.transports.wire.modern.operations import CODES, OF_CODE, PLAIN, READ, REGISTER
from whippet.transports.wire.modern.registration import Registered, Registration

NEVER = 2**64 - 1
NAMED_C, NAMED_C1 = Consumer(ConsumerKind.CONSUMER, "c"), Consumer(ConsumerKind.CONSUMER, "c1")
NUMBER_9, GROUP_G = Consumer(ConsumerKind.CONSUMER, 9), Consumer(ConsumerKind.GROUP, "g")
NEXT = Strategy(StrategyKind.NEXT)
WHEEL = ("rust-sdk", "0.11.0")
SPOKEN = registration.packed(0, 11, 0)
BOBS = Permissions(
    GlobalPermissions(read_streams=True),
    {1: StreamPermissions(poll_messages=True, topics={2: TopicPermissions(send_messages=True)})},
)
REPLICATED = b"replicated"
CHOSEN = (
    Option("consumer_offset_durability", ValueKind.STRING, REPLICATED),
    Option("durability", ValueKind.STRING, REPLICATED),
    Option("message_expiry", ValueKind.UINT64, (3_600_000_000).to_bytes(8, "little")),
)
DERIVED = (
    Option("compression_algorithm", ValueKind.STRING, b"none"),
    Option("max_topic_size", ValueKind.UINT64, b"\xff" * 8),
    Option("messages_required_to_save", ValueKind.UINT32, (1024).to_bytes(4, "little")),
    Option("preallocate_segments", ValueKind.BOOL, b"\0"),
    Option("segment_size", ValueKind.UINT64, (2**30).to_bytes(8, "little")),
    Option("size_of_messages_required_to_save", ValueKind.UINT64, (2**20).to_bytes(8, "little")),
)


def time(digits: str) -> int:
    """As it is on the wire."""
    return int.from_bytes(bytes.fromhex(digits), "little")


# ------------------------------------------------------------------------------------------------------------ requests

NUMBERED: dict[str, tuple[int, commands.Request]] = {
    "V07": (1, commands.CreateStream("s")),
    "V12": (3, commands.CreateTopic("s", "t", 2, options=CHOSEN)),
    "V14": (
        4,
        commands.UpdateTopic("s", "t", "t", options=(Option("compression_algorithm", ValueKind.STRING, b"gzip"),)),
    ),
    "V25": (8, commands.CreateConsumerGroup("s", "t", "g")),
    "V27": (9, commands.JoinConsumerGroup("s", "t", "g")),
    "V33": (11, commands.StoreConsumerOffset(GROUP_G, "s", "t", 0, 0)),
    "V36": (16, commands.CreateUser("bob", "secret", commands.UserStatus.ACTIVE, BOBS)),
    "V38": (21, commands.CreatePersonalAccessToken("p1", 0)),
    "V40": (26, commands.LogoutUser()),
}
"""With the number of each."""
ROUTED = (NAMED_C1, "r", "t", 0, NEXT, 1, True)
READS: dict[str, tuple[int, int, commands.Request]] = {
    "V01": (1, 1, commands.Ping()),
    "V05": (12, 1, commands.GetClusterMetadata()),
    "V10": (201, 3, commands.GetStreams()),
    "V19": (100, 8, commands.PollMessages(NAMED_C, "s", "t", 0, Strategy(StrategyKind.FIRST), 10, False)),
    "V21": (100, 8, commands.PollMessages(NAMED_C, "s", "t", 0, Strategy(StrategyKind.OFFSET, 1), 1, True)),
    "V23": (100, 8, commands.PollMessages(NUMBER_9, "s", "t", None, NEXT, 1, False)),
    "V28": (606, 10, commands.SyncConsumerGroup("s", "t", "g")),
    "V30": (100, 10, commands.PollMessages(GROUP_G, "s", "t", 0, NEXT, 1, True)),
    "V45": (103, 4, commands.GetPollRouting(*ROUTED)),
    "V47": (14, 1, commands.AttachSession(bytes.fromhex("b5a907e37c6a4196bb1a3e82e77e06fb"), 1)),
    "V48": (104, 1, commands.PollMessages(*ROUTED)),
}
"""With code and number."""
SENDS = {"V16": (5, 0), "V18": (6, 1)}
"""With number and partition."""
REGISTRATIONS: dict[str, commands.LoginUser | commands.LoginWithPersonalAccessToken] = {
    "V03": commands.LoginUser("iggy", "iggy", WHEEL[1], ""),
    "V42": commands.LoginWithPersonalAccessToken("fc88f117237b1cb7d28f22a3e4694784"),
}
NO_SESSION_YET = ("V01", "V03", "V42")
ON_THE_DATA_CONNECTION = ("V47", "V48")


def session_of(name: str) -> int:
    if name in NO_SESSION_YET:
        return 0
    return 4 if name in ON_THE_DATA_CONNECTION else 1


def framed(name: str, number: int, operation: int, code: int, body: bytes, *, checked: bool) -> bytes:
    client = vectors.octets(name)[128:144]
    checksum = xxhash.xxh3_64_intdigest(body) if checked else 0
    head = frames.request_head(client, number, operation, session_of(name), code, len(body), checksum)
    return head + body


def asked(name: str) -> frames.Request:
    whole = vectors.octets(name)
    found = frames.request_of(whole)
    assert frames.measure(whole) == found.size == len(whole)
    assert found.session == session_of(name)
    if any(found.checksum):
        assert int.from_bytes(found.checksum, "little") == xxhash.xxh3_64_intdigest(vectors.body(name))
    return found


@pytest.mark.parametrize("name", NUMBERED)
def test_changes_have_an_operation_and_a_number(name: str) -> None:
    number, request = NUMBERED[name]
    found = asked(name)
    assert (found.number, found.code) == (number, 0)
    code = CODES[found.operation]
    assert requests.decode(code, memoryview(vectors.body(name))) == request
    assert requests.code_of(request) == code
    assert OF_CODE[code] == found.operation
    body = b"".join(requests.encode(request))
    # The wheel leaves out the checksum of requests for one partition.
    checked = found.operation < 160
    assert framed(name, number, found.operation, 0, body, checked=checked) == vectors.octets(name)


@pytest.mark.parametrize("name", READS)
def test_reads_have_a_code(name: str) -> None:
    code, number, request = READS[name]
    found = asked(name)
    assert (found.operation, found.code, found.number) == (READ, code, number)
    assert requests.decode(code, memoryview(vectors.body(name))) == request
    body = b"".join(requests.encode(request))
    if name == "V47":
        # The state of the catalogue that the client knows, which is ignored here.
        assert body[:24] == vectors.body(name)[:24]
        body = vectors.body(name)
    assert code not in OF_CODE
    assert framed(name, number, READ, code, body, checked=False) == vectors.octets(name)


@pytest.mark.parametrize("name", SENDS)
def test_a_send_is_a_batch_that_the_log_takes_as_it_is(name: str) -> None:
    number, partition_id = SENDS[name]
    found = asked(name)
    assert (CODES[found.operation], found.number, any(found.checksum)) == (101, number, False)
    body = memoryview(vectors.body(name))
    request = requests.decode(101, body)
    assert isinstance(request, commands.SendMessages)
    assert (request.stream, request.topic) == ("s", "t")
    assert request.partitioning == Partitioning(PartitioningKind.PARTITION_ID, partition_id)
    (batch,) = request.batches
    assert isinstance(batch, memoryview)
    assert batch.obj is body.obj, "nothing is copied"
    batches.check(batch)
    again = b"".join(requests.encode(request))
    assert framed(name, number, found.operation, 0, again, checked=False) == vectors.octets(name)


@pytest.mark.parametrize("name", REGISTRATIONS)
def test_the_form_of_a_registration_shows_how_it_logs_in(name: str) -> None:
    login = REGISTRATIONS[name]
    found = asked(name)
    assert (found.operation, found.number, found.code) == (REGISTER, 0, 0)
    assert registration.decode(memoryview(vectors.body(name))) == Registration(SPOKEN, login)
    body = registration.encode(SPOKEN, login, *WHEEL)
    assert framed(name, 0, REGISTER, 0, body, checked=True) == vectors.octets(name)


# ------------------------------------------------------------------------------------------------------------- answers

STREAM_S = responses.StreamInfo(0, time("0e6bbca889600600"), 0, 0, 0, "s")
TOPIC_T = responses.TopicInfo(
    0, time("6b6fbca889600600"), 2, 3_600_000_000, 1, NEVER, 1, 0, 0, "t", explicit=CHOSEN, derived=DERIVED
)
PARTITIONS = (
    responses.PartitionInfo(0, time("6f6fbca889600600"), 1, 0, 0, 0),
    responses.PartitionInfo(1, time("706fbca889600600"), 1, 0, 0, 0),
)
NODE_1 = responses.ClusterNode("node-1", "127.0.0.1", 18_090, 18_080, 0, 18_092, 0, 0)
EMPTY_GROUP_G = responses.GroupInfo(0, 2, 0, "g")
GROUP_G_WITH_A_MEMBER = responses.GroupDetails(responses.GroupInfo(0, 2, 1, "g"), (responses.GroupMember(0, (0, 1)),))
BOB = responses.UserInfo(1, time("ed8cbca889600600"), commands.UserStatus.ACTIVE, "bob")
POLLED, SLICED = vectors.body("V20")[16:], vectors.body("V22")[16:]


class Answer(NamedTuple):
    code: int
    operation_number: int
    answer: Any


ANSWERS = {
    "V02": Answer(1, 0, None),
    "V06": Answer(12, 1, responses.ClusterMetadata("single-node", (NODE_1,))),
    "V08": Answer(202, 2, responses.StreamDetails(STREAM_S, ())),
    "V11": Answer(201, 2, (STREAM_S,)),
    "V13": Answer(302, 3, responses.TopicDetails(TOPIC_T, PARTITIONS)),
    "V15": Answer(304, 4, None),
    "V17": Answer(101, 4, responses.Sent(0, 0, 0, 0, 2, Durability.WRITTEN)),
    "V20": Answer(100, 4, responses.Polled(0, 2, 3, (POLLED,))),
    "V22": Answer(100, 4, responses.Polled(0, 2, 1, (SLICED,))),
    "V26": Answer(602, 5, responses.GroupDetails(EMPTY_GROUP_G, ())),
    "V29": Answer(606, 6, responses.GroupAssignment(1, (0, 1))),
    "V31": Answer(100, 14, responses.Polled(0, 0, 0, (), owned=False)),
    "V32": Answer(600, 6, GROUP_G_WITH_A_MEMBER),
    "V34": Answer(121, 7, None),
    "V37": Answer(33, 10, responses.UserDetails(BOB, BOBS)),
    "V39": Answer(42, 15, responses.RawToken("fc88f117237b1cb7d28f22a3e4694784")),
    "V41": Answer(39, 20, None),
    "V46": Answer(103, 3, responses.Routing(bytes.fromhex("b5a907e37c6a4196bb1a3e82e77e06fb"), 1, 3, NODE_1)),
}


def asked_for(whole: bytes) -> frames.Request:
    """The fields of the request that a reply repeats."""
    return frames.Request(
        size=0,
        kind=frames.REQUEST,
        client=whole[160:176],
        checksum=whole[128:144],
        timestamp=0,
        number=int.from_bytes(whole[200:208], "little"),
        operation=whole[208],
        session=0,
        code=0,
    )


def content(whole: bytes, operation: int) -> memoryview:
    """What follows the section of results, if there is one."""
    body = memoryview(whole)[HEADER_BYTES:]
    if operation in PLAIN:
        return body
    refused, rest = frames.refused(body)
    assert refused is None
    return rest


@pytest.mark.parametrize("name", ANSWERS)
def test_what_the_wheel_accepts_is_what_is_sent_and_our_client_understands_it(name: str) -> None:
    code, operation_number, answer = ANSWERS[name]
    whole = vectors.octets(name)
    operation = whole[208]
    assert operation == OF_CODE.get(code, READ)
    assert frames.reply_of(whole) == frames.Reply(len(whole), frames.REPLY, operation, 0, 0)

    body = wire_responses.encode(code, answer)
    if operation not in PLAIN:
        body = frames.results(body)
    assert b"".join(frames.reply(asked_for(whole), operation_number, body)) == whole

    found = wire_responses.decode(code, content(whole, operation))
    if isinstance(answer, responses.Sent):
        found, answer = found[0], responses.Confirmation(0, 0, 0, 0)
    elif isinstance(answer, responses.Polled):
        assert b"".join(found.batches) == b"".join(answer.batches)
        found, answer = (msgspec.structs.replace(one, batches=()) for one in (found, answer))
    assert found == answer


def test_a_registration_is_answered_with_a_session_and_a_version() -> None:
    whole = vectors.octets("V04")
    answer = Registered(0, 1, SPOKEN, "0.9.0")
    body = frames.results(registration.encode_response(answer))
    assert b"".join(frames.reply(asked_for(whole), 1, body)) == whole
    assert registration.decode_response(content(whole, REGISTER)) == answer


@pytest.mark.parametrize(("name", "operation_number", "code"), [("V09", 2, 1012), ("V35", 7, 3021)])
def test_a_refusal_is_in_the_section_of_results(name: str, operation_number: int, code: int) -> None:
    whole = vectors.octets(name)
    assert frames.reply_of(whole).status == 0
    assert b"".join(frames.reply(asked_for(whole), operation_number, frames.refusal(Code(code)))) == whole
    refused, rest = frames.refused(memoryview(whole)[HEADER_BYTES:])
    assert (refused, bytes(rest)) == (code, b"")


def test_without_a_section_of_results_an_error_is_in_the_header() -> None:
    whole = vectors.octets("V24")
    assert b"".join(frames.reply(asked_for(whole), 0, status=Code.TOPIC_NAME_NOT_FOUND)) == whole
    assert frames.reply_of(whole).status == 2011


@pytest.mark.parametrize(
    ("name", "reason", "versions"),
    [("V43", Reason.INVALID_CREDENTIALS, ()), ("V44", Reason.INCOMPATIBLE_PROTOCOL, (0x3000, 0x3000))],
)
def test_an_eviction_has_a_reason_and_no_body(name: str, reason: Reason, versions: tuple[int, ...]) -> None:
    whole = vectors.octets(name)
    assert b"".join(frames.eviction(whole[128:144], reason, *versions)) == whole
    found = frames.reply_of(whole)
    assert (found.kind, found.reason) == (frames.EVICTION, reason)


def test_every_vector_is_checked() -> None:
    assert len(vectors.VECTORS) == 48
    others = {"V04", "V09", "V24", "V35", "V43", "V44"}
    assert set(vectors.VECTORS) == {*NUMBERED, *READS, *SENDS, *REGISTRATIONS, *ANSWERS} | others


# ------------------------------------------------------------------------------------- the worked example of checksums


def sent_by_the_wheel() -> bytearray:
    (batch,) = requests.decode(101, memoryview(vectors.body("V16"))).batches  # type: ignore[attr-defined]
    return bytearray(batch)


def test_checksums_are_what_the_wheel_computes() -> None:
    batch = sent_by_the_wheel()
    assert batches.header(batch) == batches.Header(0, 0, 0, 1_794_994_217_972_850, 387, 0x31512169D3D22D90, 2)
    checked = batches.check(batch)
    assert checked.checksums == bytes.fromhex("8e5ca59edbbdbfb9 52a225c709994eb4")
    first, second = batches.messages(batch)
    assert (first.id, first.payload, first.user_headers) == (1, b"hello", b"")
    assert (second.id, second.payload) == (2, b"world!")
    assert second.user_headers == bytes.fromhex("02 01000000 6b 02 01000000 76 02 01000000 6e 09 01000000 05")
    assert second.origin_timestamp - first.origin_timestamp == 16


def test_a_batch_that_is_stamped_has_the_checksum_that_the_wheel_accepts() -> None:
    batch = sent_by_the_wheel()
    checked = batches.check(batch)
    batches.stamp(batch, 0, 0, 1_794_994_217_973_041, checked.checksums)
    assert batches.header(batch).checksum == 0x2F61E7F351ADB831
    assert batch == POLLED[:387]


def test_a_slice_has_the_checksum_that_the_wheel_accepts() -> None:
    whole = bytearray(POLLED[:387])
    cut = b"".join(batches.cut(whole, batches.frame_positions(whole), 1, 2))
    assert batches.header(cut).checksum == 0x3C83FBB3F7D7C30F
    assert cut == SLICED
