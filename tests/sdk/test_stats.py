"""Statistics: existing objects are counted and deleted ones are not, and the server reports its name and version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.sdk.support.program import Sdk
from tests.sdk.support.server import Server

MADE = {
    "streams_count": 1,
    "topics_count": 1,
    "partitions_count": 3,
    "segments_count": 3,
    "messages_count": 5,
    "consumer_groups_count": 1,
    "clients_count": 1,
}
OF_THE_PROCESS = (
    "process_id",
    "start_time",
    "total_memory",
    "hostname",
    "os_name",
    "os_version",
    "kernel_version",
    "iggy_server_version",
    "iggy_server_semver",
)


def test_the_statistics_count_what_exists(newest: Sdk, own_server: Callable[..., Server], tmp_path: Path) -> None:
    said = newest.finished("stats", address=own_server().address, name="counted").findings()
    before, during, after = said["before"], said["during"], said["after"]
    assert {name: during[name] - before[name] for name in MADE} == MADE
    assert during["messages_size_bytes"] >= before["messages_size_bytes"] + 500
    assert [after[name] for name in MADE if name != "clients_count"] == [0] * 6
    assert after["messages_size_bytes"] == 0
    for name in OF_THE_PROCESS:
        assert before[name], name
        assert before[name] == during[name] == after[name], name
    assert 0 < during["available_memory"] <= during["total_memory"]
    assert 0 < during["memory_usage"] < during["total_memory"]
    assert 0 < during["free_disk_space"] <= during["total_disk_space"]
    assert during["threads_count"] > 0
    assert during["read_bytes"] >= 0
    is_on_a_disk = not tmp_path.is_relative_to("/dev/shm")
    assert (during["written_bytes"] > 0) is is_on_a_disk
    assert 0 <= before["run_time"] <= after["run_time"]
    assert after["cpu_usage"] >= 0
    assert 0 <= after["total_cpu_usage"] <= 100
    major, minor, patch = (int(part) for part in before["iggy_server_version"].split("-")[0].split(".")[:3])
    assert before["iggy_server_semver"] == major * 1_000_000 + minor * 1000 + patch
