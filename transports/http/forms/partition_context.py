"""The context of a partition: clients since 0.12 receive it, and send it with messages and stored offsets.

If the partition was deleted and created again meanwhile, they have to look it up again.
"""

from __future__ import annotations

import msgspec

from whippet.app.commands import deferred_polls, requests
from whippet.transports.http.forms.field_types import U64, check_u64
from whippet.transports.http.operation import Call

NO_OWNER = 0
"""Partitions have no owners on a single node."""


class Context(msgspec.Struct, frozen=True):
    incarnation: U64
    """Unique to this partition, also among those that were deleted."""
    owner_generation: U64
    """Always 0 on a single node."""
    metadata_op: U64
    """The number of a change of the catalogue."""

    def __post_init__(self) -> None:
        check_u64(self.incarnation, self.owner_generation, self.metadata_op)


def check(call: Call, request: requests.SendMessages | requests.StoreConsumerOffset, context: Context | None) -> None:
    """Refuses a request of a client that knows another incarnation. Call it right before executing the request."""
    if context is not None:
        deferred_polls.check_incarnation(call.api.gateway, call.session.login, request, context.incarnation)
