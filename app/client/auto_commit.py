"""When a consumer stores how far it has come. "Processed" is a message after which the next one was asked for."""

from __future__ import annotations

import msgspec


class AutoCommit(msgspec.Struct, frozen=True):
    """Made by the class methods; each says what a crash of the consumer costs. What was processed is stored on close,
    too, except with `off`."""

    on_poll: bool = False
    after_poll: bool = False
    every: int | None = None
    interval_s: float | None = None

    @classmethod
    def off(cls) -> AutoCommit:
        """The caller commits by himself."""
        return cls()

    @classmethod
    def each_poll(cls) -> AutoCommit:
        """The server stores with each poll what it hands out: never twice, but what was not processed yet is lost."""
        return cls(on_poll=True)

    @classmethod
    def each_poll_processed(cls) -> AutoCommit:
        """Before the next poll: at most one poll's messages come twice."""
        return cls(after_poll=True)

    @classmethod
    def each_message(cls) -> AutoCommit:
        """Before the next message is handed out: only that one comes twice."""
        return cls.each(1)

    @classmethod
    def each(cls, messages: int) -> AutoCommit:
        """After so many processed messages of a partition: so many come twice."""
        if messages < 1:
            raise ValueError(f"a commit is after at least one message, not {messages}")
        return cls(every=messages)

    @classmethod
    def at_intervals(cls, seconds: float) -> AutoCommit:
        """When so much time has gone by since the last one; looked at between messages and while waiting for some."""
        return cls(interval_s=seconds)

    @property
    def is_off(self) -> bool:
        return self == AutoCommit()
