"""Tools on a gateway in this process, without a protocol."""

from __future__ import annotations

import json
from typing import Any

from tests.app.access.support.world import Person
from whippet.app.mcp import tools
from whippet.app.mcp.work import EVERYTHING, Group, Limits, Work

LIMITS = Limits(items=100, response_bytes=1 << 16)


class Desk:
    def __init__(
        self,
        person: Person,
        *,
        allowed: frozenset[Group] = EVERYTHING,
        limits: Limits = LIMITS,
        keeps_settings: bool = True,
    ) -> None:
        self.work = Work(
            execute=person.execute,
            user="root",
            peer="somewhere",
            limits=limits,
            consumer_name="mcp",
            allowed=allowed,
            keeps_settings=keeps_settings,
        )
        self.longest = 0

    async def call(self, name: str, /, **arguments: Any) -> tuple[Any, bool]:
        answer = await tools.call(self.work, tools.BY_NAME[name], arguments)
        self.longest = max(self.longest, len(answer.text.encode()))
        return json.loads(answer.text), answer.is_error

    async def __call__(self, name: str, /, **arguments: Any) -> Any:
        result, is_error = await self.call(name, **arguments)
        assert not is_error, result
        return result

    async def refused(self, name: str, /, **arguments: Any) -> str:
        result, is_error = await self.call(name, **arguments)
        assert is_error, result
        return str(result["error"])
