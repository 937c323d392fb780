"""Invariants of a group whose members join, leave, read, commit and die in any order.

Partitions are added and deleted meanwhile. Every client has at most one request in progress, as a connection has; a
read ends later, or never.
"""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.support.sizes import sized
from whippet.app.model.groups import Group
from whippet.storage.documents import GroupDocument

CLIENTS = st.integers(0, 4)
PARTITIONS_MAX = 7
TIMEOUT = 30


class Members(RuleBasedStateMachine):
    @initialize(partitions=st.integers(1, 6), members=st.integers(0, 2))
    def begin(self, partitions: int, members: int) -> None:
        self.group = Group(GroupDocument(id=0, name="g", created_at=1), partitions)
        self.now = 0
        self.ends = [8] * partitions
        """The next offset of every partition."""
        self.stored: dict[int, int] = {}
        self.received: dict[tuple[int, int], int] = {}
        """The last offset that a client has received of a partition since it owns it."""
        self.reading: dict[int, tuple[int, int, int, int]] = {}
        """For a client: the partition, its tenure, and the first and the last offset of the read in progress."""
        self.promised: dict[int, int] = {}
        """Since when the owner of a partition knows that it has to give it up."""
        self.owner_of: dict[int, int] = {}
        self.tenures = [0] * partitions
        """How often each partition has changed its owner, or was purged."""
        self.generation = 0
        self.offers: list[tuple[int, tuple[int, ...]]] = []
        for client in range(members):
            self.group.join(client, self.now, self.stored.get)

    def owners(self) -> dict[int, int]:
        return {partition: member.client_id for member in self.group.members for partition in member.partitions}

    def forget_what_has_moved(self) -> None:
        owners = self.owners()
        self.received = {key: offset for key, offset in self.received.items() if owners.get(key[1]) == key[0]}

    def expect_only_finished_ones_to_move(self, before: dict[int, int]) -> None:
        """After anything but a timeout, a leave or a change of the number of partitions."""
        for partition, owner in self.owners().items():
            previous = before.get(partition, owner)
            if previous != owner and (previous, partition) in self.received:
                assert self.stored.get(partition, -1) >= self.received[previous, partition]
        self.forget_what_has_moved()

    def expect_a_reassignment(self) -> None:
        members = self.group.members
        for place, member in enumerate(members):
            assert list(member.offered) == member.partitions == list(range(len(self.ends)))[place :: len(members)]
        self.forget_what_has_moved()

    # ------------------------------------------------------------------------------------------------------- events

    @rule(client=CLIENTS)
    def join(self, client: int) -> None:
        before = self.owners()
        self.group.join(client, self.now, self.stored.get)
        self.expect_only_finished_ones_to_move(before)

    @rule(client=CLIENTS, alive=st.booleans(), sure=st.integers(0, 2))
    def leave(self, client: int, alive: bool, sure: int) -> None:
        """Or dies: then the read in progress is never returned."""
        if sure != 2 or (alive and client in self.reading):
            return
        self.reading.pop(client, None)
        if not self.group.leave(client):
            return
        self.expect_a_reassignment()

    @rule(partitions=st.integers(0, PARTITIONS_MAX), sure=st.integers(0, 5))
    def have_other_partitions(self, partitions: int, sure: int) -> None:
        if sure != 5:
            return
        for partition in range(partitions, len(self.ends)):
            self.stored.pop(partition, None)
            self.tenures[partition] += 1
        self.tenures += [0] * (partitions - len(self.tenures))
        self.ends = self.ends[:partitions] + [4] * (partitions - len(self.ends))
        self.group.repartition(partitions)
        self.expect_a_reassignment()

    @rule(sure=st.integers(0, 5))
    def purge(self, sure: int) -> None:
        if sure != 5:
            return
        self.ends = [0] * len(self.ends)
        self.tenures = [tenure + 1 for tenure in self.tenures]
        self.stored.clear()
        self.received.clear()
        self.group.record_purge()

    @rule(partition=st.integers(0, PARTITIONS_MAX - 1), messages=st.integers(1, 5))
    def send(self, partition: int, messages: int) -> None:
        if partition < len(self.ends):
            self.ends[partition] += messages

    @rule(
        who=st.integers(0, 9),
        wanted=st.none() | st.integers(0, PARTITIONS_MAX),
        count=st.integers(1, 5),
        auto_commit=st.none() | st.booleans(),
    )
    def read(self, who: int, wanted: int | None, count: int, auto_commit: bool | None) -> None:
        """In one step, or with others in between."""
        free = [member.client_id for member in self.group.members if member.client_id not in self.reading]
        if not free:
            return
        self.read_for(free[who % len(free)], wanted, count, auto_commit)

    def read_for(self, client: int, wanted: int | None, count: int, auto_commit: bool | None) -> None:
        partition = self.group.partition_to_poll(client, wanted)
        asked = partition if wanted is None else wanted
        # A promised partition is not read any more, not even by name.
        is_offered = asked is not None and asked in dict(self.offers)[client]
        assert is_offered == (partition is not None)
        if partition is None:
            return
        first = self.stored.get(partition, -1) + 1
        last = min(first + count, self.ends[partition]) - 1
        if last >= first:
            self.reading[client] = (partition, self.tenures[partition], first, last)
            if auto_commit is not None:
                self.have_read_for(client, auto_commit)

    @rule(count=st.integers(1, 5))
    def read_everywhere(self, count: int) -> None:
        """And commits nothing: a new member has to wait."""
        for member in self.group.members:
            if member.client_id not in self.reading:
                for wanted in member.offered:
                    self.read_for(member.client_id, wanted, count, auto_commit=False)

    @rule(who=st.integers(0, 9), auto_commit=st.booleans())
    def have_read(self, who: int, auto_commit: bool) -> None:
        if not self.reading:
            return
        self.have_read_for(sorted(self.reading)[who % len(self.reading)], auto_commit)

    def have_read_for(self, client: int, auto_commit: bool) -> None:
        partition, tenure, first, last = self.reading.pop(client)
        still_his = self.tenures[partition] == tenure
        assert self.group.record_poll(client, partition, last) == still_his
        if not still_his:
            return
        # It has a single owner, and what follows the committed messages is in order, without duplicates.
        assert self.owners()[partition] == client
        assert first == self.stored.get(partition, -1) + 1
        self.received[client, partition] = last
        if auto_commit:
            self.commit_to(partition, last)

    @rule(who=st.integers(0, 30), named=st.booleans(), uncommitted=st.sampled_from([0, 0, 1, 2]))
    def commit(self, who: int, named: bool, uncommitted: int) -> None:
        """All that it has received, or a part of it."""
        free = sorted(key for key in self.received if key[0] not in self.reading)
        if not free:
            return
        client, wanted = free[who % len(free)]
        partition = self.group.partition_to_commit(client, wanted if named else None)
        if named:
            assert partition == wanted
        if partition is None:
            return
        # Without a name it is a partition whose messages were received, and that is still owned.
        assert (client, partition) in self.received
        offset = self.received[client, partition] - uncommitted
        if offset > self.stored.get(partition, -1):
            self.commit_to(partition, offset)

    def commit_to(self, partition: int, offset: int) -> None:
        before = self.owners()
        self.stored[partition] = offset
        self.group.record_commit(partition, offset)
        self.expect_only_finished_ones_to_move(before)

    @rule(passed=st.sampled_from([1, 2, 7, TIMEOUT]))
    def let_time_pass(self, passed: int) -> None:
        before = self.owners()
        self.now += passed
        moved = self.group.reassign_overdue(self.now - TIMEOUT)
        assert {partition for partition, owner in self.owners().items() if owner != before[partition]} == set(moved)
        assert all(self.now - self.promised[partition] >= TIMEOUT for partition in moved)
        assert all(self.now - since < TIMEOUT for partition, since in self.promised.items() if partition not in moved)
        self.forget_what_has_moved()

    # ------------------------------------------------------------------------------------------------------- invariants

    @invariant()
    def every_partition_has_one_owner_and_only_he_reads_it(self) -> None:
        owned = list(itertools.chain(*(member.partitions for member in self.group.members)))
        assert sorted(owned) == (list(range(len(self.ends))) if self.group.members else [])
        for member in self.group.members:
            assert set(member.offered) <= set(member.partitions)
            assert member.polling <= set(member.partitions)
        promised = {p for member in self.group.members for p in member.partitions if p not in member.offered}
        self.promised = {partition: self.promised.get(partition, self.now) for partition in promised}

        owners = self.owners()
        for partition in range(len(self.ends)):
            self.tenures[partition] += owners.get(partition) != self.owner_of.get(partition)
        self.owner_of = owners

    @invariant()
    def a_new_offer_is_a_new_generation(self) -> None:
        offers = [(member.client_id, member.offered) for member in self.group.members]
        if offers != self.offers:
            assert self.group.generation > self.generation
        assert self.group.generation >= self.generation
        self.generation, self.offers = self.group.generation, offers

    @invariant()
    def member_ids_go_up_in_the_order_of_joining(self) -> None:
        ids = [member.id for member in self.group.members]
        assert ids == sorted(set(ids))

    def teardown(self) -> None:
        """Once all timeouts have passed the shares are even, and the remaining members get every message to the end."""
        self.group.reassign_overdue(self.now)
        self.group.join(100, self.now, self.stored.get)
        self.group.reassign_overdue(self.now)
        self.every_partition_has_one_owner_and_only_he_reads_it()
        shares = [len(member.partitions) for member in self.group.members]
        assert max(shares) - min(shares) <= 1
        for member in self.group.members:
            assert sorted(member.offered) == sorted(member.partitions)
            for _ in member.partitions:
                partition = self.group.partition_to_poll(member.client_id, None)
                assert partition is not None
                if self.stored.get(partition, -1) < self.ends[partition] - 1:
                    assert self.group.record_poll(member.client_id, partition, self.ends[partition] - 1)
                    self.stored[partition] = self.ends[partition] - 1
        assert [self.stored.get(partition, -1) + 1 for partition in range(len(self.ends))] == self.ends


@sized("lives", 50, long=300)
def test_every_message_is_processed_whichever_members_come_and_go(lives: int) -> None:
    run_state_machine_as_test(Members, settings=settings(deadline=None, max_examples=lives, stateful_step_count=100))
