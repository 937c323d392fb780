"""The result of an append, as a value."""

from __future__ import annotations

import msgspec

from whippet.storage.options import Durability


class Appended(msgspec.Struct, frozen=True):
    """The place of a batch, and the durability it had reached when the append returned."""

    base_offset: int
    messages: int
    timestamp: int
    durability: Durability
    repeated: bool = False
    """Whether this is the result of an earlier send, which the latest one repeats."""

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.messages
