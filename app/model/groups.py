"""A consumer group: who its members are, and which member reads which partition. Pure state, for the event loop alone.

1. A partition has at most one owner. Only its owner is told to read it, and what was read reaches the client only if it
   still is the owner when the reading is done (`partition_to_poll`, then `polled`).
2. Who joins gets a fair share without stopping the others. A partition that somebody owns is only promised to its heir:
   the owner reads no more of it, and keeps it until all that was handed out to him is committed, or until he has had it
   for too long. A partition of which he was handed out nothing moves at once.
3. Who leaves, and a changed number of partitions, make all partitions dealt anew: partition i to member i mod m.
4. Who had a partition taken away before all that he was handed out of it was committed may have it again, and others
   have read on meanwhile. What he still has to commit from before does not take the group back (`is_late`).
5. `generation` rises with every change of what any member is offered.

Members are connections and are not kept over a restart. Time is a number that the caller passes in.
"""

from __future__ import annotations

from collections.abc import Callable

from whippet.storage.documents import GroupDocument

Committed = Callable[[int], int | None]
"""What the group has stored in a partition; None when nothing is."""


class Member:
    """A connection in the group."""

    __slots__ = ("client_id", "id", "offered", "owing", "partitions", "polling", "source", "turn")

    def __init__(self, member_id: int, client_id: int) -> None:
        self.id = member_id
        self.client_id = client_id
        self.partitions: list[int] = []
        """All that it owns, in the order in which it got them."""
        self.offered: tuple[int, ...] = ()
        """Of these, the ones that are not promised to somebody else."""
        self.turn = 0
        self.polling: set[int] = set()
        """Partitions that it began to read since it owns them."""
        self.owing: set[int] = set()
        """Partitions that were taken from it when not all that it was handed out was committed."""
        self.source: int | None = None
        """The partition that its newest messages are from."""

    @property
    def finishing(self) -> tuple[int, ...]:
        """What it has, but is not offered: promised to somebody else."""
        if len(self.offered) == len(self.partitions):
            return ()
        offered = set(self.offered)
        return tuple(partition_id for partition_id in self.partitions if partition_id not in offered)


class _Holding:
    """A partition in the hands of its owner; a new one each time it changes hands."""

    __slots__ = ("committed", "heir", "owner", "polled", "promised_at")

    def __init__(self, owner: Member | None = None) -> None:
        self.owner = owner
        self.polled: int | None = None
        """The last offset that the owner was handed out."""
        self.committed: int | None = None
        """The last offset that was stored since the owner has it."""
        self.heir: Member | None = None
        self.promised_at = 0

    def revoke(self, partition_id: int) -> None:
        """The owner has it no longer."""
        if self.owner is not None:
            self.owner.polling.discard(partition_id)
            if not self.is_drained(self.committed):
                self.owner.owing.add(partition_id)

    def is_drained(self, committed: int | None) -> bool:
        """Whether the owner has nothing left that only he knows of."""
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

    # ---------------------------------------------------------------------------------------------- who is in the group

    @property
    def members(self) -> list[Member]:
        """In the order of their ids."""
        return list(self._members.values())

    def member(self, client_id: int) -> Member | None:
        return self._members.get(client_id)

    def join(self, client_id: int, now: int, committed: Committed) -> bool:
        """Makes a client a member; False when it is one already."""
        if client_id in self._members:
            return False
        newest_id = max((member.id for member in self._members.values()), default=-1)
        self._members[client_id] = newcomer = Member(newest_id + 1, client_id)
        self._promise_share(newcomer, now)
        for partition_id, holding in enumerate(self._holdings):
            if holding.heir is not None and holding.is_drained(committed(partition_id)):
                self._move(partition_id, holding.heir)
        self._changed()
        return True

    def leave(self, client_id: int) -> bool:
        """False when the client is no member."""
        if self._members.pop(client_id, None) is None:
            return False
        self._reassign_all()
        return True

    def disband(self) -> list[int]:
        """Everybody leaves; the clients who have."""
        clients = list(self._members)
        self._members.clear()
        self._reassign_all()
        return clients

    def repartition(self, partitions_count: int) -> None:
        """The topic has got or lost partitions at its end."""
        for member in self._members.values():
            member.polling = {partition_id for partition_id in member.polling if partition_id < partitions_count}
            member.owing = {partition_id for partition_id in member.owing if partition_id < partitions_count}
        kept = self._holdings[:partitions_count]
        self._holdings = kept + [_Holding() for _ in range(partitions_count - len(kept))]
        self._reassign_all()

    # ------------------------------------------------------------------------------------------ polling and committing

    def partition_to_poll(self, client_id: int, wanted: int | None) -> int | None:
        """Where a member reads now: the partition it names if it is offered it, or the next of these in turn.

        None: there is none for it. Before the messages go out, `polled` has the last word.
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
        """Whether messages that a member has read may be handed out to it: not when the partition has changed hands
        since `partition_to_poll`, even if it has come back. If they may, they count as handed out."""
        member = self._members.get(client_id)
        if member is None or partition_id not in member.polling:
            return False
        self._holdings[partition_id].polled = last_offset
        member.source = partition_id
        return True

    def partition_to_commit(self, client_id: int, wanted: int | None) -> int | None:
        """Whose offset a member may change: the partition it names, or the one that its newest messages are from.

        A member that has got no messages yet means the partition that it would poll next. None: it owns no such one.
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
        """Whether what the owner wants to store is from before the partition was taken from it and came back, while the
        group has come further. A commit that is not ends its debt: from then on it may go back as far as it likes."""
        owing = self._members[client_id].owing
        if partition_id in owing and stored is not None and offset < stored:
            return True
        owing.discard(partition_id)
        return False

    def record_commit(self, partition_id: int, offset: int) -> None:
        """An offset of the group was stored: a promised partition moves when its owner has finished with it."""
        if partition_id >= len(self._holdings):
            return
        holding = self._holdings[partition_id]
        holding.committed = offset
        if holding.heir is not None and holding.is_drained(offset):
            self._move(partition_id, holding.heir)
            self._changed()

    def record_purge(self) -> None:
        """All messages and offsets are gone: what was handed out of them need not be committed any more."""
        for member in self._members.values():
            member.polling.clear()
            member.owing.clear()
            member.source = None
        moved = False
        for partition_id, holding in enumerate(self._holdings):
            holding.polled = None
            if holding.heir is not None:
                self._move(partition_id, holding.heir)
                moved = True
        if moved:
            self._changed()

    def reassign_overdue(self, promised_before: int) -> list[int]:
        """Partitions promised at or before a time move, committed or not; which ones."""
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

        They give from the end of their lists: what was only promised to them, then what they own. Nobody ever has fewer
        than who joined after him, so the larger shares are the first ones', and nobody but the newcomer lacks anything.
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
                    # An owner gets no more time when another one is to inherit.
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
        """Partition i to member i mod m; promises end. Who keeps a partition keeps what he was handed out of it."""
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
