"""Modes that decide when a consumer commits. A message counts as processed when the next one is requested."""

from __future__ import annotations

import msgspec


class AutoCommit(msgspec.Struct, frozen=True):
    """Created by the class methods; each states what a crash of the consumer costs. Processed messages are also
    committed on close, except with `off`."""

    on_poll: bool = False
    after_poll: bool = False
    every: int | None = None
    interval_s: float | None = None

    @classmethod
    def off(cls) -> AutoCommit:
        """The caller commits."""
        return cls()

    @classmethod
    def each_poll(cls) -> AutoCommit:
        """The server commits with each poll: no message comes twice, but unprocessed ones are lost."""
        return cls(on_poll=True)

    @classmethod
    def each_poll_processed(cls) -> AutoCommit:
        """Before the next poll: at most the messages of one poll come twice."""
        return cls(after_poll=True)

    @classmethod
    def each_message(cls) -> AutoCommit:
        """Before the next message is returned: only that one comes twice."""
        return cls.each(1)

    @classmethod
    def each(cls, messages: int) -> AutoCommit:
        """After this many processed messages of a partition: at most this many come twice."""
        if messages < 1:
            raise ValueError(f"a commit needs at least one message, not {messages}")
        return cls(every=messages)

    @classmethod
    def at_intervals(cls, seconds: float) -> AutoCommit:
        """When this much time has passed since the last commit; checked between messages and while waiting for some."""
        return cls(interval_s=seconds)

    @property
    def is_off(self) -> bool:
        return self == AutoCommit()
