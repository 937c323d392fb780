"""A pytest plugin for the processes that `make mutants` starts.

It limits the resources of a process whose code is wrong. In the run without a mutant it records which functions each
test enters and how long the test takes.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType

import pytest

MEMORY_BYTES = 4 << 30
FILE_BYTES = 1 << 30
"""A mutant that allocates or writes without end stops here, before the machine is full."""

ROOT = Path.cwd()
RECORD = os.environ.get("WHIPPET_MUTANTS_RECORD")
"""The file to which the run is recorded; without it nothing is recorded."""


def pytest_configure(config: pytest.Config) -> None:
    for limit, size in ((resource.RLIMIT_DATA, MEMORY_BYTES), (resource.RLIMIT_FSIZE, FILE_BYTES)):
        resource.setrlimit(limit, (size, resource.getrlimit(limit)[1]))
    if RECORD is not None:
        config.pluginmanager.register(Recorder(Path(RECORD)))


class Recorder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._entered: dict[int, CodeType] = {}
        self._tests: list[dict[str, object]] = []
        self._passed = True
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def _enter(self, frame: FrameType, event: str, argument: object) -> None:
        """Called for each call of a Python function. It returns no tracer for lines, which would cost more time."""
        code = frame.f_code
        self._entered[id(code)] = code

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._entered = {}
        self._passed = True
        before = _processor_seconds()
        answer = yield
        if self._passed:
            functions = {
                f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_firstlineno}"
                for code in list(self._entered.values())
                if code.co_filename.startswith(f"{ROOT}/")
            }
            seconds = _processor_seconds() - before
            self._tests.append({"id": item.nodeid, "seconds": seconds, "functions": sorted(functions)})
        return answer

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed = self._passed and report.outcome == "passed"

    def pytest_sessionfinish(self) -> None:
        sys.settrace(None)
        self._path.write_text(json.dumps(self._tests))


def _processor_seconds() -> float:
    """The processor time of this process and of the children it has waited for."""
    return sum(os.times()[:4])
