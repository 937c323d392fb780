"""One broker for all tests of this folder that leave it running, and engines on it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.storage.kafka.support.broker import Broker, Opening
from whippet.storage.kafka.engine import KafkaEngine
from whippet.storage.kafka.options import KafkaOptions
from whippet.storage.options import StoreOptions
from whippet.storage.store import now_us

_numbers = itertools.count()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    running = Broker(tmp_path_factory.mktemp("kafka")).start()
    yield running
    running.kill()


@pytest.fixture
def prefix() -> str:
    """Topics of one test are not those of another one."""
    return f"t{next(_numbers)}."


@pytest.fixture
def opening(broker: Broker, prefix: str, tmp_path: Path) -> Opening:
    """Opens engines, each with a folder of its own, and closes them."""

    @contextlib.asynccontextmanager
    async def opened(*, timeout_s: float = 20.0, at: str | None = None, **options: Any) -> AsyncIterator[KafkaEngine]:
        kafka = KafkaOptions(
            servers=(at or broker.server,),
            prefix=prefix,
            replication_factor=1,
            min_insync_replicas=1,
            timeout_s=timeout_s,
        )
        folder = tmp_path / f"gateway{next(_numbers)}"
        engine = await KafkaEngine.open(StoreOptions(path=str(folder), **options), kafka, now_us)
        try:
            yield engine
        finally:
            await engine.close()

    return opened
