"""Sent messages arrive in the partition that was named, whatever their payload and however large it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.sdk.support.inspector import Inspector
from tests.sdk.support.program import Finding, Program, Sdk
from tests.sdk.support.server import Server

MIB = 1 << 20
TEXTS = ("plain", "заказ", "注文 🐕", "\u0000", " ", "a\nb", "ё" * 60)


class Sent:
    """What a run of the program has sent and read back."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.partitions: dict[int, list[Finding]] = {
            finding["partition"]: finding["messages"] for finding in program.said if "messages" in finding
        }
        self.answers = program.all("answer")

    def digests(self, partition: int) -> list[str]:
        """Digests of what the server accepted for a partition, in the order of sending."""
        sent = [finding for finding in self.program.said if "sent" in finding]
        return [
            digest
            for finding, answer in zip(sent, self.answers, strict=True)
            if finding["sent"] == partition and answer is None
            for digest in finding["digests"]
        ]


@pytest.fixture
def send(sdk: Sdk, server: Server, start: Callable[..., Program], name: str) -> Callable[..., Sent]:
    def send_some(*batches: tuple[int, list[Any]], partitions: int = 1, **more: object) -> Sent:
        task = {"stream": name, "topic": "t", "partitions": partitions, "batches": batches, **more}
        program = start(sdk, "sending", address=server.address, **task)
        program.end()
        sent = Sent(program)
        for partition, messages in sent.partitions.items():
            assert [message["digest"] for message in messages] == sent.digests(partition)
            assert [message["offset"] for message in messages] == list(range(len(messages)))
            assert {message.get("partition", partition) for message in messages} <= {partition}
        return sent

    return send_some


def test_every_text_and_every_byte_arrives_as_it_was_sent(send: Callable[..., Sent]) -> None:
    binary = [bytes(range(256))[start : start + 32] for start in range(0, 256, 32)]
    sent = send((0, list(TEXTS)), (0, [{"hex": payload.hex()} for payload in binary]))
    assert sent.answers == [None, None]
    expected = [text.encode() for text in TEXTS] + binary
    assert [bytes.fromhex(message["payload"]) for message in sent.partitions[0]] == expected
    assert [message["length"] for message in sent.partitions[0]] == [len(payload) for payload in expected]


def test_the_id_time_and_checksum_of_a_message_do_not_change(send: Callable[..., Sent]) -> None:
    before = time.time_ns() // 1000
    sent = send((0, ["first", "second"]), (0, ["third"]))
    messages = sent.partitions[0]
    assert len({message["id"] for message in messages}) == 3
    assert "0" not in {message["id"] for message in messages}
    times = [message["timestamp"] for message in messages]
    assert before <= times[0] == times[1] <= times[2] <= time.time_ns() // 1000
    assert all(message["checksum"] for message in messages)
    assert sent.program.said[-1]["checksums_again"] == [message["checksum"] for message in messages]


def test_a_message_goes_to_the_named_partition_only(send: Callable[..., Sent], inspector: Inspector, name: str) -> None:
    sent = send((2, ["a", "b"]), (0, ["c"]), (2, ["d"]), partitions=4)
    assert [len(sent.partitions[partition]) for partition in range(4)] == [1, 0, 3, 0]
    assert inspector.topic(name, "t").messages_of == {0: 1, 1: 0, 2: 3, 3: 0}
    assert sent.program.said[-1]["messages_count"] == 4


def test_a_batch_for_a_missing_target_is_refused_and_the_connection_stays_usable(
    send: Callable[..., Sent], sdk: Sdk, name: str
) -> None:
    elsewhere = [(name, "t", 1), (name, "nobody made this", 0), ("nobody made this", "t", 0)]
    sent = send((0, ["kept"]), elsewhere=elsewhere)
    refused = [sdk.error(answer) for answer in sent.program.all("elsewhere")]
    assert refused == ["PartitionNotFound", "TopicIdNotFound", "StreamIdNotFound"]
    assert len(sent.partitions[0]) == 1


def test_an_empty_batch_is_refused_and_the_next_one_is_accepted(send: Callable[..., Sent], sdk: Sdk) -> None:
    sent = send((0, []), (0, ["next"]))
    assert [sdk.error(answer) for answer in sent.answers] == ["InvalidMessagesCount", None]


def test_messages_of_several_megabytes_arrive(send: Callable[..., Sent]) -> None:
    sizes = (MIB, 5 * MIB)
    sent = send(*((0, [{"size": size}]) for size in sizes), (0, [{"size": MIB}] * 6), (0, [{"text_size": 3 * MIB}]))
    assert sent.answers == [None] * 4
    assert [message["length"] for message in sent.partitions[0]] == [*sizes, *[MIB] * 6, 3 * MIB]


def test_a_batch_that_the_sdk_writes_in_two_parts_is_not_delayed_between_them(send: Callable[..., Sent]) -> None:
    """From 8 KiB on. With Nagle's algorithm it would take at least 40 ms each if the first part were acknowledged as
    late as usual."""
    sent = send(*[(0, [{"size": 10 << 10}])] * 31)
    assert min(sent.program.all("seconds")) < 0.03


def test_thousands_of_messages_arrive_in_order(send: Callable[..., Sent]) -> None:
    batches = [(0, [f"{start + number}" for number in range(2000)]) for start in range(0, 10_000, 2000)]
    sent = send(*batches)
    assert sent.answers == [None] * 5
    numbers = [int(bytes.fromhex(message["payload"])) for message in sent.partitions[0]]
    assert numbers == list(range(10_000))
