"""What clients since 0.12 are told of a partition, and name when they send to it or store an offset in it: if it was
deleted and created again meanwhile, they have to look it up again.
"""

from __future__ import annotations

import msgspec

from whippet.app.commands import deferred_polls, requests
from whippet.transports.http.forms.field_types import U64, check_u64
from whippet.transports.http.operation import Call

NO_OWNER = 0
"""Partitions have no owners of their own here."""


class Context(msgspec.Struct, frozen=True):
    incarnation: U64
    """A number that no other partition of this server ever has."""
    owner_generation: U64
    """Always 0 here."""
    metadata_op: U64
    """The number of a change of the catalogue."""

    def __post_init__(self) -> None:
        check_u64(self.incarnation, self.owner_generation, self.metadata_op)


def check(call: Call, request: requests.SendMessages | requests.StoreConsumerOffset, context: Context | None) -> None:
    """Refuses a request whose client knows another incarnation. To be called right before it is carried out."""
    if context is not None:
        deferred_polls.check_incarnation(call.api.gateway, call.session.login, request, context.incarnation)
