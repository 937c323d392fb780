"""Tools for the server itself: its statistics, its clients, and a snapshot for problem reports."""

from __future__ import annotations

import asyncio
import io
import time
import zipfile
from typing import Annotated, Literal

import msgspec

from whippet.app.cli.remote import rows
from whippet.app.cli.remote.system import COMPRESSIONS, SNAPSHOT_PARTS
from whippet.app.commands import requests
from whippet.app.mcp.bounds import Listing, skipping
from whippet.app.mcp.parameters import U32_MAX, Listed, Nothing, Parameters, Skip
from whippet.app.mcp.work import Work

Part = Literal["filesystem_overview", "process_list", "resource_usage", "test", "server_logs", "server_config", "all"]


class OfClient(Parameters, frozen=True):
    client_id: Annotated[int, msgspec.Meta(ge=0, le=U32_MAX)]


class NewSnapshot(Parameters, frozen=True):
    compression: Literal["stored", "deflated", "bzip2", "zstd", "lzma", "xz"] = "deflated"
    types: Annotated[tuple[Part, ...], msgspec.Meta(min_length=1, max_length=10)] = ("all",)
    skip: Skip = 0


class File(msgspec.Struct, frozen=True):
    """A file of a snapshot."""

    name: str
    size_bytes: int
    text: str
    """Its beginning, if it does not fit."""


async def ping(work: Work, given: Nothing) -> rows.Ping:
    began = time.perf_counter_ns()
    await work.execute(requests.Ping())
    return rows.Ping(1, (time.perf_counter_ns() - began) // 1000)


async def get_cluster_metadata(work: Work, given: Nothing) -> Listing:
    cluster = rows.cluster(await work.execute(requests.GetClusterMetadata()))
    return Listing("nodes", cluster.nodes, 0, skipping, cluster)


async def get_stats(work: Work, given: Nothing) -> rows.Stats:
    return rows.stats(await work.execute(requests.GetStats()))


async def get_me(work: Work, given: Nothing) -> rows.ClientDetails:
    return rows.client_details(await work.execute(requests.GetMe()))


async def get_clients(work: Work, given: Listed) -> Listing:
    found = await work.execute(requests.GetClients())
    return Listing("clients", [rows.client(each) for each in found], given.skip, skipping)


async def get_client(work: Work, given: OfClient) -> Listing:
    found = await work.found(requests.GetClient(given.client_id), f"the client {given.client_id}")
    client = rows.client_details(found)
    return Listing("consumer_groups", client.consumer_groups, 0, skipping, client)


async def snapshot(work: Work, given: NewSnapshot) -> Listing:
    """The archive is unpacked: a model cannot read a ZIP."""
    types = tuple(SNAPSHOT_PARTS[each] for each in given.types)
    made = await work.execute(requests.GetSnapshot(COMPRESSIONS[given.compression], types))
    each_bytes = max(work.limits.response_bytes // 8, 256)
    files = await asyncio.to_thread(_unpacked, made.content, each_bytes)
    return Listing("files", files, given.skip, skipping)


def _unpacked(content: bytes, bytes_max: int) -> list[File]:
    found = []
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for info in archive.infolist():
            with archive.open(info) as file:
                text = file.read(bytes_max).decode(errors="replace")
            found.append(File(info.filename, info.file_size, text))
    return found
