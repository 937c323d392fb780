"""Commands about the server: ping, statistics, snapshots, connected clients, the cluster."""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING

from whippet.app import snapshot
from whippet.app.commands import requests, responses
from whippet.app.commands.target import Target
from whippet.app.errors import Code, CommandError
from whippet.app.model.sessions import Session
from whippet.app.version import IGGY_VERSION, semantic_number

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway


EVERYWHERE = ("0.0.0.0", "::")
"""A listener on these addresses listens on all addresses of the machine."""


async def ping(gateway: Gateway, session: Session, request: requests.Ping, target: Target) -> None:
    session.last_heartbeat = gateway.clock()


async def get_stats(gateway: Gateway, session: Session, request: requests.GetStats, target: Target) -> responses.Stats:
    await gateway.store.measure()
    topics = [topic for stream in gateway.streams for topic in stream.topics]
    partitions = [partition for topic in topics for partition in topic.served]
    disk = await asyncio.get_running_loop().run_in_executor(None, shutil.disk_usage, gateway.store.options.path)
    reading = gateway.machine.read()
    return responses.Stats(
        process_id=os.getpid(),
        cpu_usage=reading.cpu_usage,
        total_cpu_usage=reading.total_cpu_usage,
        memory_usage=reading.memory_usage,
        total_memory=reading.total_memory,
        available_memory=reading.available_memory,
        run_time=gateway.clock() - gateway.started_at,
        start_time=gateway.started_at,
        read_bytes=reading.read_bytes,
        written_bytes=reading.written_bytes,
        messages_size_bytes=sum(partition.size_bytes for partition in partitions),
        streams_count=len(gateway.streams),
        topics_count=len(topics),
        partitions_count=sum(len(topic.partitions) for topic in topics),
        segments_count=sum(partition.segments_count for partition in partitions),
        messages_count=sum(partition.messages_count for partition in partitions),
        clients_count=len(gateway.sessions),
        consumer_groups_count=sum(len(topic.groups) for topic in topics),
        hostname=gateway.machine.hostname,
        os_name=gateway.machine.os_name,
        os_version=gateway.machine.os_version,
        kernel_version=gateway.machine.kernel_version,
        server_version=IGGY_VERSION,
        server_semver=semantic_number(IGGY_VERSION),
        threads_count=reading.threads,
        free_disk_space=disk.free,
        total_disk_space=disk.total,
        classic_size_bytes=sum(partition.message_bytes for partition in partitions),
        open_files_count=reading.open_files,
        open_files_limit=reading.open_files_limit,
    )


async def get_activity(
    gateway: Gateway, session: Session, request: requests.GetActivity, target: Target
) -> responses.Activity:
    return responses.Activity(
        at=gateway.clock(),
        points=tuple(gateway.activity.points(request.step, request.since)),
        latest=gateway.activity.latest,
        latencies=tuple(gateway.activity.latencies()),
        connections={transport.name.lower(): count() for transport, count in gateway.connections.items()},
    )


async def get_snapshot(
    gateway: Gateway, session: Session, request: requests.GetSnapshot, target: Target
) -> responses.Snapshot:
    parts = snapshot.selected_parts(request.types)
    compression = snapshot.zip_method(request.compression)
    log_folder = None if gateway.log_files is None else gateway.log_files.folder
    server = snapshot.Server(gateway.store.options.path, log_folder, gateway.config_text)
    content = await asyncio.get_running_loop().run_in_executor(
        gateway.snapshot_pool, snapshot.make, parts, compression, server
    )
    return responses.Snapshot(content)


async def get_cluster_metadata(
    gateway: Gateway, session: Session, request: requests.GetClusterMetadata, target: Target
) -> responses.ClusterMetadata:
    """Describes one node, this one: with more, clients go looking for the leader."""
    cluster = gateway.config.cluster
    return responses.ClusterMetadata(cluster.name if cluster.enabled else "single-node", (own_node(gateway, session),))


def own_node(gateway: Gateway, session: Session) -> responses.ClusterNode:
    """Describes the listeners as they are bound. The address is the configured one of `cluster`, or the one at which
    the client has reached this server: clients that lose their connection go there."""
    cluster, where = gateway.config.cluster, gateway.addresses
    reached_at = session.reached_at or where.host if where.host in EVERYWHERE else where.host
    return responses.ClusterNode(
        name=cluster.node.current.name if cluster.enabled else "iggy-node",
        ip=cluster.node.current.ip if cluster.enabled else reached_at,
        tcp_port=where.tcp,
        quic_port=where.quic,
        http_port=where.http,
        websocket_port=where.websocket,
        role=0,
        status=0,
    )


async def get_me(gateway: Gateway, session: Session, request: requests.GetMe, target: Target) -> responses.ClientInfo:
    return _describe(gateway, session)


async def get_client(
    gateway: Gateway, session: Session, request: requests.GetClient, target: Target
) -> responses.ClientInfo | None:
    if not request.client_id:
        raise CommandError(Code.INVALID_CLIENT_ID)
    found = gateway.sessions.get(request.client_id)
    return None if found is None else _describe(gateway, found)


async def get_clients(
    gateway: Gateway, session: Session, request: requests.GetClients, target: Target
) -> tuple[responses.ClientInfo, ...]:
    return tuple(_describe(gateway, one) for one in gateway.sessions)


def _describe(gateway: Gateway, session: Session) -> responses.ClientInfo:
    user = gateway.users.by_login(session.login)
    memberships = tuple(responses.GroupMembership(*group) for group in sorted(session.groups))
    user_id = None if user is None else user.id
    return responses.ClientInfo(session.client_id, user_id, int(session.transport), session.address, memberships)
