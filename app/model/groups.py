"""A consumer group: its members, and the assignment of partitions to them. Pure state, for the event loop only.

1. A partition has at most one owner. Only its owner may poll it, and messages are returned only if the member still
   owns the partition after the read (`partition_to_poll`, then `record_poll`).
2. A member that joins gets a fair share without stopping the others. A partition with an owner is only promised to its
   heir: the owner may not poll it any more, and keeps it until it has committed what it polled, or until the timeout. A
   partition of which the owner has polled nothing moves at once.
3. When a member leaves, or the number of partitions changes, all partitions are reassigned: partition i to member i mod
   m.
4. A member that lost a partition with uncommitted messages may get it back after others have read on. A late commit for
   the messages from before does not set the group back (`is_late`).
5. `generation` increases whenever the partitions that a member may poll change.

Memberships do not survive a restart. The caller passes the time in.
"""

from __future__ import annotations

from collections.abc import Callable

from whippet.storage.documents import GroupDocument

Committed = Callable[[int], int | None]
"""Returns the stored offset of the group in a partition, or None."""


class Member:
    """A session in the group."""

    __slots__ = ("client_id", "id", "offered", "partitions", "polling", "source", "turn", "uncommitted")

    def __init__(self, member_id: int, client_id: int) -> None:
        self.id = member_id
        self.client_id = client_id
        self.partitions: list[int] = []
        """The partitions that it owns, in the order in which it got them."""
        self.offered: tuple[int, ...] = ()
        """Those of them that are not promised to another member."""
        self.turn = 0
        self.polling: set[int] = set()
        """Partitions that it has begun to poll since it owns them."""
        self.uncommitted: set[int] = set()
        """Partitions that it lost before it had committed what it polled."""
        self.source: int | None = None
        """The partition of the newest messages that it polled."""

    @property
    def finishing(self) -> tuple[int, ...]:
        """The partitions that it owns but may not poll, because they are promised to another member."""
        if len(self.offered) == len(self.partitions):
            return ()
        offered = set(self.offered)
        return tuple(partition_id for partition_id in self.partitions if partition_id not in offered)


class _Holding:
    """The ownership of a partition; a new one each time the owner changes."""

    __slots__ = ("committed", "heir", "owner", "polled", "promised_at")

    def __init__(self, owner: Member | None = None) -> None:
        self.owner = owner
        self.polled: int | None = None
        """The last offset that the owner has polled."""
        self.committed: int | None = None
        """The last offset that was committed since the owner has the partition."""
        self.heir: Member | None = None
        self.promised_at = 0

    def revoke(self, partition_id: int) -> None:
        """Takes the partition from its owner."""
        if self.owner is not None:
            self.owner.polling.discard(partition_id)
            if not self.is_drained(self.committed):
                self.owner.uncommitted.add(partition_id)

    def is_drained(self, committed: int | None) -> bool:
        """Returns True if the owner has committed everything that it polled."""
        return self.polled is None or (committed is not None and committed >= self.polled)


class Group:
    """See the module."""

    __slots__ = ("_holdings", "_members", "document", "generation")

    def __init__(self, document: GroupDocument, partitions_count: int) -> None:
        self.document = document
        self.generation = 0
        # In the order of joining, which is that of the member ids: a new one is the highest.
        self._members: dict[int, Member] = {}
        self._holdings = [_Holding() for _ in range(partitions_count)]

    @property
    def id(self) -> int:
        return self.document.id

    @property
    def name(self) -> str:
        return self.document.name

    # ------------------------------------------------------------------------------------------------------- membership

    @property
    def members(self) -> list[Member]:
        """In the order of their ids."""
        return list(self._members.values())

    def member(self, client_id: int) -> Member | None:
        return self._members.get(client_id)

    def join(self, client_id: int, now: int, committed: Committed) -> bool:
        """Returns False if the client is a member already."""
        if client_id in self._members:
            return False
        highest_id = max((member.id for member in self._members.values()), default=-1)
        self._members[client_id] = newcomer = Member(highest_id + 1, client_id)
        self._promise_share(newcomer, now)
        for partition_id, holding in enumerate(self._holdings):
            if holding.heir is not None and holding.is_drained(committed(partition_id)):
                self._move(partition_id, holding.heir)
        self._changed()
        return True

    def leave(self, client_id: int) -> bool:
        """Returns False if the client is no member."""
        if self._members.pop(client_id, None) is None:
            return False
        self._reassign_all()
        return True

    def disband(self) -> list[int]:
        """Removes all members and returns their client ids."""
        clients = list(self._members)
        self._members.clear()
        self._reassign_all()
        return clients

    def repartition(self, partitions_count: int) -> None:
        """The topic has gained or lost partitions at its end."""
        for member in self._members.values():
            member.polling = {number for number in member.polling if number < partitions_count}
            member.uncommitted = {number for number in member.uncommitted if number < partitions_count}
        kept = self._holdings[:partitions_count]
        self._holdings = kept + [_Holding() for _ in range(partitions_count - len(kept))]
        self._reassign_all()

    # ------------------------------------------------------------------------------------------ polling and committing

    def partition_to_poll(self, client_id: int, wanted: int | None) -> int | None:
        """Returns the partition that a member polls: the one it names if it may poll it, or else the next one in turn.

        None: there is none. `record_poll` decides after the read whether the messages may be returned.
        """
        member = self._members[client_id]
        if wanted is None:
            if not member.offered:
                return None
            wanted = member.offered[member.turn % len(member.offered)]
            member.turn += 1
        elif not self._owns(member, wanted) or self._holdings[wanted].heir is not None:
            return None
        member.polling.add(wanted)
        return wanted

    def record_poll(self, client_id: int, partition_id: int, last_offset: int) -> bool:
        """Returns True if messages that a member has read may be returned to it: not if the partition has changed hands
        since `partition_to_poll`, even if it is back. They then count as polled."""
        member = self._members.get(client_id)
        if member is None or partition_id not in member.polling:
            return False
        self._holdings[partition_id].polled = last_offset
        member.source = partition_id
        return True

    def partition_to_commit(self, client_id: int, wanted: int | None) -> int | None:
        """Returns the partition whose offset a member may change: the one it names, or the one of its newest messages.

        For a member that has no messages yet, this is the partition that it would poll next. None: it owns no such
        partition.
        """
        member = self._members[client_id]
        if wanted is not None:
            return wanted if self._owns(member, wanted) else None
        if member.source is None:
            return member.offered[member.turn % len(member.offered)] if member.offered else None
        if self._owns(member, member.source) and self._holdings[member.source].polled is not None:
            return member.source
        return None

    def is_late(self, client_id: int, partition_id: int, offset: int, stored: int | None) -> bool:
        """Returns True if the owner commits an offset from before it lost the partition and got it back, while the
        group has read on. After a commit that is not late, the owner may go back as far as it likes."""
        uncommitted = self._members[client_id].uncommitted
        if partition_id in uncommitted and stored is not None and offset < stored:
            return True
        uncommitted.discard(partition_id)
        return False

    def record_commit(self, partition_id: int, offset: int) -> None:
        """Records a stored offset of the group: a promised partition moves when its owner has committed all that it
        polled."""
        if partition_id >= len(self._holdings):
            return
        holding = self._holdings[partition_id]
        holding.committed = offset
        if holding.heir is not None and holding.is_drained(offset):
            self._move(partition_id, holding.heir)
            self._changed()

    def record_purge(self) -> None:
        """All messages and offsets are gone: nothing has to be committed any more. The generation rises, so that a
        lease cannot commit what it polled before, which would skip messages that have arrived since."""
        for member in self._members.values():
            member.polling.clear()
            member.uncommitted.clear()
            member.source = None
        for partition_id, holding in enumerate(self._holdings):
            holding.polled = None
            if holding.heir is not None:
                self._move(partition_id, holding.heir)
        self._changed()

    def reassign_overdue(self, promised_before: int) -> list[int]:
        """Moves partitions that were promised at or before a time, committed or not, and returns them."""
        moved = []
        for partition_id, holding in enumerate(self._holdings):
            if holding.heir is not None and holding.promised_at <= promised_before:
                self._move(partition_id, holding.heir)
                moved.append(partition_id)
        if moved:
            self._changed()
        return moved

    def _owns(self, member: Member, partition_id: int) -> bool:
        return 0 <= partition_id < len(self._holdings) and self._holdings[partition_id].owner is member

    # ------------------------------------------------------------------------------------------------------- assignment

    def _promise_share(self, newcomer: Member, now: int) -> None:
        """Promises the newcomer what the others will have above their shares once all promises are kept.

        Members give from the end of their lists: first what was only promised to them, then what they own. No member
        ever has fewer partitions than one that joined later, so the larger shares belong to the first members, and only
        the newcomer has too few.
        """
        members = self.members
        share, larger = divmod(len(self._holdings), len(members))
        due = {member.id: self._unpromised(member) for member in members}
        for partition_id, holding in enumerate(self._holdings):
            if holding.owner is None:
                self._move(partition_id, newcomer)
            elif holding.heir is not None:
                due[holding.heir.id].append(partition_id)
        for index, member in enumerate(members):
            for partition_id in due[member.id][share + (index < larger) :]:
                holding = self._holdings[partition_id]
                if holding.heir is None:
                    # An owner gets no more time when the heir changes.
                    holding.promised_at = now
                holding.heir = newcomer

    def _unpromised(self, member: Member) -> list[int]:
        return [partition_id for partition_id in member.partitions if self._holdings[partition_id].heir is None]

    def _move(self, partition_id: int, owner: Member) -> None:
        before = self._holdings[partition_id].owner
        if before is not None:
            before.partitions.remove(partition_id)
            self._holdings[partition_id].revoke(partition_id)
        owner.partitions.append(partition_id)
        self._holdings[partition_id] = _Holding(owner)

    def _reassign_all(self) -> None:
        """Assigns partition i to member i mod m and cancels promises. A member that keeps a partition keeps what it
        polled."""
        members = self.members
        for member in members:
            member.partitions = []
        for partition_id, holding in enumerate(self._holdings):
            owner = members[partition_id % len(members)] if members else None
            if holding.owner is owner:
                holding.heir = None
            else:
                holding.revoke(partition_id)
                self._holdings[partition_id] = _Holding(owner)
            if owner is not None:
                owner.partitions.append(partition_id)
        self._changed()

    def _changed(self) -> None:
        self.generation += 1
        for member in self._members.values():
            member.offered = tuple(self._unpromised(member))
