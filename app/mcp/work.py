"""What a tool works with: commands with the rights of one user, the permission groups, and the limits of a response."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from whippet.app.commands.requests import Consumer, ConsumerKind, Request
from whippet.app.errors import TABLE, Code, CommandError
from whippet.app.mcp.changes import Change


class Group(enum.StrEnum):
    """What a tool may do. The user's own permissions count besides."""

    READ = "read"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


READ_ONLY = frozenset({Group.READ})
EVERYTHING = frozenset(Group)


class Refused(Exception):
    """A tool that is refused before the server is asked; the name is that of the error."""

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(sentence)
        self.name = name


class Limits(msgspec.Struct, frozen=True):
    items: int
    """Entries of a list, such as messages."""
    response_bytes: int
    """Bytes of JSON in the result of a tool."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The side of the server for one assistant, or for one of its requests."""

    execute: Callable[[Request], Awaitable[Any]]
    """Executes a command with the rights of the user; raises CommandError."""
    user: str
    """The name for the log."""
    peer: str
    """The address of the assistant, for the log."""
    limits: Limits
    consumer_name: str
    """Offsets are stored for this consumer."""
    allowed: frozenset[Group] = READ_ONLY
    record: Callable[[Change], None] | None = None
    """Where a change is recorded besides the log: the audit log, if this is the server's process."""
    keeps_settings: bool = False
    """Whether an update of a topic keeps what it does not name; the protocol of clients cannot say so."""

    @property
    def consumer(self) -> Consumer:
        return Consumer(ConsumerKind.CONSUMER, self.consumer_name)

    def require(self, group: Group, what: str) -> None:
        if group not in self.allowed:
            if self.allowed == READ_ONLY:
                raise Refused("read_only", f"{what} changes the server, and this MCP server is read-only")
            raise Refused("not_allowed", f"{what} needs the permission {group!r} of this MCP server")

    async def found(self, request: Request, what: str) -> Any:
        """Executes a query for something that must exist."""
        response = await self.execute(request)
        if response is None:
            raise Refused(
                TABLE[Code.RESOURCE_NOT_FOUND].name, f"{what} does not exist, or the user has no access to it"
            )
        return response


def error_name(error: CommandError | Refused) -> str:
    return error.name if isinstance(error, Refused) else TABLE[error.code].name
