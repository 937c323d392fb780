"""Producers of every sort: those that create what they need, direct ones, background ones, and failing ones."""

import asyncio
import time
from typing import Any

from apache_iggy import (
    BackgroundProducerConfig,
    BackpressureMode,
    Consumer,
    DirectProducerConfig,
    IggyClient,
    IggyExpiry,
    MaxTopicSize,
    Partitioning,
    PollingStrategy,
    ProducerSendError,
    ProducerSharding,
    SendMessage,
)
from scenario import Task, connected, execute, milliseconds, refusal, say

MANY = 3000


def texts(*numbers: int) -> list[SendMessage]:
    return [SendMessage(f"{number}") for number in range(*numbers)]


def confirmed(answer: Any) -> list[list[int]]:
    return [[one.partition_id, one.base_offset] for one in answer.confirmations]


async def stored(client: IggyClient, stream: str, topic: str, partition: int = 0) -> list[str]:
    found: list[str] = []
    while True:
        answer = await client.poll_messages(
            stream,
            topic,
            consumer=Consumer.Single("reader"),
            polling_strategy=PollingStrategy.Offset(len(found)),
            count=1000,
            auto_commit=False,
            partition_id=partition,
        )
        if not answer:
            return found
        found += [message.payload().decode() for message in answer]


def numbers(*of: int) -> list[str]:
    return [f"{number}" for number in range(*of)]


async def making(client: IggyClient, name: str) -> None:
    """A producer creates its stream and topic if it may."""
    say(
        unmade=[
            await refusal(client.producer, f"{name}-no", "t", create_stream_if_not_exists=False),
            await refusal(client.producer, name, "t", create_topic_if_not_exists=False),
        ]
    )
    settings = {
        "topic_partitions_count": 3,
        "topic_message_expiry": IggyExpiry.ExpireDuration(milliseconds(60_000)),
        "topic_max_size": MaxTopicSize.Custom(4 << 30),
    }
    await client.producer(name, "made", **settings)
    made = await client.get_topic(name, "made")
    say(
        made=[made.partitions_count, made.message_expiry.duration.total_seconds(), made.max_topic_size.bytes],
        options=made.options.to_scalar_dict(),
    )


async def direct(client: IggyClient, name: str) -> None:
    await client.create_topic(name, "other", 1)
    stream, other = (await client.get_stream(name)).id, (await client.get_topic(name, "other")).id
    async with await client.producer(name, "t", mode=DirectProducerConfig(batch_length=10)) as producer:
        say(
            direct=[
                confirmed(await producer.send(texts(25))),
                confirmed(await producer.send_one(SendMessage("25"))),
                confirmed(await producer.send_with_partitioning(texts(26, 28), Partitioning.partition_id(0))),
                confirmed(await producer.send([])),
                confirmed(await producer.send_to(name, "other", texts(2), Partitioning.partition_id(0))),
                confirmed(await producer.send_to(stream, other, texts(1))),
            ],
        )
    say(direct_stored=await stored(client, name, "t") == numbers(28), closed=await refusal(producer.send, texts(1)))
    say(twice=await refusal(producer.shutdown))
    spread = await client.producer(name, "made", partitioning=Partitioning.messages_key("a"))
    say(keyed=[confirmed(await spread.send(texts(2)))[0][0] for _ in range(3)])
    paced = await client.producer(name, "paced", mode=DirectProducerConfig(linger_time=milliseconds(60)))
    begin = time.perf_counter()
    for _ in range(3):
        await paced.send(texts(1))
    say(paced_ms=(time.perf_counter() - begin) * 1000)


async def background(client: IggyClient, name: str) -> None:
    modes = {
        "ordered": BackgroundProducerConfig(num_shards=4, sharding=ProducerSharding.ORDERED),
        "balanced": BackgroundProducerConfig(num_shards=3, sharding=ProducerSharding.BALANCED, max_in_flight=4),
        "small": BackgroundProducerConfig(batch_length=7, batch_size=2000, linger_time=milliseconds(2)),
        "blocking": BackgroundProducerConfig(max_buffer_size=50_000, failure_mode=BackpressureMode.block()),
    }
    for mode, config in modes.items():
        async with await client.producer(name, mode, mode=config) as producer:
            answers = [confirmed(await producer.send(texts(first, first + 50))) for first in range(0, MANY, 50)]
            answers.append(confirmed(await producer.send_one(SendMessage(f"{MANY}"))))
        found = await stored(client, name, mode)
        say(
            background=mode,
            confirmed=[answer for answer in answers if answer],
            in_order=found == numbers(MANY + 1),
            complete=sorted(found, key=int) == numbers(MANY + 1),
        )
    unwilling = BackgroundProducerConfig(
        max_buffer_size=200, linger_time=milliseconds(60_000), failure_mode=BackpressureMode.fail_immediately()
    )
    producer = await client.producer(name, "unwilling", mode=unwilling)
    say(full=[await refusal(producer.send, texts(1)) for _ in range(3)])
    timed = BackgroundProducerConfig(
        max_buffer_size=200,
        linger_time=milliseconds(60_000),
        failure_mode=BackpressureMode.block_with_timeout(milliseconds(10)),
    )
    producer = await client.producer(name, "timed", mode=timed)
    say(timed_out=[await refusal(producer.send, texts(1)) for _ in range(3)])


async def failing(client: IggyClient, name: str) -> None:
    """A direct producer reports what was stored and what was not."""
    await client.create_topic(name, "failing", 1)
    producer = await client.producer(name, "failing", mode=DirectProducerConfig(batch_length=2), send_retries=None)
    await producer.send(texts(2))
    await client.delete_topic(name, "failing")
    try:
        await producer.send(texts(2, 7))
        say(failed=None)
    except ProducerSendError as error:
        say(failed=str(error), cause=error.cause, unsent=len(error.failed), committed=confirmed_of(error))
        await client.create_topic(name, "failing", 1)
        again = await client.send_messages(name, "failing", 0, error.failed)
        say(sent_again=confirmed(again), stored_again=await stored(client, name, "failing"))


def confirmed_of(error: Any) -> Any:
    return [[one.partition_id, one.base_offset] for one in error.committed]


async def retrying(client: IggyClient, name: str) -> None:
    """A missing topic is waited for."""
    await client.create_topic(name, "late", 1)
    retries = {"send_retries": 100, "send_retry_interval": milliseconds(20)}
    producer = await client.producer(name, "late", **retries)
    await client.delete_topic(name, "late")
    sending = asyncio.ensure_future(producer.send(texts(3)))
    await asyncio.sleep(0.1)
    await client.create_topic(name, "late", 1)
    say(retried=confirmed(await sending), stored_late=await stored(client, name, "late"))


async def main(task: Task) -> None:
    client, name = await connected(task), task["name"]
    await client.create_stream(name)
    await making(client, name)
    await direct(client, name)
    await background(client, name)
    await failing(client, name)
    await retrying(client, name)


execute(main)
