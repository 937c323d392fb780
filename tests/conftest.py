"""How tests are dealt to the processes that run them, how `async def` tests are run, and where compiled code is kept.

A file stays together, because its tests share servers. So does all that needs Spark, because it shares one Java, which
takes a gigabyte and ten seconds. What takes longest begins first.
"""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.running import run

pytest_plugins = ["tests.support.lake"]

# Tests start hundreds of interpreters, Spark's among them: where bytecode is not written, each compiles all it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(sys.prefix, "bytecode")))

WITH_SPARK = (
    "tests/pyspark_whippet/",
    "tests/pipelines/",
    "tests/deploy/",
    "tests/bench/test_spark_bench.py",
    "tests/packaging/test_wheel.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(WITH_SPARK))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 -- only where tests run in several processes

    class Dealing(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith(WITH_SPARK) else nodeid.partition("::")[0]

    return Dealing(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True
