"""A producer of one version and a consumer of another: both see the same messages, although their headers differ."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable

import pytest

from tests.sdk.support.environments import NEWEST, VERSIONS
from tests.sdk.support.inspector import Inspector, Message
from tests.sdk.support.program import Program, Sdk
from tests.sdk.support.server import Server

PAIRS = list(itertools.product(VERSIONS, VERSIONS))


def produce(start: Callable[..., Program], sdk: Sdk, task: dict[str, object], **more: object) -> None:
    producer = start(sdk, "producer", **task, **more, batch=10)
    producer.tell("go")
    producer.end()


@pytest.mark.parametrize(("of_producer", "of_consumer"), PAIRS, ids=str)
def test_one_version_polls_and_consumes_what_another_has_sent(
    sdks: dict[str, Sdk], server: Server, start: Callable[..., Program], name: str, of_producer: str, of_consumer: str
) -> None:
    task: dict[str, object] = {"address": server.address, "stream": name, "topic": "t", "partitions": 2}
    produce(start, sdks[of_producer], task, count=50)
    reader = start(sdks[of_consumer], "reading", **task, group="g")
    reader.end()
    sent = [[f"{partition}:{number}" for number in range(50)] for partition in range(2)]
    assert reader.all("polled") == [sent]
    assert sorted(reader.all("consumed")[0]) == sorted(itertools.chain(*sent))


def test_a_partition_filled_by_all_versions_is_read_by_all(
    sdks: dict[str, Sdk], server: Server, start: Callable[..., Program], name: str
) -> None:
    """Ids and times are the same for all, and so are the headers, for those that can see them."""
    task: dict[str, object] = {"address": server.address, "stream": name, "topic": "t", "partitions": 1}
    rounds = [*sdks.items(), *sdks.items()]
    for round_number, (_, sdk) in enumerate(rounds):
        produce(start, sdk, task, count=20, first=20 * round_number, create=round_number == 0, labelled=True)
    senders = [version for version, _ in rounds for _ in range(20)]
    sent = [f"0:{number}" for number in range(len(senders))]
    seen = {}
    for version, sdk in sdks.items():
        reader = start(sdk, "reading", **task, group=f"of {version}")
        reader.end()
        assert reader.all("polled") == [[sent]], version
        assert reader.all("consumed") == [sent], version
        seen[version] = reader.findings()
    assert all(of_one["seen"] == seen[NEWEST]["seen"] for of_one in seen.values())
    (messages,), (labels,) = seen[NEWEST]["seen"], seen[NEWEST]["labels"]
    ids = [int(identity) for _, identity, _ in messages]
    assert len(set(ids)) == len(ids)
    assert all(ids)
    for number, version in enumerate(senders):
        if version == NEWEST:
            assert ids[number] == 2**100 + number
            assert labels[number] == [["7", r"b'\x00'"], ["number", f"{number}"], ["text", f"0:{number}"]]
        else:
            assert labels[number] is None


def typed_headers() -> bytes:
    """Returns a text, a number, and a number as a key, as both wires encode them since 0.7."""
    pairs = (((2, b"text"), (2, "да".encode())), ((2, b"n"), (9, b"\x05")), ((11, b"\x07\0\0\0"), (3, b"\x01")))
    return b"".join(struct.pack("<BI", kind, len(data)) + data for pair in pairs for kind, data in pair)


def test_headers_survive_the_change_from_one_wire_to_the_other(
    sdks: dict[str, Sdk], server: Server, inspector: Inspector, start: Callable[..., Program], name: str
) -> None:
    task: dict[str, object] = {"address": server.address, "stream": name, "topic": "t", "partitions": 1}
    produce(start, sdks[NEWEST], task, count=10, labelled=True)
    classic = [
        Message(7, b"with headers", typed_headers(), origin=1_000_000),
        Message(8, b"without", origin=9_000_000_000_000),
        Message(0, b"without an id", origin=1_000_001),
    ]
    inspector.send(name, "t", classic)
    reader = start(sdks[NEWEST], "reading", **task)
    reader.end()
    said = reader.findings()
    (texts,), (labels,), (seen,) = said["polled"], said["labels"], said["seen"]
    assert texts[10:] == ["with headers", "without", "without an id"]
    assert labels[10:] == [[["7", "True"], ["n", "5"], ["text", "да"]], None, None]
    assert [identity for _, identity, _ in seen[10:12]] == ["7", "8"]
    assert said["origins"][0][10:] == [message.origin for message in classic]

    polled = inspector.poll(name, "t")
    assert [message.offset for message in polled] == list(range(13))
    assert [[message.payload.decode(), f"{message.id}", message.timestamp] for message in polled] == seen
    assert [message.origin for message in polled] == said["origins"][0]
    assert polled[10].headers == typed_headers()
    assert polled[0].headers.startswith(struct.pack("<BI", 2, 6) + b"number" + struct.pack("<BI", 9, 1) + b"\0")
    assert not polled[11].headers
