"""The engine against a broker: what storage/engine.py promises, as far as docs/engines/kafka.md says it is there."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.storage.kafka.support.broker import Broker, Opening
from tests.storage.support.world import offsets, opened, payloads, sized, stored, texts, with_topic
from tests.support.clocks import NOON
from whippet.storage.batch import UNLIMITED
from whippet.storage.documents import GroupDocument, StreamDocument, TopicDocument
from whippet.storage.engine import Engine
from whippet.storage.errors import (
    CatalogueError,
    ClusterUnavailable,
    InvalidOffset,
    PartitionClosed,
    StoreLocked,
    Unsupported,
    UnsupportedFormat,
)
from whippet.storage.fetched import Fetched
from whippet.storage.kafka import administration, producing, records
from whippet.storage.kafka import engine as engines
from whippet.storage.kafka.engine import KafkaEngine
from whippet.storage.kafka.options import KafkaOptions
from whippet.storage.kafka.partition import KafkaPartition
from whippet.storage.kafka.watching import Undecodable
from whippet.storage.offsets import Kind
from whippet.storage.options import Durability, StoreOptions, TopicOptions
from whippet.storage.producers import Producer
from whippet.storage.store import now_us

ALICE = Kind.CONSUMER, 7


async def topic(engine: Engine, partitions: int = 1, **more: Any) -> None:
    await engine.create_stream(StreamDocument(id=0, name="shop", created_at=NOON))
    document = TopicDocument(id=0, name="orders", created_at=NOON, partitions_count=partitions, **more)
    await engine.create_topic(0, document)


@contextlib.asynccontextmanager
async def program(broker: Broker, **settings: Any) -> Any:
    """Another program's producer."""
    async with AIOKafkaProducer(bootstrap_servers=broker.server, **settings) as producer:
        yield producer


async def only(engine: KafkaEngine) -> KafkaPartition:
    await topic(engine)
    found = engine.partition(0, 0, 0)
    assert found is not None
    return found


async def test_what_was_appended_is_read_by_offset_and_in_order(opening: Opening) -> None:
    async with opening() as engine:
        partition = await only(engine)
        first = await partition.append(texts("a", "b"))
        assert (first.base_offset, first.messages, first.durability) == (0, 2, Durability.WRITTEN)
        together = await asyncio.gather(*(partition.append(texts(str(number))) for number in range(20)))
        assert [each.base_offset for each in together] == list(range(2, 22))
        await partition.here()
        assert (partition.first_offset, partition.readable, partition.messages_count) == (0, 22, 22)
        assert payloads(await partition.read(1, 3)) == [b"b", b"0", b"1"]
        assert offsets(await partition.read(20, 100)) == [20, 21]
        assert (await partition.read(22, 100)).messages == (await partition.read(2**63, 100)).messages == 0
        everything = stored(await partition.read(0, 100))
        assert len({message.timestamp for message in everything}) > 1
        at = everything[-1].timestamp
        assert everything[await partition.offset_at(at)].timestamp == at
        assert await partition.offset_at(at + 3_600_000_000) == 22


async def test_a_reader_sees_at_once_what_others_have_appended(opening: Opening, broker: Broker, prefix: str) -> None:
    async with opening() as engine, program(broker) as producer:
        partition = await only(engine)
        assert (await partition.read(0, 10)).messages == 0
        await producer.send_and_wait(f"{prefix}shop.orders", b"x", partition=0, headers=[("k", b"v")])
        assert payloads(await partition.read(0, 10)) == [b"x"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_compressed_records_are_read(opening: Opening, broker: Broker, prefix: str, codec: str) -> None:
    async with opening() as engine, program(broker, compression_type=codec) as producer:
        partition = await only(engine)
        await producer.send_and_wait(f"{prefix}shop.orders", b"x" * 1000, partition=0)
        assert payloads(await partition.read(0, 10)) == [b"x" * 1000]


async def test_a_topic_that_compresses_is_read(opening: Opening) -> None:
    async with opening() as engine:
        await topic(engine, compression_algorithm=3)
        partition = engine.partition(0, 0, 0)
        assert partition is not None
        await partition.append(texts("x" * 1000))
        assert payloads(await partition.read(0, 10)) == [b"x" * 1000]


async def test_what_cannot_be_decoded_is_an_error_that_names_the_place(
    opening: Opening, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opening() as engine:
        partition = await only(engine)
        await partition.append(texts("a"))
        monkeypatch.setattr(records, "DefaultRecordBatch", lambda content: 1 / 0)
        with pytest.raises(Undecodable, match=rf"{prefix}shop\.orders, partition 0: offset 0 cannot be decoded"):
            await partition.read(0, 1)


async def test_large_batches_are_encoded_and_decoded_beside_others(opening: Opening) -> None:
    async with opening() as engine:
        partition = await only(engine)
        many, large = sized(producing.MANY + 1, 1), sized(1, 2_000_000)
        assert (await partition.append(many)).messages == producing.MANY + 1
        await partition.append(large)
        found = await partition.read(0, 10_000)
        assert found.messages == producing.MANY + 2
        assert stored(found)[-1].payload == b"x" * 2_000_000


async def test_waiting_ends_with_the_message_and_any_number_of_readers_share_one_request(opening: Opening) -> None:
    async with opening() as engine:
        partition = await only(engine)
        waiting = [asyncio.create_task(partition.until(0)) for _ in range(100)]
        later = partition.readable_at(1)
        gone = asyncio.create_task(partition.until(0))
        await asyncio.sleep(0)
        gone.cancel()
        await partition.append(texts("a"))
        await asyncio.gather(*waiting)
        assert not later.done()
        assert engine.cluster._links == 1
        await partition.append(texts("b"))
        await later
        await partition.until(0)


async def test_transactions_of_other_programs_are_readable_once_they_are_committed(
    opening: Opening, broker: Broker, prefix: str
) -> None:
    async with opening() as engine, program(broker, transactional_id=f"{prefix}id") as producer:
        partition = await only(engine)
        await partition.append(texts("before"))
        async with producer.transaction():
            await producer.send_and_wait(f"{prefix}shop.orders", b"in", partition=0)
            await partition.append(texts("beside"))
            assert payloads(await partition.read(0, 10)) == [b"before"]
        with contextlib.suppress(ZeroDivisionError):
            async with producer.transaction():
                await producer.send_and_wait(f"{prefix}shop.orders", b"aborted", partition=0)
                raise ZeroDivisionError
        await partition.until(4)
        await partition.append(texts("after"))
        found = await partition.read(0, 10)
        assert payloads(found) == [b"before", b"in", b"beside", b"after"]
        # The marks and what was aborted have offsets.
        assert offsets(found)[-1] == found.next_offset - 1 == 6


async def test_stored_offsets_are_those_of_a_group_in_kafka(opening: Opening, broker: Broker, prefix: str) -> None:
    async with opening() as engine:
        partition = await only(engine)
        await partition.append(texts("a", "b", "c"))
        with pytest.raises(InvalidOffset, match="the newest message has 2"):
            await partition.store_offset(*ALICE, 3)
        await partition.store_offset(*ALICE, 1, "alice")
        assert partition.offset_of(*ALICE) == 1
    async with opening() as engine:
        again = engine.partition(0, 0, 0)
        assert again is not None
        await again.here(ALICE)
        assert again.offset_of(*ALICE) == 1
        place = TopicPartition(f"{prefix}shop.orders", 0)
        async with AIOKafkaConsumer(
            bootstrap_servers=broker.server, group_id=f"{prefix}shop.orders/consumer/7", enable_auto_commit=False
        ) as consumer:
            consumer.assign([place])
            assert await consumer.committed(place) == 2
            await consumer.commit({place: 3})
        await again.here(ALICE)
        assert again.offset_of(*ALICE) == 2
        assert [await again.delete_offset(*ALICE) for _ in range(2)] == [True, False]
        await again.here(ALICE)
        assert again.offset_of(*ALICE) is None


async def test_the_catalogue_survives_and_deleted_topics_are_deleted_in_kafka(
    opening: Opening, broker: Broker, prefix: str
) -> None:
    async with opening() as engine:
        await topic(engine, 3)
        await engine.write_user(5, b"alice")
        await engine.write_token(6, b"token")
        await engine.write_user(7, b"bob")
        await engine.remove_user(7)
        await engine.reserve_numbers(100)
        written = engine.streams
    async with opening() as engine:
        assert engine.streams == written
        assert (engine.users, engine.tokens, engine.numbers_reserved) == ({5: b"alice"}, {6: b"token"}, 100)
        assert engine.partitions_count == 3
        partition = engine.partition(0, 0, 2)
        assert partition is not None
        waiting = asyncio.create_task(partition.until(0))
        await asyncio.sleep(0)
        await engine.remove_stream(0)
        with pytest.raises(PartitionClosed):
            await waiting
        with pytest.raises(PartitionClosed):
            await partition.append(texts("a"))
        assert (engine.streams, engine.partitions_count) == ({}, 0)
    async with opening() as engine:
        assert engine.streams == {}
        # Kafka has no topic of that name any more.
        await topic(engine)


async def test_a_topic_that_kafka_has_lost_does_not_hide_the_others(
    opening: Opening, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "MEASURED_S", 0.5)
    async with opening(timeout_s=5.0) as engine:
        await topic(engine)
        await engine.create_topic(0, TopicDocument(id=1, name="kept", created_at=NOON, partitions_count=1))
        lost, kept = engine.partitions.values()
        await kept.append(texts("a"))
        await administration.delete(engine.cluster, [f"{prefix}shop.orders"])
        await engine.measure()
        assert (lost.messages_count, kept.messages_count) == (0, 1)


async def test_limits_of_a_topic_are_its_configuration_in_kafka(opening: Opening, broker: Broker, prefix: str) -> None:
    chosen = TopicOptions(durability="replicated", segment_size=1 << 20)
    async with opening(batch_bytes_max=1 << 20) as engine:
        await topic(
            engine, 2, message_expiry=60_000_000, max_topic_size=1 << 30, compression_algorithm=3, options=chosen
        )
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.server)
        await admin.start()
        try:
            resource = ConfigResource(ConfigResourceType.TOPIC, f"{prefix}shop.orders")
            (found,) = await admin.describe_configs([resource])
        finally:
            await admin.close()
    settings = {name: value for name, value, *_ in found.resources[0][4]}
    assert {name: settings[name] for name in EXPECTED} == EXPECTED


EXPECTED = {
    "compression.type": "zstd",
    "max.message.bytes": str(2 << 20),
    "message.timestamp.type": "LogAppendTime",
    "min.insync.replicas": "1",
    "retention.bytes": str(1 << 29),
    "retention.ms": "60000",
    "segment.bytes": str(1 << 20),
}


async def test_a_topic_that_kafka_has_already_is_not_taken_over(opening: Opening) -> None:
    async with opening() as engine:
        await topic(engine)
        engine.streams[0].topics.clear()
        with pytest.raises(CatalogueError, match=r"Kafka has a topic 't\d+\.shop\.orders' already"):
            await engine.create_topic(0, TopicDocument(id=1, name="orders", created_at=NOON, partitions_count=1))
        assert engine.streams[0].topics == {}


async def test_more_replicas_than_brokers_are_refused(broker: Broker, tmp_path: Path) -> None:
    kafka = KafkaOptions(servers=(broker.server,), prefix="replicas.")
    with pytest.raises(CatalogueError, match=r"fewer than 3 brokers .*engine\.kafka\.replication_factor"):
        await KafkaEngine.open(StoreOptions(path=str(tmp_path / "data")), kafka, now_us)


async def test_another_gateway_takes_the_catalogue_and_messages_are_still_served(opening: Opening) -> None:
    async with opening() as first:
        partition = await only(first)
        async with opening() as second:
            with pytest.raises(CatalogueError, match="another gateway has opened it since"):
                await first.write_user(1, b"lost")
            assert first.problem() == "the catalogue cannot be changed here: restart this gateway"
            await second.write_user(1, b"kept")
            assert (await partition.append(texts("a"))).base_offset == 0
        with pytest.raises(CatalogueError, match="another gateway"):
            await first.remove_user(1)
        assert first.users == {}
    async with opening() as third:
        assert third.users == {1: b"kept"}


async def test_a_batch_that_is_too_large_for_the_topic_is_refused_and_others_are_not(opening: Opening) -> None:
    async with opening(batch_bytes_max=1000) as engine:
        partition = await only(engine)
        partition._shared = msgspec.structs.replace(partition._shared, limits=UNLIMITED)
        large, small = texts("x" * 10_000), texts("y")
        tried = await asyncio.gather(partition.append(large), partition.append(small), return_exceptions=True)
        assert "max.message.bytes" in str(tried[0])
        assert payloads(await partition.read(0, 10)) == [b"y"]


async def test_what_cannot_be_done_names_the_engine(opening: Opening) -> None:
    async with opening() as engine:
        partition = await only(engine)
        document = engine.streams[0].topics[0].document
        producer = Producer(b"till", 1, 1)
        for refused in (
            engine.update_stream(StreamDocument(id=0, name="other", created_at=NOON)),
            engine.update_topic(0, document),
            engine.create_partitions(0, 0, 1, 1),
            engine.remove_partitions(0, 0, 1),
            engine.purge_topic(0, 0),
            engine.delete_segments(partition.place, 1),
            engine.write_group(0, 0, GroupDocument(id=0, name="g", created_at=NOON)),
            engine.remove_group(0, 0, 0),
            engine.create_topic(0, TopicDocument(id=1, name="empty", created_at=NOON, partitions_count=0)),
            partition.append(texts("a"), Durability.SYNCED),
            partition.append_once(texts("a"), producer),
            partition.result_of(producer),
            partition.flush(sync=True),
        ):
            with pytest.raises(Unsupported, match=r"engine\.kind = kafka"):
                await refused
        options = TopicOptions(message_deduplication=True)
        with pytest.raises(Unsupported, match="the option 'message_deduplication' of a topic with the value True"):
            await engine.create_topic(
                0, TopicDocument(id=1, name="d", created_at=NOON, partitions_count=1, options=options)
            )
        assert await partition.flush() is Durability.WRITTEN
        assert (await engine.retain(0, 0, expiry_us=1, max_bytes=1), partition.remembers(producer)) == (0, False)
        await partition.here()
        assert partition.readable == 0


async def test_a_folder_is_used_by_one_process_and_has_no_local_streams(broker: Broker, tmp_path: Path) -> None:
    kafka = KafkaOptions(servers=(broker.server,), prefix="folder.", replication_factor=1, min_insync_replicas=1)
    options = StoreOptions(path=str(tmp_path / "data"))
    async with opened(tmp_path / "data") as store:
        with pytest.raises(StoreLocked):
            await KafkaEngine.open(options, kafka, now_us)
        await with_topic(store)
    with pytest.raises(UnsupportedFormat, match="has streams of the store on this machine"):
        await KafkaEngine.open(options, kafka, now_us)


async def test_brokers_that_do_not_answer_cost_a_deadline_and_readers_resume(opening: Opening, broker: Broker) -> None:
    async with opening(timeout_s=1.0) as engine:
        partition = await only(engine)
        await partition.append(texts("acknowledged"))
        waiting = asyncio.create_task(partition.until(1))
        broker.pause()
        try:
            tried = [partition.append(texts(str(number))) for number in range(3)]
            unknown, *rest, read = await asyncio.gather(*tried, partition.read(1, 1), return_exceptions=True)
            assert isinstance(unknown, ClusterUnavailable)
            assert "orders, partition 0: no answer from the brokers within 1 s" in str(unknown)
            assert {type(each) for each in rest} == {ClusterUnavailable}
            # The end may still be known from the last answer of the broker: there is nothing after it.
            assert isinstance(read, ClusterUnavailable) or (isinstance(read, Fetched) and not read.messages)
            assert engine.problem() == "Kafka does not answer everything"
            assert not waiting.done()
        finally:
            broker.resume()
        with contextlib.suppress(ClusterUnavailable):
            await partition.append(texts("after"))
        await partition.append(texts("last"))
        await waiting
        found = payloads(await partition.read(0, 10))
        assert (found[0], found[-1]) == (b"acknowledged", b"last")
        assert engine.problem() is None


@pytest.mark.long
async def test_brokers_that_are_gone_cost_a_deadline_and_what_was_acknowledged_is_there(
    opening: Opening, tmp_path: Path
) -> None:
    own = Broker(tmp_path / "own").start()
    try:
        async with opening(timeout_s=3.0, at=own.server) as engine:
            partition = await only(engine)
            await partition.append(texts("acknowledged"))
            waiting = asyncio.create_task(partition.until(1))
            own.kill()
            with pytest.raises(ClusterUnavailable, match="within 3 s"):
                await partition.append(texts("unknown"))
            with pytest.raises(ClusterUnavailable):
                await partition.read(1, 1)
            assert engine.problem() == "Kafka does not answer everything"
            assert not waiting.done()
            own.begin()
            for _ in range(20):
                with contextlib.suppress(ClusterUnavailable):
                    await partition.append(texts("after"))
                    break
            await waiting
            found = payloads(await partition.read(0, 10))
            assert (found[0], found[-1]) == (b"acknowledged", b"after")
            assert engine.problem() is None
    finally:
        own.kill()
