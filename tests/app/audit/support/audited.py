"""A gateway that keeps an audit log, and what is in it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from tests.app.access.support.world import World, world
from whippet.app.audit.trail import Trail
from whippet.app.config import Config
from whippet.app.config.schema import Audit


class Audited:
    def __init__(self, here: World, folder: Path) -> None:
        self.here = here
        self.folder = folder

    @property
    def trail(self) -> Trail:
        assert self.here.gateway.audit is not None
        return self.here.gateway.audit

    async def entries(self) -> list[dict[str, Any]]:
        """Without `start` and the logins of tests."""
        await self.trail.flush()
        lines = (self.folder / "audit" / "audit.log").read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if entry["command"] not in ("start", "login_user")]

    async def all_entries(self) -> list[dict[str, Any]]:
        await self.trail.flush()
        return [json.loads(line) for line in (self.folder / "audit" / "audit.log").read_text().splitlines()]


@contextlib.asynccontextmanager
async def audited_world(path: Path, audit: Audit | None = None, **options: Any) -> AsyncIterator[Audited]:
    settings = Config()
    system = msgspec.structs.replace(settings.system, path=str(path))
    settings = msgspec.structs.replace(settings, system=system, audit=audit or Audit())
    async with world(path, settings=settings, **options) as here:
        here.gateway.open_audit()
        try:
            yield Audited(here, path)
        finally:
            if here.gateway.audit is not None:
                await here.gateway.audit.stop()


async def until_topic(log: Audited) -> None:
    """Returns when the topic has every entry."""
    topic = log.trail._topic
    assert topic is not None
    await topic._idle.wait()
