"""The most recent ids in their order, in a hash table of some 30 bytes per id, made of arrays of numbers.

1. Ids are numbered in the order in which they are added. Number n is in a ring, at n modulo its length; the oldest are
   dropped first.
2. A table of slots maps an id to its number, counted from 1; 0 is an empty slot. The search for an id begins at the
   slot of its hash and continues slot by slot, up to an empty one.
3. An id that was dropped from the ring stays in the table, and is skipped, until the sweep: whenever ids are added, a
   stretch of the table from one empty slot to another is cleared and refilled with what is still in the ring. So no
   send waits for the whole table to be rebuilt, except when it grows.
4. The hash has a secret of this process: clients choose the ids, and could choose a thousand for one slot.

Ids are an array of two u64 each, low half first. For a few ids plain loops are used instead of numpy: a call of numpy
costs as much as ten steps of a loop. Pure state, for the event loop.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Ids: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"
Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Slots: TypeAlias = "np.ndarray[Any, np.dtype[np.uint32]]"

NOT_FOUND = -1
FEW = 12
"""Up to this many, loops are faster."""
RING_LEAST, RING_GROWTH = 64, 1.25
ROOMY, FULL = 0.36, 0.6
"""The part of a new table that the ids in the ring fill; and the part in use at which it is rebuilt."""
MARGIN = 256
"""Slots after the last one that a hash can name, for ids whose slot is taken."""
SWEEP = 3
"""Slots that are swept for each added id."""
SPAN_MAX = 2**31
"""Numbers in the table are relative to a base: a slot has 32 bits."""
BYTES_EACH = 16

_MASK = 2**64 - 1
_LOW, _HIGH, _LAST = (secrets.randbits(64) | 1 for _ in range(3))
_32 = np.uint64(32)


class RecentIds:
    """`first` and `end` are the numbers of the oldest and of the next id."""

    __slots__ = (
        *("_base", "_homes", "_owed", "_ring", "_ring_view", "_room", "_slots", "_slots_view", "_swept", "_taken"),
        "end",
        "first",
    )

    def __init__(self, room: Callable[[int], bool] = lambda more_bytes: True) -> None:
        """`room` is called before the ring grows; if it returns False, the oldest ids are dropped."""
        self._room = room
        self.first = self.end = self._base = 0
        self._take_ring(np.zeros((RING_LEAST, 2), np.uint64))
        self._make_table(RING_LEAST)

    def __len__(self) -> int:
        return self.end - self.first

    @property
    def size_bytes(self) -> int:
        return self._ring.nbytes + self._slots.nbytes

    def find(self, ids: Ids) -> Numbers:
        """Returns the number of each id, or NOT_FOUND."""
        if len(ids) <= FEW:
            return np.array([self._find_one(low, high, 0) for low, high in ids.tolist()], np.int64)
        found = np.full(len(ids), NOT_FOUND, np.int64)
        left = np.arange(len(ids))
        at = self._homes_of(ids)
        step = 0
        while left.size > FEW:
            entries = self._slots[at]
            taken = entries.nonzero()[0]
            left, at = left[taken], at[taken]
            numbers = entries[taken].astype(np.int64) + (self._base - 1)
            same = self._ring[numbers % len(self._ring)] == ids[left]
            there = same[:, 0] & same[:, 1] & (numbers >= self.first)
            found[left[there]] = numbers[there]
            others = (~there).nonzero()[0]
            left, at = left[others], at[others] + 1
            step += 1
        for place, (low, high) in zip(left.tolist(), ids[left].tolist(), strict=True):
            found[place] = self._find_one(low, high, step)
        return found

    def _find_one(self, low: int, high: int, step: int) -> int:
        slots, ring, length = self._slots_view, self._ring_view, len(self._ring)
        at = self._home_of(low, high) + step
        while entry := slots[at]:
            number = self._base + entry - 1
            place = number % length * 2
            if ring[place] == low and ring[place + 1] == high and number >= self.first:
                return number
            at += 1
        return NOT_FOUND

    def add(self, ids: Ids) -> int:
        """Adds ids that are new and different from each other. Returns the number of the first one."""
        count = len(ids)
        if self.end + count - self._base >= SPAN_MAX:
            self._base = self.first
            self._make_table(len(self))
        start = self.end
        self._make_room(count)
        length = len(self._ring)
        if count > length:
            # They do not all fit: those that the last ones would push out are not added.
            self.first = self.end = start + count - length
            ids = ids[-length:]
        self._put(ids)
        return start

    def forget_before(self, number: int) -> None:
        self.first = max(self.first, min(number, self.end))

    def strike_out(self, start: int, end: int) -> None:
        """Removes ids that were not written after all. Their numbers are not reused."""
        start = max(start, self.first)
        if start < end:
            self._ring[_numbers(start, end) % len(self._ring)] = 0

    # --------------------------------------------------------------------------------------------------------- the ring

    def _take_ring(self, ring: Ids) -> None:
        self._ring = ring
        self._ring_view = memoryview(ring.reshape(-1))  # type: ignore[arg-type]

    def _kept(self) -> Ids:
        """All ids in the ring, in their order."""
        return self._ring[_numbers(self.first, self.end) % len(self._ring)]

    def _put(self, ids: Ids) -> None:
        """Adds to the ring, which has room, and to the table."""
        start = self.end
        self.end += len(ids)
        self._ring[_numbers(start, self.end) % len(self._ring)] = ids
        if self._taken + len(ids) > FULL * self._homes:
            self._make_table(len(self))
        elif self._insert(ids, start):
            self._owed += SWEEP * len(ids)
            if self._owed >= MARGIN:
                self._sweep(self._owed)

    def _make_room(self, count: int) -> None:
        length, needed = len(self._ring), len(self) + count
        if needed <= length:
            return
        grown = max(needed, int(length * RING_GROWTH))
        if not self._room((grown - length) * BYTES_EACH):
            self.forget_before(self.end + count - length)
            return
        ring = np.zeros((grown, 2), np.uint64)
        ring[_numbers(self.first, self.end) % grown] = self._kept()
        self._take_ring(ring)

    # -------------------------------------------------------------------------------------------------------- the table

    def _home_of(self, low: int, high: int) -> int:
        mixed = low * _LOW + high * _HIGH & _MASK
        mixed = (mixed ^ mixed >> 32) * _LAST & _MASK
        return (mixed >> 32) * self._homes >> 32

    def _homes_of(self, ids: Ids) -> Numbers:
        mixed = ids[:, 0] * np.uint64(_LOW) + ids[:, 1] * np.uint64(_HIGH)
        mixed = (mixed ^ mixed >> _32) * np.uint64(_LAST)
        homes: Numbers = ((mixed >> _32) * np.uint64(self._homes) >> _32).astype(np.int64)
        return homes

    def _make_table(self, count: int) -> None:
        """Builds a table with room for `count` ids, and fills it from the ring."""
        homes = int(max(count, RING_LEAST) / ROOMY)
        while True:
            self._homes = homes
            self._slots: Slots = np.zeros(homes + MARGIN, np.uint32)
            self._slots_view = memoryview(self._slots)  # type: ignore[arg-type]
            self._taken = self._swept = self._owed = 0
            if self._fill():
                return
            homes = int(homes * RING_GROWTH)

    def _insert(self, ids: Ids, start: int) -> bool:
        """Returns False if the table had to be rebuilt for them."""
        inserted = self._place(ids, _numbers(start, start + len(ids)))
        if not inserted:
            self._make_table(len(self))
        return inserted

    def _fill(self) -> bool:
        numbers = _numbers(self.first, self.end)
        ids = self._ring[numbers % len(self._ring)]
        there = ids[:, 0] | ids[:, 1] != 0
        return self._place(ids[there], numbers[there])

    def _place(self, ids: Ids, numbers: Numbers) -> bool:
        """Returns False if the table's end has no slots for them; its last slot always stays empty."""
        slots = self._slots
        self._taken += len(ids)
        at = self._homes_of(ids)
        entries = (numbers - (self._base - 1)).astype(np.uint32)
        try:
            while at.size > FEW:
                free = (slots[at] == 0).nonzero()[0]
                slots[at[free]] = entries[free]
                # Of several ids that take a slot at once, the last one has it.
                others = (slots[at] != entries).nonzero()[0]
                at, entries = at[others] + 1, entries[others]
            view = self._slots_view
            for home, entry in zip(at.tolist(), entries.tolist(), strict=True):
                place = home
                while view[place]:
                    place += 1
                view[place] = entry
        except IndexError:
            return False
        return not slots[-1]

    def _sweep(self, count: int) -> None:
        """Sweeps the next slots of the table, up to an empty one: removes ids that are not in the ring."""
        self._owed = 0
        slots = self._slots
        start = self._swept
        end = self._empty_from(min(start + count, len(slots) - 1))
        self._swept = end if end < len(slots) - 1 else 0
        entries = slots[start:end]
        numbers = entries[entries.nonzero()].astype(np.int64) + (self._base - 1)
        kept = numbers[numbers >= self.first]
        if len(kept) == len(numbers):
            return
        entries[:] = 0
        self._taken -= len(numbers)
        ids = self._ring[kept % len(self._ring)]
        there = ids[:, 0] | ids[:, 1] != 0
        placed = self._place(ids[there], kept[there])
        assert placed, "they have had slots between these two empty ones before"

    def _empty_from(self, at: int) -> int:
        """The last slot of the table is always empty."""
        while True:
            empty = (self._slots[at : at + MARGIN] == 0).nonzero()[0]
            if empty.size:
                return at + int(empty[0])
            at += MARGIN


def _numbers(start: int, end: int) -> Numbers:
    return np.arange(start, end, dtype=np.int64)
