"""The server itself: statistics, clients, the cluster, snapshots, limits."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from whippet.app.commands import requests, responses
from whippet.app.config.limits import Limit, limits
from whippet.app.model.sessions import Transport
from whippet.app.telemetry.activity import Latency, Point
from whippet.transports.http.forms import field_types
from whippet.transports.http.forms.field_types import U64, check_u64, f32
from whippet.transports.http.forms.responses import NO_STORE, TEXT, VIEW, HttpResponse
from whippet.transports.http.operation import Call

ANYWHERE = frozenset({"0.0.0.0", "::"})
COMPRESSIONS = {name: number for number, name in enumerate(("Stored", "Deflated", "Bzip2", "Zstd", "Lzma", "Xz"), 1)}
PARTS = {
    "FilesystemOverview": 1,
    "ProcessList": 2,
    "ResourceUsage": 3,
    "Test": 4,
    "ServerLogs": 5,
    "ServerConfig": 6,
    "All": 100,
}
ROLES = ("leader", "follower")
STATUSES = ("healthy", "starting", "stopping", "unreachable", "maintenance")


PERIODS = {"5m": 1, "1h": 12, "24h": 300}
"""The seconds that a point of a period covers."""


class CacheMetrics(msgspec.Struct, frozen=True):
    hits: int
    misses: int
    hit_ratio: float


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    process_id: int
    cpu_usage: float
    total_cpu_usage: float
    memory_usage: str
    total_memory: str
    available_memory: str
    run_time: int
    start_time: int
    read_bytes: str
    written_bytes: str
    messages_size_bytes: str
    streams_count: int
    topics_count: int
    partitions_count: int
    segments_count: int
    messages_count: int
    clients_count: int
    consumer_groups_count: int
    hostname: str
    os_name: str
    os_version: str
    kernel_version: str
    iggy_server_version: str
    iggy_server_semver: int
    cache_metrics: dict[str, CacheMetrics]
    threads_count: int
    free_disk_space: str
    total_disk_space: str
    open_files_count: int
    open_files_limit: int


class ActivityQuery(msgspec.Struct, frozen=True):
    """The points of 5 minutes cover a second each, those of an hour 12 seconds, those of a day 5 minutes."""

    period: Literal["5m", "1h", "24h"] = "5m"
    """How far back the points go."""
    since: U64 = 0
    """Only points that end after this, in us since 1970."""

    def __post_init__(self) -> None:
        check_u64(self.since)


class Activity(msgspec.Struct, frozen=True):
    at: int
    """Now, in us since 1970."""
    points: list[Point]
    """Oldest first."""
    latest: Point | None
    """The last second; null in the first one."""
    latencies: list[Latency]
    """Of the last minute, of what was executed at all."""
    connections: dict[str, int]
    """Open connections by transport."""


class GroupMembership(msgspec.Struct, frozen=True):
    stream_id: int
    topic_id: int
    group_id: int


class Client(msgspec.Struct, frozen=True):
    client_id: int
    user_id: int | None
    """Null before the client has logged in."""
    address: str
    transport: str
    consumer_groups_count: int


class ClientDetails(Client, frozen=True):
    consumer_groups: list[GroupMembership]


class Endpoints(msgspec.Struct, frozen=True):
    tcp: int
    quic: int
    http: int
    websocket: int


class Node(msgspec.Struct, frozen=True):
    name: str
    ip: str
    endpoints: Endpoints
    role: str
    status: str
    replica_id: int = 0
    """For clients since 0.12; there is one node."""


class ClusterMetadata(msgspec.Struct, frozen=True):
    name: str
    nodes: list[Node]


class NewSnapshot(msgspec.Struct, frozen=True):
    compression: Literal["Stored", "Deflated", "Bzip2", "Zstd", "Lzma", "Xz"]
    snapshot_types: Annotated[
        list[
            Literal["FilesystemOverview", "ProcessList", "ResourceUsage", "Test", "ServerLogs", "ServerConfig", "All"]
        ],
        Meta(extra_json_schema={"anyOf": [{"items": {"not": {"const": "All"}}}, {"maxItems": 1}]}),
    ]
    """`All`, or a selection."""


async def index(call: Call) -> HttpResponse:
    # SDKs and load balancers compare this text, which names the API, not the program. Browsers are redirected to /ui.
    return HttpResponse(HTTPStatus.OK, b"Iggy API", (TEXT, (b"vary", b"accept")))


async def ping(call: Call) -> HttpResponse:
    return HttpResponse(HTTPStatus.OK, b"pong", (TEXT,))


async def get_stats(call: Call) -> Stats:
    found: responses.Stats = await call.execute(requests.GetStats())
    other = ("server_", "classic_")
    named = {name: getattr(found, name) for name in found.__struct_fields__ if not name.startswith(other)}
    named |= {name: field_types.size_text(named[name]) for name in SIZES}
    named |= {name: f32(named[name]) for name in USAGES}
    return Stats(
        **named,
        iggy_server_version=found.server_version,
        iggy_server_semver=found.server_semver,
        cache_metrics={},
    )


USAGES = ("cpu_usage", "total_cpu_usage")
SIZES = (
    "memory_usage",
    "total_memory",
    "available_memory",
    "read_bytes",
    "written_bytes",
    "messages_size_bytes",
    "free_disk_space",
    "total_disk_space",
)


async def get_activity(call: Call) -> Activity:
    query: ActivityQuery = call.query
    found: responses.Activity = await call.execute(requests.GetActivity(PERIODS[query.period], query.since))
    return Activity(found.at, list(found.points), found.latest, list(found.latencies), found.connections)


async def get_clients(call: Call) -> list[Client]:
    return [Client(*_members(info)) for info in await call.execute(requests.GetClients())]


async def get_client(call: Call) -> ClientDetails | None:
    wanted = call.parameters["client"]
    found = await call.execute(requests.GetClient(wanted)) if wanted else None
    return None if found is None else details_of(found)


def details_of(info: responses.ClientInfo) -> ClientDetails:
    groups = [GroupMembership(each.stream_id, each.topic_id, each.group_id) for each in info.groups]
    return ClientDetails(*_members(info), consumer_groups=groups)


def _members(info: responses.ClientInfo) -> tuple[int, int | None, str, str, int]:
    transport = Transport(info.transport).name.lower()
    return info.client_id, info.user_id, info.address, transport, len(info.groups)


async def get_cluster_metadata(call: Call) -> ClusterMetadata:
    found: responses.ClusterMetadata = await call.execute(requests.GetClusterMetadata())
    return ClusterMetadata(found.name, [_node(call, node) for node in found.nodes])


def _node(call: Call, node: responses.ClusterNode) -> Node:
    """Replaces the address of a node that listens on all interfaces with the one that the client used."""
    ip = call.scope["server"][0] if node.ip in ANYWHERE else node.ip
    ports = Endpoints(node.tcp_port, node.quic_port, node.http_port, node.websocket_port)
    return Node(node.name, ip, ports, ROLES[node.role], STATUSES[node.status])


async def make_snapshot(call: Call) -> HttpResponse:
    body: NewSnapshot = call.body
    parts = tuple(PARTS[name] for name in body.snapshot_types)
    made: responses.Snapshot = await call.execute(requests.GetSnapshot(COMPRESSIONS[body.compression], parts))
    name = time.strftime("iggy_snapshot_%Y%m%d_%H%M%S.zip", time.gmtime()).encode()
    headers = (
        (b"content-type", b"application/zip"),
        (b"content-disposition", b'attachment; filename="' + name + b'"'),
        NO_STORE,
        VIEW,
    )
    return HttpResponse(HTTPStatus.OK, made.content, headers)


async def get_limits(call: Call) -> list[Limit]:
    return list(limits(call.api.gateway.config))
