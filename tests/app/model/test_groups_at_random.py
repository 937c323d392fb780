"""Members that come, go, read, commit and die in any order, in a topic that grows and shrinks: what always holds.

Every client has one request under way at most, as a connection has; a read that was begun ends later, or never.
"""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.model.groups import Group
from storage.catalog import GroupDocument

CLIENTS = st.integers(0, 4)
PARTITIONS_MAX = 7
TIMEOUT = 30


class Members(RuleBasedStateMachine):
    @initialize(partitions=st.integers(1, 6))
    def begin(self, partitions: int) -> None:
        self.group = Group(GroupDocument(id=0, name="g", created_at=1), partitions)
        self.now = 0
        self.ends = [8] * partitions
        """The next offset of every partition."""
        self.stored: dict[int, int] = {}
        self.in_hand: dict[tuple[int, int], int] = {}
        """The last offset that a client has been handed out of a partition since it owns it."""
        self.reading: dict[int, tuple[int, int, int]] = {}
        """For a client: the partition, the first and the last offset of what is being read for it."""
        self.promised: dict[int, int] = {}
        """Since when the owner of a partition knows that he has to let it go."""
        self.generation = 0
        self.offers: list[tuple[int, tuple[int, ...]]] = []

    def owners(self) -> dict[int, int]:
        return {partition: member.client_id for member in self.group.members for partition in member.partitions}

    def free_members(self) -> list[int]:
        return [member.client_id for member in self.group.members if member.client_id not in self.reading]

    def committers(self) -> list[tuple[int, int]]:
        """Clients without a request under way, with the partitions that they have messages of."""
        return sorted(key for key in self.in_hand if key[0] not in self.reading)

    def forget_what_has_moved(self) -> None:
        owners = self.owners()
        self.in_hand = {key: offset for key, offset in self.in_hand.items() if owners.get(key[1]) == key[0]}

    def expect_only_finished_ones_to_move(self, before: dict[int, int]) -> None:
        """After anything but a deadline, a leave or another number of partitions."""
        for partition, owner in self.owners().items():
            previous = before.get(partition, owner)
            if previous != owner and (previous, partition) in self.in_hand:
                assert self.stored.get(partition, -1) >= self.in_hand[previous, partition]
        self.forget_what_has_moved()

    # ------------------------------------------------------------------------------------------------- what happens

    @rule(client=CLIENTS)
    def join(self, client: int) -> None:
        before = self.owners()
        self.group.join(client, self.now, self.stored.get)
        self.expect_only_finished_ones_to_move(before)

    @rule(client=CLIENTS, alive=st.booleans(), sure=st.integers(0, 2))
    def leave(self, client: int, alive: bool, sure: int) -> None:
        """Or die: then what is being read for it is never sent."""
        if sure or (alive and client in self.reading):
            return
        self.reading.pop(client, None)
        self.group.leave(client)
        self.forget_what_has_moved()

    @rule(partitions=st.integers(0, PARTITIONS_MAX), sure=st.integers(0, 5))
    def have_other_partitions(self, partitions: int, sure: int) -> None:
        if sure:
            return
        for partition in range(partitions, len(self.ends)):
            self.stored.pop(partition, None)
        self.ends = self.ends[:partitions] + [4] * (partitions - len(self.ends))
        self.group.repartition(partitions)
        self.forget_what_has_moved()

    @rule(sure=st.integers(0, 5))
    def purge(self, sure: int) -> None:
        if sure:
            return
        self.ends = [0] * len(self.ends)
        self.stored.clear()
        self.in_hand.clear()
        self.group.purged()

    @precondition(lambda self: self.ends)
    @rule(data=st.data(), messages=st.integers(1, 5))
    def send(self, data: st.DataObject, messages: int) -> None:
        self.ends[data.draw(st.integers(0, len(self.ends) - 1))] += messages

    @precondition(lambda self: self.free_members())
    @rule(data=st.data(), wanted=st.none() | st.integers(0, PARTITIONS_MAX), count=st.integers(1, 5))
    def begin_to_read(self, data: st.DataObject, wanted: int | None, count: int) -> None:
        client = data.draw(st.sampled_from(self.free_members()))
        partition = self.group.partition_to_poll(client, wanted)
        owns = self.owners().get(partition if wanted is None else wanted) == client
        assert owns == (partition is not None)
        if partition is None:
            return
        if wanted is None:
            assert partition in dict(self.offers)[client]
        first = self.stored.get(partition, -1) + 1
        last = min(first + count, self.ends[partition]) - 1
        if last >= first:
            self.reading[client] = (partition, first, last)

    @precondition(lambda self: self.reading)
    @rule(data=st.data(), auto_commit=st.booleans())
    def have_read(self, data: st.DataObject, auto_commit: bool) -> None:
        client = data.draw(st.sampled_from(sorted(self.reading)))
        partition, first, last = self.reading.pop(client)
        if not self.group.polled(client, partition, last):
            return
        # Nobody else has it, and it is what comes after all that is committed: in order, and nothing of that twice.
        assert self.owners()[partition] == client
        assert first == self.stored.get(partition, -1) + 1
        self.in_hand[client, partition] = last
        if auto_commit:
            self.commit_to(partition, last)

    @precondition(lambda self: self.committers())
    @rule(data=st.data(), named=st.booleans(), behind=st.sampled_from([0, 0, 1, 2]))
    def commit(self, data: st.DataObject, named: bool, behind: int) -> None:
        """What it was handed out, all or not all of it."""
        client, wanted = data.draw(st.sampled_from(self.committers()))
        partition = self.group.partition_to_commit(client, wanted if named else None)
        if named:
            assert partition == wanted
        if partition is None:
            return
        # Without a name it is a partition that messages were got from, and still its own.
        assert (client, partition) in self.in_hand
        offset = self.in_hand[client, partition] - behind
        if offset > self.stored.get(partition, -1):
            self.commit_to(partition, offset)

    def commit_to(self, partition: int, offset: int) -> None:
        before = self.owners()
        self.stored[partition] = offset
        self.group.committed(partition, offset)
        self.expect_only_finished_ones_to_move(before)

    @rule(passed=st.sampled_from([0, 1, TIMEOUT - 1, TIMEOUT]))
    def let_time_pass(self, passed: int) -> None:
        before = self.owners()
        self.now += passed
        moved = self.group.overdue(self.now - TIMEOUT)
        assert {partition for partition, owner in self.owners().items() if owner != before[partition]} == set(moved)
        assert all(self.now - self.promised[partition] >= TIMEOUT for partition in moved)
        assert all(self.now - since < TIMEOUT for partition, since in self.promised.items() if partition not in moved)
        self.forget_what_has_moved()

    # ------------------------------------------------------------------------------------------------ what always holds

    @invariant()
    def every_partition_has_one_owner_and_only_he_reads_it(self) -> None:
        owned = list(itertools.chain(*(member.partitions for member in self.group.members)))
        assert sorted(owned) == (list(range(len(self.ends))) if self.group.members else [])
        for member in self.group.members:
            assert set(member.offered) <= set(member.partitions)
            assert member.polling <= set(member.partitions)
        promised = {p for member in self.group.members for p in member.partitions if p not in member.offered}
        self.promised = {partition: self.promised.get(partition, self.now) for partition in promised}

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
        """Once everybody has had his time the shares are even, and whoever is left gets every message to the end."""
        self.group.overdue(self.now)
        self.group.join(100, self.now, self.stored.get)
        self.group.overdue(self.now)
        self.every_partition_has_one_owner_and_only_he_reads_it()
        shares = [len(member.partitions) for member in self.group.members]
        assert max(shares) - min(shares) <= 1
        for member in self.group.members:
            assert sorted(member.offered) == sorted(member.partitions)
            for _ in member.partitions:
                partition = self.group.partition_to_poll(member.client_id, None)
                assert partition is not None
                if self.stored.get(partition, -1) < self.ends[partition] - 1:
                    assert self.group.polled(member.client_id, partition, self.ends[partition] - 1)
                    self.stored[partition] = self.ends[partition] - 1
        assert [self.stored.get(partition, -1) + 1 for partition in range(len(self.ends))] == self.ends


TestMembers = Members.TestCase
TestMembers.settings = settings(deadline=None, max_examples=200, stateful_step_count=60)
