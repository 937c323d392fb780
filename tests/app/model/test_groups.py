"""The rules of consumer groups, one by one, on the group alone: without a store, a session or a clock."""

from __future__ import annotations

import itertools

import pytest

from whippet.app.model.groups import Group
from whippet.storage.documents import GroupDocument

ANNE, BERT, CARL, DORA, EMIL = 70, 60, 50, 40, 30
"""Client ids; their order is not that of joining."""


class World:
    """A group with its stored offsets, and a clock that stands still unless a test advances it."""

    def __init__(self, partitions_count: int) -> None:
        self.group = Group(GroupDocument(id=0, name="g", created_at=1), partitions_count)
        self.stored: dict[int, int] = {}
        self.now = 1_000

    def join(self, *clients: int) -> None:
        for client in clients:
            self.group.join(client, self.now, self.stored.get)

    def poll(self, client: int, partition: int, last_offset: int) -> None:
        """Reads the partition and returns the messages up to an offset."""
        assert self.group.partition_to_poll(client, partition) == partition
        assert self.group.record_poll(client, partition, last_offset)

    def commit(self, partition: int, offset: int) -> None:
        self.stored[partition] = offset
        self.group.record_commit(partition, offset)

    @property
    def owned(self) -> list[list[int]]:
        return [member.partitions for member in self.group.members]

    @property
    def offered(self) -> list[list[int]]:
        return [list(member.offered) for member in self.group.members]

    @property
    def shares(self) -> list[int]:
        return [len(partitions) for partitions in self.owned]


# -------------------------------------------------------------------------------------------------------------- joining


@pytest.mark.parametrize(
    ("partitions", "members", "shares"),
    [
        (3, 1, [3]),
        (3, 2, [2, 1]),
        (3, 3, [1, 1, 1]),
        (3, 4, [1, 1, 1, 0]),
        (2, 5, [1, 1, 0, 0, 0]),
        (10, 2, [5, 5]),
        (10, 3, [4, 3, 3]),
        (8, 3, [3, 3, 2]),
        (8, 5, [2, 2, 2, 1, 1]),
        (0, 2, [0, 0]),
        (1, 2, [1, 0]),
    ],
)
def test_members_that_have_polled_nothing_share_immediately(partitions: int, members: int, shares: list[int]) -> None:
    world = World(partitions)
    world.join(*range(100, 100 + members))
    assert world.shares == shares
    assert world.offered == world.owned
    assert sorted(itertools.chain(*world.owned)) == list(range(partitions))


def test_a_new_member_gets_the_last_partitions_of_members_with_too_many() -> None:
    world = World(3)
    world.join(ANNE)
    assert world.owned == [[0, 1, 2]]
    world.join(BERT)
    assert world.owned == [[0, 1], [2]]
    world.join(CARL)
    assert world.owned == [[0], [2], [1]]


def test_joining_twice_changes_nothing() -> None:
    world = World(3)
    world.join(ANNE, BERT)
    before = (world.group.generation, world.owned, [member.id for member in world.group.members])
    assert not world.group.join(ANNE, world.now, world.stored.get)
    assert (world.group.generation, world.owned, [member.id for member in world.group.members]) == before


def test_a_new_member_has_the_highest_number() -> None:
    world = World(3)
    world.join(ANNE, BERT, CARL)
    assert [(member.id, member.client_id) for member in world.group.members] == [(0, ANNE), (1, BERT), (2, CARL)]
    world.group.leave(BERT)
    world.join(DORA)
    assert [(member.id, member.client_id) for member in world.group.members] == [(0, ANNE), (2, CARL), (3, DORA)]
    world.group.leave(DORA)
    world.join(EMIL)
    assert world.group.members[-1].id == 3
    for client in (ANNE, CARL, EMIL):
        world.group.leave(client)
    world.join(BERT)
    assert world.group.members[0].id == 0


# ------------------------------------------------------------------------------------------------------------- handover


def test_a_polled_partition_moves_only_after_the_commit() -> None:
    world = World(2)
    world.join(ANNE)
    world.poll(ANNE, 1, last_offset=9)
    world.join(BERT)
    assert world.owned == [[0, 1], []]
    assert world.offered == [[0], []]
    assert world.group.partition_to_poll(BERT, 1) is None
    world.commit(1, 8)
    assert world.owned == [[0, 1], []]
    world.commit(1, 9)
    assert world.owned == world.offered == [[0], [1]]
    assert world.group.partition_to_poll(BERT, None) == 1
    assert world.group.partition_to_poll(ANNE, 1) is None


def test_a_committed_partition_moves_immediately() -> None:
    world = World(2)
    world.join(ANNE)
    world.poll(ANNE, 1, last_offset=9)
    world.commit(1, 9)
    world.join(BERT)
    assert world.owned == [[0], [1]]


def test_a_commit_of_another_partition_moves_nothing() -> None:
    world = World(4)
    world.join(ANNE)
    for partition in range(4):
        world.poll(ANNE, partition, last_offset=5)
    world.join(BERT)
    world.commit(0, 5)
    world.commit(77, 5)
    assert world.owned == [[0, 1, 2, 3], []]
    world.commit(2, 5)
    assert world.owned == [[0, 1, 3], [2]]


def test_a_promised_partition_cannot_be_polled_in_turn_or_by_name() -> None:
    world = World(3)
    world.join(ANNE)
    world.poll(ANNE, 2, last_offset=4)
    world.join(BERT)
    assert [world.group.partition_to_poll(ANNE, None) for _ in range(4)] == [0, 1, 0, 1]
    assert world.group.partition_to_poll(ANNE, 2) is None
    world.commit(2, 0)
    assert world.owned == [[0, 1, 2], []]
    world.commit(2, 4)
    assert world.owned == [[0, 1], [2]]


def test_messages_that_were_being_read_when_the_partition_was_promised_are_returned() -> None:
    world = World(2)
    world.join(ANNE)
    world.poll(ANNE, 1, last_offset=0)
    assert world.group.partition_to_poll(ANNE, 1) == 1
    world.join(BERT)
    assert world.group.record_poll(ANNE, 1, 4)
    world.commit(1, 0)
    assert world.owned == [[0, 1], []]
    world.commit(1, 4)
    assert world.owned == [[0], [1]]


def test_an_overdue_partition_moves_without_a_commit() -> None:
    world = World(2)
    world.join(ANNE)
    world.poll(ANNE, 1, last_offset=9)
    world.now = 5_000
    world.join(BERT)
    assert world.group.reassign_overdue(promised_before=4_999) == []
    assert world.owned == [[0, 1], []]
    assert world.group.reassign_overdue(promised_before=5_000) == [1]
    assert world.owned == [[0], [1]]


def test_the_heir_need_not_commit_what_the_previous_owner_polled() -> None:
    world = World(2)
    world.join(ANNE)
    world.poll(ANNE, 1, last_offset=9)
    world.join(BERT)
    world.group.reassign_overdue(world.now)
    world.group.leave(ANNE)
    assert world.owned == [[0, 1]]
    world.join(CARL)
    assert world.owned == [[0], [1]]


def test_a_promise_may_pass_to_a_second_new_member() -> None:
    world = World(4)
    world.join(ANNE)
    for partition in range(4):
        world.poll(ANNE, partition, last_offset=0)
    world.join(BERT)
    assert world.offered == [[0, 1], []]
    world.now = 2_000
    world.join(CARL)
    for partition in range(4):
        world.commit(partition, 0)
    assert world.shares == [2, 1, 1]


def test_a_new_heir_gives_the_owner_no_more_time() -> None:
    world = World(4)
    world.join(ANNE)
    for partition in range(4):
        world.poll(ANNE, partition, last_offset=0)
    world.join(BERT)
    world.now = 2_000
    world.join(CARL)
    assert world.group.reassign_overdue(promised_before=1_000) == [2, 3]
    assert world.shares == [2, 1, 1]


def test_four_joining_members_end_with_even_shares_despite_uncommitted_messages() -> None:
    world = World(10)
    world.join(ANNE)
    for partition in range(10):
        world.poll(ANNE, partition, last_offset=0)
    world.join(BERT, CARL, DORA)
    assert world.shares == [10, 0, 0, 0]
    for partition in range(10):
        world.commit(partition, 0)
    assert world.shares == [3, 3, 2, 2]


# --------------------------------------------------------------------------------------------------------- reassignment


def test_when_a_member_leaves_all_partitions_are_reassigned() -> None:
    world = World(5)
    world.join(ANNE, BERT, CARL)
    world.poll(ANNE, 0, last_offset=3)
    assert world.group.leave(BERT)
    assert world.owned == [[0, 2, 4], [1, 3]]
    assert not world.group.leave(BERT)


def test_when_a_member_leaves_all_promises_end() -> None:
    world = World(2)
    world.join(ANNE)
    world.poll(ANNE, 1, last_offset=9)
    world.join(BERT)
    world.group.leave(BERT)
    assert world.owned == world.offered == [[0, 1]]
    world.commit(1, 9)
    assert world.owned == [[0, 1]]


def test_without_members_no_partition_has_an_owner() -> None:
    world = World(3)
    world.join(ANNE)
    world.group.leave(ANNE)
    assert world.owned == []
    world.join(BERT)
    assert world.owned == [[0, 1, 2]]


def test_added_partitions_cause_a_reassignment() -> None:
    world = World(1)
    world.join(ANNE, BERT)
    assert world.shares == [1, 0]
    world.group.repartition(4)
    assert world.owned == [[0, 2], [1, 3]]


def test_deleted_partitions_cause_a_reassignment() -> None:
    world = World(5)
    world.join(ANNE, BERT, CARL)
    world.group.repartition(2)
    assert world.owned == [[0], [1], []]
    world.group.repartition(0)
    assert world.owned == [[], [], []]
    assert world.group.partition_to_poll(ANNE, None) is None


def test_a_member_that_keeps_a_partition_still_has_to_commit_what_it_polled() -> None:
    world = World(2)
    world.join(ANNE)
    world.poll(ANNE, 1, last_offset=9)
    world.group.repartition(3)
    world.group.repartition(2)
    world.join(BERT)
    assert world.owned == [[0, 1], []]


def test_a_recreated_partition_was_polled_by_nobody() -> None:
    world = World(2)
    world.join(ANNE)
    world.poll(ANNE, 1, last_offset=9)
    world.group.repartition(1)
    world.group.repartition(2)
    world.join(BERT)
    assert world.owned == [[0], [1]]


def test_a_late_commit_for_a_lost_partition_does_not_set_the_group_back() -> None:
    world = World(2)
    world.join(ANNE, BERT, CARL)
    world.poll(BERT, 1, 9)
    world.group.leave(ANNE)
    assert world.owned == [[0], [1]]
    world.poll(CARL, 1, 19)
    world.commit(1, 19)
    world.join(ANNE)
    world.group.leave(CARL)
    assert world.group.partition_to_commit(ANNE, 1) == 1
    world.group.leave(ANNE)
    assert world.group.partition_to_commit(BERT, 1) == 1
    assert world.group.is_late(BERT, 1, 9, 19)
    world.poll(BERT, 1, 29)
    assert world.group.is_late(BERT, 1, 9, 19)
    assert not world.group.is_late(BERT, 1, 29, 19)
    world.commit(1, 29)
    assert not world.group.is_late(BERT, 1, 5, 29)


def test_a_member_that_had_committed_everything_may_go_back() -> None:
    world = World(2)
    world.join(ANNE, BERT, CARL)
    world.poll(BERT, 1, 9)
    world.commit(1, 9)
    world.group.leave(ANNE)
    world.group.leave(CARL)
    assert not world.group.is_late(BERT, 1, 0, 9)


def test_after_a_purge_promised_partitions_move() -> None:
    world = World(2)
    world.join(ANNE)
    world.poll(ANNE, 1, last_offset=9)
    world.join(BERT)
    world.group.record_purge()
    assert world.owned == [[0], [1]]


def test_a_disbanded_group_is_empty_and_can_be_joined_again() -> None:
    world = World(2)
    world.join(ANNE, BERT)
    assert world.group.disband() == [ANNE, BERT]
    assert world.group.members == []
    world.join(CARL)
    assert world.owned == [[0, 1]]


# ----------------------------------------------------------------------------------------------- polling and committing


def test_a_member_polls_its_partitions_in_turn() -> None:
    world = World(5)
    world.join(ANNE, BERT)
    assert [world.group.partition_to_poll(ANNE, None) for _ in range(5)] == [0, 1, 2, 0, 1]
    assert [world.group.partition_to_poll(BERT, None) for _ in range(3)] == [3, 4, 3]


def test_a_member_without_partitions_polls_nothing() -> None:
    world = World(1)
    world.join(ANNE, BERT)
    assert world.group.partition_to_poll(BERT, None) is None
    assert world.group.partition_to_poll(BERT, 0) is None
    assert world.group.partition_to_commit(BERT, None) is None


@pytest.mark.parametrize("wanted", [-1, 2, 3, 2**32 - 1])
def test_a_member_cannot_poll_a_partition_that_it_does_not_own(wanted: int) -> None:
    world = World(3)
    world.join(ANNE, BERT)
    assert world.group.partition_to_poll(ANNE, wanted) is None
    assert world.group.partition_to_commit(ANNE, wanted) is None


def test_a_commit_without_a_partition_applies_to_the_one_polled_last() -> None:
    world = World(3)
    world.join(ANNE)
    for expected in (0, 1, 2, 0):
        polled = world.group.partition_to_poll(ANNE, None)
        assert polled == expected
        assert world.group.record_poll(ANNE, expected, 4)
        assert world.group.partition_to_commit(ANNE, None) == expected


def test_an_empty_poll_does_not_change_the_partition_of_the_next_commit() -> None:
    world = World(2)
    world.join(ANNE)
    world.poll(ANNE, 0, last_offset=4)
    assert world.group.partition_to_poll(ANNE, 1) == 1
    assert world.group.partition_to_commit(ANNE, None) == 0


def test_before_the_first_message_a_commit_applies_to_the_next_partition() -> None:
    world = World(2)
    world.join(ANNE)
    assert world.group.partition_to_commit(ANNE, None) == 0
    assert world.group.partition_to_commit(ANNE, None) == 0
    world.group.partition_to_poll(ANNE, None)
    assert world.group.partition_to_commit(ANNE, None) == 1


def test_a_commit_without_a_partition_never_applies_to_one_that_was_not_polled() -> None:
    world = World(2)
    world.join(ANNE)
    world.poll(ANNE, 1, last_offset=4)
    world.join(BERT)
    world.group.reassign_overdue(world.now)
    assert world.owned == [[0], [1]]
    assert world.group.partition_to_commit(ANNE, None) is None
    world.group.leave(BERT)
    assert world.owned == [[0, 1]]
    assert world.group.partition_to_commit(ANNE, None) is None
    assert world.group.partition_to_commit(ANNE, 1) == 1


def test_messages_are_not_returned_if_the_partition_has_moved_during_the_read() -> None:
    world = World(2)
    world.join(ANNE)
    assert world.group.partition_to_poll(ANNE, 1) == 1
    world.join(BERT)
    assert world.owned == [[0], [1]]
    assert not world.group.record_poll(ANNE, 1, 9)


def test_nor_if_the_partition_has_moved_and_come_back() -> None:
    world = World(2)
    world.join(ANNE)
    assert world.group.partition_to_poll(ANNE, 1) == 1
    world.join(BERT)
    world.group.leave(BERT)
    assert world.owned == [[0, 1]]
    assert not world.group.record_poll(ANNE, 1, 9)
    world.poll(ANNE, 1, last_offset=9)


def test_nor_if_the_member_has_left_or_rejoined() -> None:
    world = World(1)
    world.join(ANNE)
    assert world.group.partition_to_poll(ANNE, 0) == 0
    world.group.leave(ANNE)
    assert not world.group.record_poll(ANNE, 0, 9)
    world.join(ANNE)
    assert not world.group.record_poll(ANNE, 0, 9)


def test_nor_if_the_partition_was_deleted_or_purged() -> None:
    world = World(2)
    world.join(ANNE)
    assert world.group.partition_to_poll(ANNE, 1) == 1
    world.group.repartition(1)
    assert not world.group.record_poll(ANNE, 1, 9)
    assert world.group.partition_to_poll(ANNE, 0) == 0
    world.group.record_purge()
    assert not world.group.record_poll(ANNE, 0, 9)


# ---------------------------------------------------------------------------------------------------------- generations


def test_every_change_of_an_assignment_is_a_new_generation() -> None:
    world = World(2)
    seen = [world.group.generation]

    def raised() -> bool:
        seen.append(world.group.generation)
        return seen[-1] > seen[-2]

    world.join(ANNE)
    assert raised()
    world.poll(ANNE, 1, last_offset=3)
    assert not raised()
    world.join(BERT)
    assert raised()
    world.commit(1, 2)
    assert not raised()
    world.commit(1, 3)
    assert raised()
    world.group.repartition(3)
    assert raised()
    world.group.leave(BERT)
    assert raised()
    assert world.group.reassign_overdue(world.now) == []
    assert not raised()
