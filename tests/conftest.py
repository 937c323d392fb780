"""Distributes tests to processes, runs `async def` tests, and selects where bytecode is kept.

A file stays together, because its tests share servers. So do files whose tests share one Java process, which takes a
gigabyte and ten seconds. The slowest start first.
"""

from __future__ import annotations

import gc
import inspect
import logging
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support.running import run

pytest_plugins = ["tests.support.lake"]

# Tests start hundreds of interpreters, Spark's among them: where bytecode is not written, each compiles all it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(sys.prefix, "bytecode")))

# How long an example takes depends on what else the machine does.
settings.register_profile("whippet", deadline=None)
settings.load_profile("whippet")

SHARED = {
    "pyspark_whippet": ("tests/pyspark_whippet/",),
    "pipelines": ("tests/pipelines/",),
    "kafka": ("tests/storage/kafka/",),
}
"""Files that stay together, because they share a Java; the first that fits counts. Both together would
take longer than everything else does beside them."""

LONGEST = (
    "tests/pyspark_whippet/",
    "tests/pipelines/",
    "tests/packaging/test_wheel.py",
    "tests/deploy/",
    "tests/bench/",
    "tests/storage/kafka/",
    "tests/transports/test_fuzz.py",
    "tests/transports/http/test_schemathesis.py",
    "tests/sdk/",
    "tests/app/dashboard/",
    "tests/storage/test_faults.py",
    "tests/storage/test_model.py",
    "tests/storage/test_kill",
    "tests/transports/",
    "tests/app/test_server_process.py",
)
"""Files that begin first, so that no process works on a long file while the others have nothing left to do."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> int:
        return next((turn for turn, start in enumerate(LONGEST) if item.nodeid.startswith(start)), len(LONGEST))

    items.sort(key=turn)


def pytest_collection_finish() -> None:
    """Excludes what exists now from garbage collection: a million objects of pytest's, which every collection would
    examine in vain. Tests of leaks collect hundreds of times."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Undoes what a test has done to logging, by starting a server or a command in this process."""
    root, uvicorn = logging.getLogger(), logging.getLogger("uvicorn.error")
    handlers, levels = root.handlers[:], (root.level, uvicorn.level)
    result = yield
    root.handlers[:] = handlers
    for logger, level in zip((root, uvicorn), levels, strict=True):
        logger.setLevel(level)
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 -- only where tests run in several processes

    class Dealing(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            file: str = nodeid.partition("::")[0]
            return next((name for name, starts in SHARED.items() if file.startswith(starts)), file)

    # Else what has most tests would begin first, and these are the quickest.
    config.option.loadscopereorder = False
    return Dealing(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True
