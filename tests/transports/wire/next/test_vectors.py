"""Bytes that 0.12 clients sent are decoded, and responses are encoded as they accepted them, byte for byte."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.transports.wire.next.support import vectors
from whippet.app.commands import requests as commands
from whippet.app.commands import responses
from whippet.app.commands.requests import Consumer, ConsumerKind, Strategy, StrategyKind
from whippet.app.errors import Code, CommandError
from whippet.app.model.options import Option, ValueKind
from whippet.storage import batch as batches
from whippet.storage.batch_producer import producer_of
from whippet.storage.options import Durability
from whippet.transports.wire import generations
from whippet.transports.wire.modern import frames as modern_frames
from whippet.transports.wire.modern import registration as modern_registration
from whippet.transports.wire.next import frames, registration, requests
from whippet.transports.wire.next import responses as wire_responses
from whippet.transports.wire.next.operations import OF_CODE

ONE, NINE = Consumer(ConsumerKind.CONSUMER, 1), Consumer(ConsumerKind.CONSUMER, 9)
GROUP = Consumer(ConsumerKind.GROUP, "g")
FIRST, NEXT = Strategy(StrategyKind.FIRST), Strategy(StrategyKind.NEXT)
SDK = ("rust-sdk", "0.11.1-edge.9")
NEWEST, OLDEST = 12 << 10 | 2, 12 << 10

REQUESTS: dict[str, tuple[int, commands.Request]] = {
    "N01": (1, commands.Ping()),
    "N04": (12, commands.GetClusterMetadata()),
    "N06": (201, commands.GetStreams()),
    "N09": (202, commands.CreateStream("s")),
    "N11": (105, commands.GetPartitionRoute("s", "t", 0)),
    "N13": (
        106,
        commands.PollMessagesDeferred(
            ONE, "s", "t", 0, FIRST, 10, False, max_bytes=1 << 20, request_timeout_us=9_999_618
        ),
    ),
    "N14": (121, commands.StoreConsumerOffset(NINE, "s", "t", 0, 1)),
    "N15": (120, commands.GetConsumerOffset(NINE, "s", "t", 0)),
    "N25": (
        109,
        commands.FetchMessages(
            GROUP,
            "s",
            "t",
            4_999_889,
            14_999_871,
            1,
            1000,
            1_048_516,
            False,
            (commands.FetchTarget(0, NEXT, 1_048_516, 14),),
        ),
    ),
}
"""With the code of each."""


TWO_HOURS = Option("message_expiry", ValueKind.UINT64, (7_200_000_000).to_bytes(8, "little"))
PATCHES: dict[str, commands.Request] = {
    "N18": commands.PatchStream("s", (Option("name", ValueKind.STRING, b"s9"),)),
    "N19": commands.PatchTopic("s", "t", (TWO_HOURS, Option("name", ValueKind.STRING, b"t9"))),
    "N20": commands.PatchTopic("s", "t", reset=("message_expiry",)),
}


@pytest.mark.parametrize("name", PATCHES)
def test_an_update_names_what_changes(name: str) -> None:
    body, request = vectors.body(name), PATCHES[name]
    assert requests.decode(16, memoryview(body)) == request
    assert (requests.code_of(request), OF_CODE[16]) == (16, 150)
    assert b"".join(requests.encode(request)) == body
    with pytest.raises(CommandError):
        requests.decode(16, memoryview(b"\4" + body[1:]))


def asked(name: str) -> frames.Request:
    found = frames.request_of(vectors.octets(name))
    assert found.size == len(vectors.octets(name))
    return found


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_decoded_and_encoded_again(name: str) -> None:
    code, request = REQUESTS[name]
    header, body = asked(name), vectors.body(name)
    assert header.code == (0 if code in OF_CODE else code)
    assert header.operation == OF_CODE.get(code, 2)
    assert requests.decode(code, memoryview(body)) == request
    assert b"".join(requests.encode(request)) == body


def test_a_send_names_the_incarnation_of_its_partition() -> None:
    header, body = asked("N12"), memoryview(bytearray(vectors.body("N12")))
    assert (header.operation, header.number, header.incarnation, header.minimum_metadata_op) == (160, 3, 15, 21)
    request = requests.decode(101, body)
    assert isinstance(request, commands.SendMessages)
    assert [one.payload for one in batches.messages(request.batches[0])] == [b"hello", b"world!"]
    assert batches.check(request.batches[0]).message_count == 2


def test_a_batch_may_name_its_producer() -> None:
    said = bytearray(256)
    said[40:72] = bytes.fromhex("9617af914bf481bc01000000010000000000f000000000000000000002000000")
    assert producer_of(said) == (15 << 20, 0, 2)
    assert producer_of(bytes(256)) is None


def test_a_cancellation_has_the_number_of_what_it_cancels() -> None:
    header = asked("N26")
    assert (header.code, header.number, header.operation) == (108, 0x22, 2)


@pytest.mark.parametrize(
    ("name", "version", "login"),
    [
        ("N02", NEWEST, commands.LoginUser("iggy", "iggy", "0.11.1-edge.9", "")),
        ("N08", NEWEST, commands.LoginWithPersonalAccessToken("0123456789abcdef0123456789abcdef")),
        ("N28", OLDEST, commands.LoginUser("iggy", "iggy", "0.11.1-edge.5", "")),
    ],
)
def test_a_login_brings_a_secret_of_which_a_digest_is_kept(name: str, version: int, login: Any) -> None:
    body = vectors.body(name)
    found = registration.decode(memoryview(body))
    secret = body[27:59]
    assert found.protocol == version
    assert found.secret_digest == registration.digest(secret) != secret
    assert found.login == login
    sdk_version = "0.11.1-edge.5" if name == "N28" else SDK[1]
    assert registration.encode(version, secret, login, SDK[0], sdk_version) == body


def test_a_session_is_resumed_with_its_secret() -> None:
    body = vectors.body("N24")
    found = registration.decode_binding(memoryview(body))
    client = bytes.fromhex("d582ef7a50394cf9b7e455a81ab7fd69")
    assert found == (NEWEST, client, 11, registration.digest(body[-32:]))
    said = registration.encode_binding(NEWEST, client, 11, body[-32:], *SDK)
    # What the client has seen of the catalogue is ignored.
    assert said == body[:51] + bytes(8) + body[59:]


@pytest.mark.parametrize("name", ["N02", "N24"])
def test_a_login_that_is_cut_off_is_refused(name: str) -> None:
    decode = registration.decode if name == "N02" else registration.decode_binding
    body = vectors.body(name)
    for size in range(len(body)):
        with pytest.raises(CommandError):
            decode(memoryview(body[:size]))


# ------------------------------------------------------------------------------------------------------------- replies


def reply(name: str, number: int, content: list[Any], *, is_committed: bool) -> bytes:
    return b"".join(frames.reply(asked(name), number, content, is_committed=is_committed))


def test_a_reply_repeats_the_request_and_says_whether_it_is_final() -> None:
    registered = modern_registration.Registered(0, 11, NEWEST, "0.9.9")
    content = modern_registration.encode_response(registered)
    said = reply("N02", 11, modern_frames.results(content), is_committed=True)
    assert said == vectors.octets("N03")
    assert reply("N24", 0, content, is_committed=False) == vectors.octets("N24R")
    sent = wire_responses.OF_0_12_2.encode(101, responses.Sent(0, 0, 0, 0, 2, Durability.WRITTEN))
    assert reply("N12", 0x16, sent, is_committed=True) == vectors.octets("N12R")
    stored = modern_frames.results(wire_responses.OF_0_12_2.encode(121, None))
    assert reply("N14", 0x1A, stored, is_committed=True) == vectors.octets("N14R")


def test_the_roster_and_the_route_have_the_layout_of_clients() -> None:
    node = responses.ClusterNode("node-1", "127.0.0.1", 47110, 0, 0, 0, 0, 0)
    roster = wire_responses.OF_0_12_2.encode(12, responses.ClusterMetadata("single-node", (node,)))
    assert reply("N04", 0, roster, is_committed=False) == vectors.octets("N05")
    route = wire_responses.OF_0_12_2.encode(105, responses.PartitionRoute(15, 21, 2))
    assert reply("N11", 0, route, is_committed=False) == vectors.octets("N11R")


def test_accepted_batches_can_be_read() -> None:
    stream = wire_responses.OF_0_12_2.decode(202, memoryview(vectors.body("N09R")[4:]))
    assert (stream.info.id, stream.info.name, stream.topics) == (0, "s", ())
    user = wire_responses.OF_0_12_2.decode(33, memoryview(vectors.body("N22R")[4:]))
    assert (user.info.id, user.info.username, user.permissions) == (1, "bob", None)
    (option,) = wire_responses.OF_0_12_2.decode(13, memoryview(vectors.body("N21R")))
    updatable = responses.OptionFlags.UPDATABLE | responses.OptionFlags.RESETTABLE
    assert option == responses.OptionDescription("message_expiry", ValueKind.UINT64, b"\xff" * 8, "desc", updatable)
    assert b"".join(wire_responses.OF_0_12_2.encode(13, (option,))) == vectors.body("N21R")


TOPIC = responses.TopicInfo(
    1,
    2,
    2,
    message_expiry=3,
    compression_algorithm=2,
    max_topic_size=4,
    replication_factor=1,
    size_bytes=5,
    messages_count=6,
    name="t",
    explicit=(Option("message_expiry", ValueKind.UINT64, (3).to_bytes(8, "little")),),
    derived=(
        Option("compression_algorithm", ValueKind.STRING, b"gzip"),
        Option("max_topic_size", ValueKind.UINT64, (4).to_bytes(8, "little")),
    ),
)
PARTITIONS = tuple(responses.PartitionInfo(number, 2, 1, 0, 5, 6, incarnation=15) for number in range(2))


@pytest.mark.parametrize(("wire", "size"), [(wire_responses.OF_0_12_0, 64), (wire_responses.OF_0_12_2, 68)])
def test_a_partition_has_an_entry_of_the_size_of_its_version(wire: wire_responses.Responses, size: int) -> None:
    alone = b"".join(wire.encode(300, responses.TopicDetails(msgspec.structs.replace(TOPIC, partitions_count=0), ())))
    whole = b"".join(wire.encode(300, responses.TopicDetails(TOPIC, PARTITIONS)))
    assert len(whole) - len(alone) == 2 * size
    # 33 bytes, the name, and two blocks of options after their lengths.
    assert len(alone) == 33 + 1 + sum(4 + len(b"".join(_octets(block))) for block in (TOPIC.explicit, TOPIC.derived))
    assert wire.decode(300, memoryview(whole)) == responses.TopicDetails(TOPIC, PARTITIONS)
    entry = whole[len(alone) :][:size]
    assert entry[40:48] == entry[56:64] == (15).to_bytes(8, "little")
    assert entry[48:56] == bytes(8)
    assert entry[64:] == b"\1\0\1\0"[: size - 64]


def _octets(options: tuple[Option, ...]) -> list[bytes]:
    return [b"?" * (10 + len(option.key) + len(option.value)) for option in options]


def test_polls_and_fetches_have_the_layout_of_clients() -> None:
    batch = batches.build([batches.Message(b"x", 1)], 10, bytes)
    polled = responses.PolledAt(responses.Polled(3, 7, 1, (batch,)), 15, 23)
    body = b"".join(wire_responses.OF_0_12_2.encode(106, polled))
    assert body[:16] == b"\3\0\0\0\7\0\0\0\0\0\0\0\1\0\0\0"
    assert body[16:40] == (15).to_bytes(8, "little") + bytes(8) + (23).to_bytes(8, "little")
    assert wire_responses.OF_0_12_2.decode(106, memoryview(body)) == polled
    nothing = wire_responses.OF_0_12_2.encode(
        100, responses.PolledAt(responses.Polled(3, 7, 0, (), owned=False), 0, 23)
    )
    assert b"".join(nothing)[:4] == b"\xff" * 4
    assert len(b"".join(nothing)) == 40

    section = responses.Section(0, 0, 0, 1, 14, 1, (batch,))
    refused = responses.Section(1, Code.PARTITION_NOT_FOUND, 0, 0, 0, 5)
    fetched = wire_responses.OF_0_12_2.encode(109, responses.Fetched((section, refused), 18))
    body = b"".join(fetched)
    # The captured reply has one section with a batch of 306 bytes.
    head = vectors.body("N25R")
    assert body[4:56] == head[4:56]
    assert body[56:60] == len(batch).to_bytes(4, "little")
    assert len(body) == 4 + 2 * 56 + len(batch)
    found = wire_responses.OF_0_12_2.decode(109, memoryview(body))
    assert (found.sections[1], found.metadata_op) == (refused, 18)


@pytest.mark.parametrize(
    ("version", "generation"),
    [
        (11 << 10, generations.OF_0_11),
        (11 << 10 | 1023, generations.OF_0_11),
        (12 << 10, generations.OF_0_12_0),
        (12 << 10 | 1, generations.OF_0_12_0),
        (12 << 10 | 2, generations.OF_0_12_2),
    ],
)
def test_a_version_belongs_to_one_generation(version: int, generation: generations.Generation) -> None:
    assert generations.of(version) is generation
