"""What `whippet doctor` says about open files, memory, and the settings of the kernel."""

from __future__ import annotations

import os
import resource

import msgspec
import pytest

from whippet.app.config import Config
from whippet.app.diagnosis import machine, processes
from whippet.app.diagnosis.finding import Finding, Status


def about(config: Config | None = None, server: int | None = None) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for each in machine.findings(config or Config(), server):
        found.setdefault(each.check, []).append(each)
    return found


def with_connections(count: int) -> Config:
    config = Config()
    limits = msgspec.structs.replace(config.system.limits, connections=count, open_files=16)
    http = msgspec.structs.replace(config.http, limits=msgspec.structs.replace(config.http.limits, connections=1))
    return msgspec.structs.replace(config, http=http, system=msgspec.structs.replace(config.system, limits=limits))


@pytest.mark.parametrize(("connections", "status"), [(1, Status.OK), (2**40, Status.WARN)])
def test_the_open_files_must_be_enough_for_the_limits(connections: int, status: Status) -> None:
    (found,) = about(with_connections(connections))["open files"]
    assert found.status is status
    assert ("LimitNOFILE" in found.advice) is (status is Status.WARN)


def test_the_limit_of_a_running_server_is_its_own() -> None:
    (found,) = about(with_connections(1), os.getpid())["open files"]
    assert f"process {os.getpid()}" in found.found
    assert processes.limit_of_open_files(os.getpid()) == resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def test_memory_must_be_enough_for_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for size, status in ((100 << 20, Status.FAIL), (1 << 30, Status.WARN), (1 << 40, Status.OK)):
        monkeypatch.setattr(machine, "_of_this_group", lambda size=size: size)
        monkeypatch.setattr(machine, "_of_this_machine", lambda: 1 << 40)
        assert [each.status for each in about()["memory"]] == [status]


def test_settings_of_the_kernel_that_harm_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "/proc/swaps": ["Filename", "/swap"],
        "/proc/sys/vm/swappiness": ["100"],
        "/proc/sys/vm/overcommit_memory": ["2"],
        "/proc/sys/vm/dirty_ratio": ["80"],
        "/proc/sys/net/core/somaxconn": ["128"],
        "/proc/sys/net/core/rmem_max": ["212992"],
        "/proc/sys/net/core/wmem_max": ["8388608"],
    }
    monkeypatch.setattr(machine, "lines_of", lambda path: settings.get(path, []))
    found = about()
    assert [each.status for each in found["vm settings"]] == [Status.WARN] * 3 + [Status.OK]
    advice = [each.advice for each in found["network settings"]]
    assert advice == ["sysctl -w net.core.somaxconn=4096", "sysctl -w net.core.rmem_max=4194304"]
