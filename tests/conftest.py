"""How tests are dealt to the processes that run them: a file stays together, and so does all that needs Spark.

A file's tests share servers, and everything with Spark shares one Java, which takes a gigabyte and ten seconds; what
takes longest begins first.
"""

from __future__ import annotations

from typing import Any

import pytest

WITH_SPARK = ("tests/pyspark_whippet/", "tests/deploy/", "tests/bench/test_spark_bench.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(WITH_SPARK))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 -- only where tests run in several processes

    class Dealing(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith(WITH_SPARK) else nodeid.partition("::")[0]

    return Dealing(config, log)
