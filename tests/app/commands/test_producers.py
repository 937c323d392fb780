"""Numbered sends through the command layer: which partition they go to, and which response they get."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import xxhash

from tests.app.access.support.world import everywhere
from tests.app.commands.support.reading import Reading, payloads, reading
from tests.storage.support.world import texts
from whippet.app.commands import requests, responses
from whippet.app.commands.deduplication import Deduplication
from whippet.app.commands.requests import Partitioning, PartitioningKind
from whippet.app.config.system import MessageDeduplication, System
from whippet.app.errors import Code, CommandError
from whippet.storage.batch import Message, build
from whippet.storage.producers import Producer

BALANCED = Partitioning(PartitioningKind.BALANCED)


async def send(
    made: Reading,
    text: str,
    sequence: int,
    *,
    to: Partitioning = BALANCED,
    epoch: int = 1,
    identity: bytes = b"till-7",
    batch: bytearray | None = None,
) -> responses.Sent:
    batches = (texts(text) if batch is None else batch,)
    sent = await made.root.execute(
        requests.SendMessages("s", "t", to, batches, producer=Producer(identity, epoch, sequence))
    )
    assert isinstance(sent, responses.Sent)
    return sent


async def stored(made: Reading) -> Counter[str]:
    found: Counter[str] = Counter()
    consumer = requests.Consumer(requests.ConsumerKind.CONSUMER, "all")
    for number in range(len(made.topic.partitions)):
        polled = await made.root.poll(
            number, consumer=consumer, strategy=requests.Strategy(requests.StrategyKind.FIRST)
        )
        found.update(payloads(polled))
    return found


async def refused(send: object) -> CommandError:
    with pytest.raises(CommandError) as caught:
        await send  # type: ignore[misc]
    return caught.value


async def test_balanced_sends_of_a_producer_go_to_the_partition_of_its_id(tmp_path: Path) -> None:
    async with reading(tmp_path, 5) as made:
        for number in range(8):
            identity = b"till-%d" % number
            first = await send(made, f"a{number}", 1, identity=identity)
            assert first.partition_id == xxhash.xxh32_intdigest(identity) % 5
            again = await send(made, "x", 1, identity=identity)
            assert (again.partition_id, again.base_offset, again.messages_count, again.repeated) == (
                first.partition_id,
                first.base_offset,
                1,
                True,
            )
        assert await stored(made) == Counter(f"a{number}" for number in range(8))


@pytest.mark.parametrize("to", [BALANCED, Partitioning(PartitioningKind.MESSAGES_KEY, key=b"a key")])
async def test_a_repeated_send_is_found_after_partitions_were_added(tmp_path: Path, to: Partitioning) -> None:
    async with reading(tmp_path, 1) as made:
        first = await send(made, "first", 1, to=to)
        await send(made, "second", 2, to=to)
        await made.root.execute(requests.CreatePartitions("s", "t", 6))
        again = await send(made, "x", 1, to=to)
        assert (again.partition_id, again.base_offset, again.repeated) == (0, first.base_offset, True)
        third = await send(made, "third", 3, to=to)
        assert third.partition_id == xxhash.xxh32_intdigest(to.key or b"till-7") % 7 != 0
        assert (await send(made, "x", 2, to=to)).repeated
        assert (await send(made, "x", 3, to=to)).repeated
        assert sum((await stored(made)).values()) == 3


async def test_an_outdated_send_is_not_stored_in_a_new_partition(tmp_path: Path) -> None:
    async with reading(tmp_path, 1) as made:
        for sequence in range(20):
            await send(made, "a", sequence)
        await made.root.execute(requests.CreatePartitions("s", "t", 6))
        assert (await refused(send(made, "x", 1))).code == Code.REQUEST_ALREADY_APPLIED
        await send(made, "b", 20)
        assert (await refused(send(made, "x", 1))).code == Code.REQUEST_ALREADY_APPLIED
        assert sum((await stored(made)).values()) == 21


async def test_a_producer_id_belongs_to_its_user(tmp_path: Path) -> None:
    async with reading(tmp_path, 3) as made:
        await made.world.user("mallory", permissions=everywhere(send_messages=True))
        mallory = await made.world.logged_in("mallory")
        first = await send(made, "first", 1)
        for epoch, sequence in ((1, 1), (9, 7)):
            request = requests.SendMessages(
                "s", "t", BALANCED, (texts("x"),), producer=Producer(b"till-7", epoch, sequence)
            )
            sent = await mallory.execute(request)
            assert not sent.repeated
        again = await send(made, "first", 1)
        assert (again.base_offset, again.repeated) == (first.base_offset, True)
        assert not (await send(made, "second", 2)).repeated
        assert await stored(made) == Counter({"first": 1, "second": 1, "x": 2})


async def test_sends_from_before_producers_had_owners_are_still_known(tmp_path: Path) -> None:
    async with reading(tmp_path, 1) as made:
        await made.topic.served[0].append_once(texts("old"), Producer(b"till-7", 1, 1))
    async with reading(tmp_path, 1) as made:
        again = await send(made, "old", 1)
        assert (again.base_offset, again.repeated) == (0, True)
        assert not (await send(made, "new", 2)).repeated
    async with reading(tmp_path, 1) as made:
        for text, sequence in (("old", 1), ("new", 2)):
            assert (await send(made, text, sequence)).repeated
        assert await stored(made) == Counter({"old": 1, "new": 1})


async def test_a_producer_that_names_partitions_numbers_sends_in_each(tmp_path: Path) -> None:
    async with reading(tmp_path, 2) as made:
        for number in range(2):
            to = Partitioning(PartitioningKind.PARTITION_ID, number)
            assert not (await send(made, f"{number}", 1, to=to)).repeated
            assert (await send(made, "x", 1, to=to)).repeated
        assert await stored(made) == {"0": 1, "1": 1}


async def test_a_higher_epoch_fences_lower_ones_in_the_whole_topic(tmp_path: Path) -> None:
    async with reading(tmp_path, 2) as made:
        here, there = (Partitioning(PartitioningKind.PARTITION_ID, number) for number in range(2))
        await send(made, "a", 5, to=here)
        await send(made, "b", 1, to=there, epoch=2)
        for to in (here, there, BALANCED):
            error = await refused(send(made, "x", 5, to=to))
            assert error.code == Code.PRODUCER_FENCED
            assert str(error) == "producer 'till-7': epoch 1 has ended, epoch 2 has taken its place"
        assert (await send(made, "c", 1, to=here, epoch=2)).base_offset == 1


async def test_a_skipped_sequence_number_is_refused_later(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await send(made, "a", 5)
        error = await refused(send(made, "x", 4))
        assert (error.code, await stored(made)) == (Code.PRODUCER_SEQUENCE_PASSED, {"a": 1})


async def test_a_numbered_send_has_one_batch(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        two = requests.SendMessages("s", "t", BALANCED, (texts("a"), texts("b")), producer=Producer(b"p", 1, 1))
        assert (await refused(made.root.execute(two))).code == Code.INVALID_MESSAGES_COUNT
        assert not await stored(made)


async def test_responses_to_producers_survive_a_restart_and_not_a_purge(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        first = await send(made, "a", 1)
    async with reading(tmp_path) as made:
        again = await send(made, "x", 1)
        assert (again.partition_id, again.base_offset, again.repeated) == (first.partition_id, 0, True)
        await made.root.execute(requests.PurgeTopic("s", "t"))
        assert not (await send(made, "b", 1)).repeated
        assert await stored(made) == {"b": 1}


async def test_with_deduplication_a_repetition_is_recognised_by_its_number_first(tmp_path: Path) -> None:
    def batch(*ids: int) -> bytearray:
        return build([Message(b"%d" % one, one) for one in ids], 1, bytes)

    async with reading(tmp_path, 1) as made:
        made.gateway.deduplication = Deduplication(System(message_deduplication=MessageDeduplication(enabled=True)))
        first = await send(made, "", 1, batch=batch(1, 2))
        second = await send(made, "", 2, batch=batch(2, 3))
        assert (second.base_offset, second.messages_count) == (2, 1)
        for sent, sequence, ids in ((first, 1, (1, 2)), (second, 2, (2, 3))):
            again = await send(made, "", sequence, batch=batch(*ids))
            assert (again.base_offset, again.messages_count, again.repeated) == (
                sent.base_offset,
                sent.messages_count,
                True,
            )
        nothing_new = await send(made, "", 3, batch=batch(1, 3))
        assert (nothing_new.messages_count, nothing_new.repeated) == (0, False)
        # Another window, as after a restart: only the number is known.
        made.gateway.deduplication = Deduplication(System(message_deduplication=MessageDeduplication(enabled=True)))
        assert (await send(made, "", 2, batch=batch(2, 3))).repeated
        assert await stored(made) == {"1": 1, "2": 1, "3": 1}


def test_producer_headers_are_parsed_or_refused_with_the_invalid_part() -> None:
    assert requests.producer("till-7", "0", "18446744073709551615") == Producer(b"till-7", 0, 2**64 - 1)
    assert requests.producer("käse", "007", "1").id == "käse".encode()
    for texts_, sentence in (
        (("", "1", "1"), "the id of a producer must have 1 to 64 bytes, not 0"),
        (("x" * 65, "1", "1"), "the id of a producer must have 1 to 64 bytes, not 65"),
        (("p", "-1", "1"), "the epoch of a producer must be a number, not '-1'"),
        (("p", "", "1"), "the epoch of a producer must be a number, not ''"),
        (("p", "1", "1.0"), "the sequence of a producer must be a number, not '1.0'"),
        (("p", "1", "٣"), "the sequence of a producer must be a number, not '٣'"),
        (("p", "4294967296", "1"), "the epoch of a producer must be a number from 0 to 4294967295, not 4294967296"),
        (("p", "1", "9" * 5000), "the sequence of a producer must be a number, not '" + "9" * 40 + "'"),
    ):
        with pytest.raises(CommandError) as caught:
            requests.producer(*texts_)
        assert (caught.value.code, str(caught.value)) == (Code.INVALID_PRODUCER, sentence)
