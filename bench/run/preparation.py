"""The streams, topics and groups of a run: created before it, and removed after it if they were created for it.

What existed before is never deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

from whippet.app.client import Client
from whippet.app.client.commands import LAST
from whippet.app.commands.requests import Consumer, ConsumerKind
from whippet.app.commands.responses import TopicDetails
from whippet.app.errors import CommandError
from whippet.bench.run.kinds import too_few_partitions
from whippet.bench.run.settings import TOPIC, Settings, Wrong

GROUP = "bench-{run:06x}-group-{number}"
PRODUCE_FIRST = "`whippet bench run pinned-producer --keep` or `balanced-producer --keep` creates and fills streams"


class Prepared:
    """What there is on the server for a run."""

    def __init__(self, client: Client, settings: Settings, run: int) -> None:
        self._client = client
        self._settings = settings
        self._run = run
        self._created_streams: list[str] = []
        self._created_topics: list[str] = []
        self._created_groups: list[tuple[str, str]] = []
        self.topics: dict[str, TopicDetails] = {}
        """By stream."""
        self.starts: dict[tuple[str, int], int] = {}
        """The offset from which consumers read, by stream and partition, unless it is 0."""

    async def create(self) -> None:
        settings, produces = self._settings, self._settings.described.produces
        for number in range(settings.streams):
            name = settings.stream(number)
            if await self._client.get_stream(name) is None:
                if not produces:
                    raise Wrong(f"the stream {name} does not exist; {PRODUCE_FIRST}")
                await self._client.create_stream(name)
                self._created_streams.append(name)
            elif produces and not settings.reuse_streams:
                raise Wrong(
                    f"the stream {name} exists: --reuse-streams adds to it, and `whippet stream delete {name}` "
                    "deletes it with its messages"
                )
            self.topics[name] = await self._topic(name)
        self._check_topics()
        if settings.described.consumes:
            await self._find_starts()
            await self._create_groups()

    async def _topic(self, stream: str) -> TopicDetails:
        settings = self._settings
        found = await self._client.get_topic(stream, TOPIC)
        if found is None:
            if not settings.described.produces:
                raise Wrong(f"the topic {stream}/{TOPIC} does not exist; {PRODUCE_FIRST}")
            created = await self._client.create_topic(
                stream,
                TOPIC,
                settings.partitions or 1,
                message_expiry=settings.message_expiry_us,
                max_topic_size=settings.max_topic_bytes,
                replication_factor=1,
            )
            self._created_topics.append(stream)
            return created
        if settings.message_expiry_us or settings.max_topic_bytes:
            raise Wrong(f"--message-expiry and --max-topic-size are for new topics, and {stream}/{TOPIC} exists")
        return found

    def _check_topics(self) -> None:
        settings = self._settings
        for stream, topic in self.topics.items():
            there, wanted = topic.info.partitions_count, settings.partitions
            if wanted and there != wanted:
                raise Wrong(f"{stream}/{TOPIC} has {there} partitions, not --partitions {wanted}")
            if not there:
                raise Wrong(f"{stream}/{TOPIC} has no partitions")
            if settings.consumer_groups:
                wrong = too_few_partitions(settings.consumers, settings.consumer_groups, there)
                if wrong is not None:
                    raise Wrong(f"{stream}/{TOPIC}: {wrong}")
            if not settings.described.produces:
                self._check_amount(stream, topic)

    def _check_amount(self, stream: str, topic: TopicDetails) -> None:
        settings = self._settings
        if settings.batches is None:
            needed = 1
        else:
            per_consumer = settings.batches * settings.batch_messages.high
            members = -(-settings.consumers // settings.consumer_groups) if settings.consumer_groups else 1
            needed = per_consumer * members
        there = topic.info.messages_count if settings.consumer_groups else topic.partitions[0].messages_count
        if there < needed:
            raise Wrong(f"{stream}/{TOPIC} has {there:,} messages, and {needed:,} are to be read; {PRODUCE_FIRST}")

    async def _find_starts(self) -> None:
        """Consumers of messages that are yet to come begin after those that are there; others begin with these."""
        for stream, topic in self.topics.items():
            for partition in topic.partitions:
                if not partition.messages_count:
                    continue
                first = 0
                if self._settings.described.produces:
                    polled = await self._client.poll_messages(
                        stream,
                        TOPIC,
                        Consumer(ConsumerKind.CONSUMER, 1),
                        partition_id=partition.id,
                        strategy=LAST,
                        count=1,
                    )
                    first = polled.current_offset + 1
                self.starts[stream, partition.id] = first

    async def _create_groups(self) -> None:
        """Groups of their own: the offsets of others are none of our business."""
        for number in range(self._settings.consumer_groups):
            stream, name = self._settings.stream(number), self.group(number)
            await self._client.create_consumer_group(stream, TOPIC, name)
            self._created_groups.append((stream, name))
            starts = {each.id: self.starts.get((stream, each.id), 0) for each in self.topics[stream].partitions}
            if any(starts.values()):
                await self._skip(stream, name, starts)

    async def _skip(self, stream: str, group: str, starts: dict[int, int]) -> None:
        """Only a member may commit for its group: we are the only one for a moment."""
        consumer = Consumer(ConsumerKind.GROUP, group)
        await self._client.join_consumer_group(stream, TOPIC, group)
        for partition, start in starts.items():
            if start:
                await self._client.store_consumer_offset(stream, TOPIC, consumer, start - 1, partition)
        await self._client.leave_consumer_group(stream, TOPIC, group)

    def group(self, number: int) -> str:
        return GROUP.format(run=self._run, number=number + 1)

    async def remove(self) -> str | None:
        """Returns what could not be removed, and why."""
        failed: list[str] = []
        reason: CommandError | None = None
        for what, removing in self._removals():
            try:
                await removing()
            except CommandError as error:
                failed.append(what)
                reason = reason or error
        return f"{', '.join(failed)} could not be removed: {reason}".rstrip(".") if failed else None

    def _removals(self) -> Iterator[tuple[str, Callable[[], asyncio.Future[None]]]]:
        client = self._client
        for stream, group in self._created_groups:
            if self._settings.keep or stream not in self._created_streams:
                # It would be in the way of nobody, but would never be used again.
                yield f"the group {group}", partial(client.delete_consumer_group, stream, TOPIC, group)
        if self._settings.keep:
            return
        for stream in self._created_topics:
            if stream not in self._created_streams:
                yield f"the topic {stream}/{TOPIC}", partial(client.delete_topic, stream, TOPIC)
        for stream in self._created_streams:
            yield f"the stream {stream}", partial(client.delete_stream, stream)
