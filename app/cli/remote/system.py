"""`whippet ping`, `stats`, `me`, `client` and `snapshot`: the server and its clients."""

from __future__ import annotations

import datetime
import os
import time
from typing import Annotated, Literal

import typer

from whippet.app.cli.remote import rows
from whippet.app.cli.remote.failures import UsageFailure
from whippet.app.cli.remote.framework import Online, required

SNAPSHOT_PARTS = {
    "filesystem_overview": 1,
    "process_list": 2,
    "resource_usage": 3,
    "test": 4,
    "server_logs": 5,
    "server_config": 6,
    "all": 100,
}
COMPRESSIONS = {"stored": 1, "deflated": 2, "bzip2": 3, "zstd": 4, "lzma": 5, "xz": 6}

Times = Annotated[int, typer.Option("--count", "-c", min=1, help="how many times")]
ClientId = Annotated[int, typer.Argument(metavar="CLIENT_ID", min=0, help="its id, from `whippet client list`")]
SnapshotCompression = Annotated[
    Literal["stored", "deflated", "bzip2", "zstd", "lzma", "xz"],
    typer.Option("--compression", "-c", help="the method of the ZIP archive"),
]
SnapshotParts = Annotated[
    list[str] | None,
    typer.Option("--snapshot-types", "-s", metavar="PART", help=f"repeatable: {', '.join(SNAPSHOT_PARTS)} (all)"),
]
OutDir = Annotated[str, typer.Option("--out-dir", "-o", metavar="FOLDER", help="the folder for the archive")]


async def ping(on: Online, count: Times = 1) -> list[rows.Ping]:
    found = []
    for number in range(1, count + 1):
        began = time.perf_counter_ns()
        await on.client.ping()
        found.append(rows.Ping(number, (time.perf_counter_ns() - began) // 1000))
    return found


async def stats(on: Online) -> rows.Stats:
    return rows.stats(await on.client.get_stats())


async def cluster(on: Online) -> rows.Cluster:
    """A client of Iggy connects to the leader that it finds here."""
    return rows.cluster(await on.client.get_cluster_metadata())


async def me(on: Online) -> rows.ClientDetails:
    """Shows the connection of this command, as the server sees it."""
    return rows.client_details(await on.client.get_me())


async def get_client(on: Online, client_id: ClientId) -> rows.ClientDetails:
    found = await on.client.get_client(client_id)
    advice = "`whippet client list` shows those that there are"
    return rows.client_details(required(found, f"the client {client_id}", advice))


async def list_clients(on: Online) -> list[rows.Client]:
    return [rows.client(each) for each in await on.client.get_clients()]


async def snapshot(
    on: Online, compression: SnapshotCompression = "deflated", parts: SnapshotParts = None, out_dir: OutDir = "."
) -> rows.Snapshot:
    """The archive describes the server and its machine, for problem reports. It has no messages and no secrets."""
    wanted = [name for part in parts or ["all"] for name in part.replace(",", " ").split()]
    if not wanted:
        raise UsageFailure(f"--snapshot-types names no part: choose from {', '.join(SNAPSHOT_PARTS)}")
    for name in wanted:
        if name not in SNAPSHOT_PARTS:
            raise UsageFailure(f"there is no part {name!r} of a snapshot: choose from {', '.join(SNAPSHOT_PARTS)}")
    made = await on.client.get_snapshot(COMPRESSIONS[compression], [SNAPSHOT_PARTS[name] for name in wanted])
    now = datetime.datetime.now(datetime.UTC)
    path = os.path.join(out_dir, f"snapshot_{now:%Y%m%d_%H%M%S_%f}.zip")
    with open(path, "xb") as file:  # noqa: ASYNC230 -- nothing else is going on
        file.write(made.content)
    return rows.Snapshot(path, len(made.content))
