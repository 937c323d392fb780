"""Updates of topics that keep what they do not name, with any server.

In the protocol, 0 is an expiry or a size that is not given. Whippet then keeps the present one, an Iggy server sets
its default. So the topic is looked at afterwards, and what has changed by itself is set back. To repeat the present
values in any case would be wrong, too: a Whippet would take its own defaults for chosen ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from whippet.app.commands.requests import GetTopic, Request, UpdateTopic


class Settings(Protocol):
    @property
    def id(self) -> int: ...
    @property
    def message_expiry(self) -> int: ...
    @property
    def max_topic_size(self) -> int: ...


async def update(execute: Callable[[Request], Awaitable[Any]], request: UpdateTopic, present: Settings) -> None:
    """`present` is the topic before the update."""
    await execute(request)
    kept = {name: getattr(present, name) for name in ("message_expiry", "max_topic_size") if not getattr(request, name)}
    if not kept:
        return
    found = await execute(GetTopic(request.stream, present.id))
    if found is not None and any(getattr(found.info, name) != value for name, value in kept.items()):
        await execute(msgspec.structs.replace(request, topic=present.id, **kept))
