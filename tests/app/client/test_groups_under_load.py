"""A group whose members join, leave, stall and die while producers send: every guarantee about messages holds.

The actions are drawn from a seed; their times are counted in polls and processed messages. Every request of every
member is recorded in one order of events; afterwards the record is checked:

- Every message was processed, and no partition was left unread for longer than `PATIENCE` polls of the group.
- What was acknowledged as stored before a poll was sent is not in its response.
- Between messages of a partition for one member and for another there is a commit, or the departure of a member, which
  reassigns all partitions, even of members that stay.
- Likewise a member goes back in a partition only after a departure.

WHIPPET_GROUP_SEEDS is the number of seeds of each mode.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from tests.app.client.support.server import Server, connected, until
from tests.support.running import run
from tests.support.sizes import sized
from whippet.app.client import AutoCommit, Client, GroupConsumer, Producer, Received
from whippet.app.client.commands import to_partition
from whippet.app.client.tcp import TcpConnection
from whippet.app.commands import requests
from whippet.app.commands.responses import Polled
from whippet.storage import batch as batches

PARTITIONS = 6
MEMBERS_MAX = 8
EVENTS = 60
AHEAD = 40
"""At most this many messages of a partition wait to be processed before its producer waits."""
PATIENCE = 10_000

MODES = {
    "off": AutoCommit.off(),
    "each poll processed": AutoCommit.each_poll_processed(),
    "each message": AutoCommit.each_message(),
}


class Returned(NamedTuple):
    member: int
    first: int
    last: int
    asked: int
    answered: int


class Committed(NamedTuple):
    member: int
    offset: int
    sent: int
    answered: int


class Processed(NamedTuple):
    member: int
    offset: int
    at: int


class Gone(NamedTuple):
    began: int
    ended: int


class Record:
    """All events in one order: this process has one event loop, and the numbers are places in its order."""

    def __init__(self) -> None:
        self._places = itertools.count()
        self.handed_out: dict[int, list[Returned]] = defaultdict(list)
        self.commits: dict[int, list[Committed]] = defaultdict(list)
        self.processed: dict[int, list[Processed]] = defaultdict(list)
        self.gone: list[Gone] = []
        self.sent = [0] * PARTITIONS
        self.reached = [0] * PARTITIONS
        """The number of messages, from the first one on, that are processed."""
        self._seen: list[set[int]] = [set() for _ in range(PARTITIONS)]
        self.polls = 0
        self.ticks = 0
        self._changed = asyncio.Event()

    def place(self) -> int:
        return next(self._places)

    def tick(self) -> None:
        self.ticks += 1
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            changed = self._changed
            await changed.wait()

    def process(self, member: int, message: Received) -> None:
        assert int(message.payload) == message.offset
        partition_id = message.partition_id
        self.processed[partition_id].append(Processed(member, message.offset, self.place()))
        seen = self._seen[partition_id]
        seen.add(message.offset)
        while self.reached[partition_id] in seen:
            self.reached[partition_id] += 1
        self.tick()

    # ----------------------------------------------------------------------------------------------------------- checks

    def check(self) -> None:
        assert self.reached == self.sent
        for partition_id in range(PARTITIONS):
            self._nothing_committed_is_returned_again(partition_id)
            self._moves_only_when_allowed(partition_id)
            self._each_member_reads_forwards(partition_id)

    def _nothing_committed_is_returned_again(self, partition_id: int) -> None:
        for handed in self.handed_out[partition_id]:
            for commit in self.commits[partition_id]:
                if commit.answered < handed.asked:
                    assert commit.offset < handed.first, (partition_id, commit, handed)

    def _moves_only_when_allowed(self, partition_id: int) -> None:
        commits = self.commits[partition_id]
        for earlier, later in itertools.combinations(self.handed_out[partition_id], 2):
            if earlier.member == later.member or self._a_member_left(earlier.asked, later.answered):
                continue
            finished = any(
                commit.member == earlier.member and commit.offset >= earlier.last and commit.sent < later.answered
                for commit in commits
            )
            assert finished, (partition_id, earlier, later)
            assert later.first > earlier.last, (partition_id, earlier, later)

    def _each_member_reads_forwards(self, partition_id: int) -> None:
        latest: dict[int, Processed] = {}
        for now in self.processed[partition_id]:
            before = latest.get(now.member)
            latest[now.member] = now
            if before is not None and now.offset <= before.offset:
                assert self._a_member_left(self._received(partition_id, before).asked, now.at), (before, now)

    def _received(self, partition_id: int, processed: Processed) -> Returned:
        """The last response that it can have been in."""
        return max(
            (
                handed
                for handed in self.handed_out[partition_id]
                if handed.member == processed.member
                and handed.first <= processed.offset <= handed.last
                and handed.answered < processed.at
            ),
            key=lambda handed: handed.answered,
        )

    def _a_member_left(self, since: int, before: int) -> bool:
        return any(gone.began < before and gone.ended > since for gone in self.gone)


class RecordingClient(Client):
    """A member's client, which records its requests and responses."""

    record: Record
    number: int

    def call(self, request: requests.Request) -> asyncio.Future[Any]:
        asked = self.record.place()
        answer = super().call(request)
        if isinstance(request, requests.PollMessages):
            answer.add_done_callback(lambda done: self._polled(asked, done))
        elif isinstance(request, requests.StoreConsumerOffset):
            answer.add_done_callback(lambda done: self._stored(request, asked, done))
        return answer

    def _polled(self, asked: int, answer: asyncio.Future[Polled]) -> None:
        self.record.polls += 1
        self.record.tick()
        if answer.cancelled() or answer.exception() is not None or not answer.result().messages_count:
            return
        polled = answer.result()
        first, last = batches.header(polled.batches[0]), batches.header(polled.batches[-1])
        end = last.base_offset + last.message_count
        assert end - first.base_offset == polled.messages_count
        self.record.handed_out[polled.partition_id].append(
            Returned(self.number, first.base_offset, end - 1, asked, self.record.place())
        )

    def _stored(self, request: requests.StoreConsumerOffset, sent: int, answer: asyncio.Future[None]) -> None:
        assert request.partition_id is not None
        # Whether a commit on a lost connection was executed is unknown: it counts as never acknowledged.
        unknown = answer.cancelled() or (answer.exception() is not None and not self.is_connected)
        if unknown or answer.exception() is None:
            answered = 1 << 62 if unknown else self.record.place()
            self.record.commits[request.partition_id].append(Committed(self.number, request.offset, sent, answered))


class Member:
    """Joins when it is created, and works until it is told to leave, or dies."""

    def __init__(self, record: Record, number: int, client: RecordingClient, mode: AutoCommit, chance: Random) -> None:
        self._record = record
        self._number = number
        self._client = client
        self._chance = chance
        self._mode = mode
        self._leaving = asyncio.Event()
        self.awake = asyncio.Event()
        self.awake.set()
        self._consumer = GroupConsumer(
            client, "s", "t", "g", batch=chance.choice((1, 3, 10, 25)), auto_commit=mode, follow=False
        )
        self.task = asyncio.create_task(self._work())
        # The error of the last member that made progress must reach those that wait for progress.
        self.task.add_done_callback(lambda _: record.tick())

    async def _work(self) -> None:
        consumer = self._consumer
        await consumer.join()
        while not self._leaving.is_set():
            async for message in consumer:
                self._record.process(self._number, message)
                if self._mode.is_off and self._chance.random() < 0.2:
                    await consumer.commit()
                await self.awake.wait()
                if self._leaving.is_set():
                    break
            await self.awake.wait()

    async def leave(self) -> None:
        self._leaving.set()
        self.awake.set()
        await self.task
        began = self._record.place()
        await self._consumer.close()
        self._record.gone.append(Gone(began, self._record.place()))
        await self._client.close()

    async def die(self, server: Server) -> None:
        """At any point: with a poll or a commit in progress, or with unprocessed messages."""
        sessions = len(server.gateway.sessions)
        began = self._record.place()
        connection = self._client._connection
        assert isinstance(connection, TcpConnection)
        connection._transport.abort()
        self.task.cancel()
        await asyncio.wait([self.task])
        await until(lambda: len(server.gateway.sessions) < sessions)
        self._record.gone.append(Gone(began, self._record.place()))
        await self._client.close()


class MemberPool:
    """The current members, and what happens to them."""

    def __init__(self, server: Server, record: Record, mode: AutoCommit, chance: Random) -> None:
        self._server = server
        self._record = record
        self._mode = mode
        self._chance = chance
        self._numbers = itertools.count()
        self.members: list[Member] = []

    async def join(self) -> None:
        client = await RecordingClient.connect(self._server.address)
        assert isinstance(client, RecordingClient)
        client.record, client.number = self._record, next(self._numbers)
        self.members.append(Member(self._record, client.number, client, self._mode, Random(self._chance.random())))

    def _anybody(self) -> Member:
        return self.members.pop(self._chance.randrange(len(self.members)))

    async def event(self) -> None:
        what = self._chance.choice(("join", "join", "join", "leave", "die", "stall", "stall", "wake"))
        if what == "join" and len(self.members) < MEMBERS_MAX:
            await self.join()
        elif what == "leave" and len(self.members) > 1:
            await self._anybody().leave()
        elif what == "die" and len(self.members) > 1:
            await self._anybody().die(self._server)
        elif what == "stall":
            self._chance.choice(self.members).awake.clear()
        elif what == "wake":
            self._chance.choice(self.members).awake.set()
        if not any(member.awake.is_set() for member in self.members):
            self.wake()

    def wake(self) -> None:
        for member in self.members:
            member.awake.set()

    def check(self) -> None:
        for member in self.members:
            if member.task.done():
                member.task.result()

    def has_worked_until(self, tick: int) -> bool:
        self.check()
        return self._record.ticks >= tick

    async def catch_up(self) -> None:
        """Waits until everything sent so far is processed, within a limited number of polls."""
        self.wake()
        record = self._record
        wanted, allowed = list(record.sent), record.polls + PATIENCE

        def done() -> bool:
            self.check()
            assert record.polls < allowed, f"starved: {record.reached} of {wanted}"
            return all(reached >= there for reached, there in zip(record.reached, wanted, strict=True))

        await record.until(done)


async def produce(client: Client, record: Record, partition_id: int, chance: Random, enough: asyncio.Event) -> None:
    async with Producer(client, "s", "t", partitioning=to_partition(partition_id), linger_ms=0) as producer:
        while not enough.is_set():
            for _ in range(chance.randint(1, 12)):
                await producer.send(str(record.sent[partition_id]).encode())
                record.sent[partition_id] += 1
            await producer.flush()
            await record.until(
                lambda: record.sent[partition_id] - record.reached[partition_id] < AHEAD or enough.is_set()
            )


async def play(path: Path, mode: AutoCommit, seed: int) -> Record:
    chance = Random(seed)
    record, enough = Record(), asyncio.Event()
    async with connected(path, PARTITIONS) as (server, client):
        pool = MemberPool(server, record, mode, chance)
        for _ in range(chance.randint(1, 3)):
            await pool.join()
        async with asyncio.TaskGroup() as producers:
            for partition_id in range(PARTITIONS):
                producers.create_task(produce(client, record, partition_id, Random(chance.random()), enough))
            for number in range(EVENTS):
                due = record.ticks + chance.randint(1, 60)
                await record.until(partial(pool.has_worked_until, due))
                await pool.event()
                if number % 20 == 19:
                    await pool.catch_up()
            enough.set()
            record.tick()
        await pool.catch_up()
        for member in pool.members:
            await member.leave()
    return record


@sized("seeds", 1, long=5, variable="WHIPPET_GROUP_SEEDS")
@pytest.mark.parametrize("mode", MODES)
def test_only_uncommitted_messages_are_processed_again_when_members_come_go_and_die(
    tmp_path: Path, mode: str, seeds: int
) -> None:
    for seed in range(seeds):
        run(play(tmp_path / str(seed), MODES[mode], seed)).check()
