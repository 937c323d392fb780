"""What the gateway does unasked: retention, heartbeats, expired tokens, overdue hand-overs; and once, after its start,
reading back the message ids that repetitions are told by.

Each chore is a task that sleeps for its interval; an error in one round is logged, and the next round comes anyway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from whippet.app.certificate_expiry import DAY_SECONDS
from whippet.app.commands import groups
from whippet.app.model.topic_options import UNLIMITED
from whippet.app.telemetry.machine import Machine
from whippet.storage.errors import StorageError
from whippet.storage.options import MIB

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway

_log = logging.getLogger(__name__)

HEARTBEATS_MISSED = 1.2
"""A client is stale after this many intervals without a ping."""

Chore = Callable[["Gateway"], Awaitable[None]]


def start(gateway: Gateway) -> list[asyncio.Task[None]]:
    config = gateway.config
    log = config.system.logging
    cleaner, heartbeat = config.data_maintenance.messages, config.heartbeat
    token_cleaner, hand_over = config.personal_access_token.cleaner, config.consumer_group
    chores: list[tuple[bool, float, Chore]] = [
        (cleaner.cleaner_enabled, cleaner.interval, apply_retention),
        (heartbeat.enabled, heartbeat.interval, evict_silent_clients),
        (token_cleaner.enabled, token_cleaner.interval, remove_expired_tokens),
        (True, hand_over.rebalancing_check_interval, reassign_overdue_partitions),
        (True, max(config.system.limits.session_memory, 1.0), expire_sessions),
        (log.sysinfo_print_interval > 0, log.sysinfo_print_interval, system_reporter()),
        (log.file_enabled, log.rotation_check_interval, tidy_log_files),
        (True, DAY_SECONDS, report_certificates),
    ]
    return [
        asyncio.create_task(fill_deduplication(gateway), name=fill_deduplication.__name__),
        *(
            asyncio.create_task(_regularly(gateway, chore, interval), name=chore.__name__)
            for enabled, interval, chore in chores
            if enabled
        ),
    ]


async def _regularly(gateway: Gateway, chore: Chore, interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        try:
            await chore(gateway)
        except Exception:  # noqa: BLE001 -- logged with its trace; the chore must outlive it
            _log.exception("%s: this round ended early", chore.__name__)


async def fill_deduplication(gateway: Gateway) -> None:
    """Once. One topic after the other: they read the disk that others want to read."""
    for topic in [topic for stream in gateway.streams for topic in stream.topics]:
        await gateway.deduplication.fill(topic, gateway.clock())


async def apply_retention(gateway: Gateway) -> None:
    """Deletes what topics' limits allow to go. The limits are read anew each time, so a changed one counts at once."""
    deletes_oldest = gateway.store.options.delete_oldest_segments
    for stream in gateway.streams:
        for topic in stream.topics:
            document = topic.document
            expiry = None if document.message_expiry in (0, UNLIMITED) else document.message_expiry
            size = None if document.max_topic_size in (0, UNLIMITED) or not deletes_oldest else document.max_topic_size
            if expiry is None and size is None:
                continue
            try:
                count = await gateway.store.retain(stream.id, topic.id, expiry_us=expiry, max_bytes=size)
            except (StorageError, KeyError) as error:
                # A topic may be deleted while its turn comes; any other refusal is the disk's, and it comes again.
                _log.warning("retention of topic %r in stream %r: %s", topic.name, stream.name, error)
                continue
            if count:
                _log.info("retention: %d segments of topic %r in stream %r", count, topic.name, stream.name)


async def evict_silent_clients(gateway: Gateway) -> None:
    """Frees the partitions of members that are gone. A client without a group holds nothing that others wait for, so it
    may be silent: clients of 0.9 have no heartbeat until they are told to send one."""
    oldest = gateway.clock() - int(HEARTBEATS_MISSED * gateway.config.heartbeat.interval * 1_000_000)
    for session in gateway.sessions:
        if session.groups and session.last_heartbeat < oldest and not session.stale and not session.is_watched:
            _log.info("client %s is silent and evicted", session.address)
            session.stale = True
            groups.leave_all(gateway, session)
            gateway.sessions.remove(session)


async def remove_expired_tokens(gateway: Gateway) -> None:
    await gateway.personal_tokens.remove_expired()


async def report_certificates(gateway: Gateway) -> None:
    """Of a server that runs for months nobody reads the start of the log."""
    for problem in gateway.readiness.certificates.problems():
        _log.warning("%s", problem)


async def tidy_log_files(gateway: Gateway) -> None:
    if gateway.log_files is not None:
        await asyncio.to_thread(gateway.log_files.tidy)


def system_reporter() -> Chore:
    # Its own, because usage of the CPU is told since the last reading.
    machine = Machine()

    async def report_system(gateway: Gateway) -> None:
        reading = machine.read()
        connections = ", ".join(f"{count()} {kind.name.lower()}" for kind, count in gateway.connections.items())
        _log.info(
            "system: %.0f of %.0f MiB memory (%.0f available), CPU %.0f %% (machine %.0f %%), connections: %s",
            reading.memory_usage / MIB,
            reading.total_memory / MIB,
            reading.available_memory / MIB,
            reading.cpu_usage,
            reading.total_cpu_usage,
            connections or "none",
        )

    return report_system


async def expire_sessions(gateway: Gateway) -> None:
    """Of clients that do not come back; when others come and go that is looked after, too."""
    gateway.replay_caches.expire()
    gateway.resumable_sessions.expire()


async def reassign_overdue_partitions(gateway: Gateway) -> None:
    groups.reassign_overdue(gateway, gateway.clock())
