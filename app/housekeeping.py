"""The chores of the gateway: what it does at intervals, without a request.

They apply retention, evict silent clients, remove expired tokens and sessions, reassign overdue partitions, and log
reports. Once after the start, message ids are read back for deduplication. Each chore is a task that sleeps for its
interval. An error in one round is logged, and the next round runs anyway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from whippet.app.certificate_expiry import DAY_SECONDS
from whippet.app.commands import groups
from whippet.app.commands.catalogue_info import held_back
from whippet.app.model.topic_options import UNLIMITED
from whippet.app.telemetry.activity import INTERVAL_SECONDS
from whippet.app.telemetry.machine import Machine
from whippet.storage.errors import StorageError
from whippet.storage.options import MIB

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.catalogue import Stream, Topic
    from whippet.storage.engine import Partition
    from whippet.storage.retention import HeldBack

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
        (True, INTERVAL_SECONDS, measure_activity),
        (config.telemetry.enabled, config.telemetry.metrics.interval, export_metrics),
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
        except Exception:  # noqa: BLE001 -- logged with its trace; the chore must survive it
            _log.exception("%s failed; the next round runs as usual", chore.__name__)


async def fill_deduplication(gateway: Gateway) -> None:
    """Runs once. Reads one topic after the other, because clients want to read from the same disk."""
    for topic in [topic for stream in gateway.streams for topic in stream.topics]:
        await gateway.deduplication.fill(topic, gateway.clock())


async def apply_retention(gateway: Gateway) -> None:
    """Deletes the segments that are beyond the limits of their topics. The limits are read each time, so a changed
    limit applies at once."""
    deletes_oldest = gateway.store.options.delete_oldest_segments
    for stream in gateway.streams:
        for topic in stream.topics:
            document = topic.document
            await _apply_local_retention(gateway, stream, topic)
            expiry = None if document.message_expiry in (0, UNLIMITED) else document.message_expiry
            size = None if document.max_topic_size in (0, UNLIMITED) or not deletes_oldest else document.max_topic_size
            before = {partition: partition.held_back for partition in topic.served}
            if expiry is None and size is None:
                for partition in before:
                    partition.held_back = None
                continue
            try:
                count = await gateway.store.retain(stream.id, topic.id, expiry_us=expiry, max_bytes=size)
            except (StorageError, KeyError) as error:
                # The topic may have been deleted meanwhile. Any other error is the disk's, and the next round tries
                # again.
                _log.warning("retention: cannot delete segments of %s/%s: %s", stream.name, topic.name, error)
                continue
            if count:
                _log.info("retention: deleted %d segments of %s/%s", count, stream.name, topic.name)
            _report_held_back(stream, topic, before, gateway.config.retention.respects_consumers)


def _report_held_back(
    stream: Stream, topic: Topic, before: Mapping[Partition, HeldBack | None], respected: str
) -> None:
    """Logs who holds back retention, once for each consumer that does."""
    for partition in topic.served:
        known, held = before.get(partition), partition.held_back
        if held is None or (known is not None and known.reader[:2] == held.reader[:2]):
            continue
        about = held_back(topic, partition)
        assert about is not None
        _log.warning(
            "retention: %s/%s, partition %d: %d segments (%d bytes) stay, because %s %r has read only up to offset %d "
            "(retention.respects_consumers = %s)",
            stream.name,
            topic.name,
            partition.place.partition,
            about.segments,
            about.bytes,
            about.consumer_kind,
            about.consumer,
            about.offset,
            respected,
        )


async def _apply_local_retention(gateway: Gateway, stream: Stream, topic: Topic) -> None:
    """Deletes what is in the archive and not wanted on this machine any more."""
    options, archiver = topic.document.options, gateway.archiver
    age, size = (
        None if chosen == UNLIMITED else chosen
        for chosen in (options.local_retention_time, options.local_retention_size)
    )
    if archiver is None or (age is None and size is None):
        return
    try:
        count = await archiver.retain_locally(stream.id, topic.id, time_us=age, max_bytes=size)
    except (StorageError, OSError, KeyError) as error:
        # As above.
        _log.warning("local retention: cannot delete segments of %s/%s: %s", stream.name, topic.name, error)
        return
    if count:
        _log.info("local retention: deleted %d archived segments of %s/%s here", count, stream.name, topic.name)


async def evict_silent_clients(gateway: Gateway) -> None:
    """Frees the partitions of group members that are gone. A client without a group holds nothing that others wait for,
    so it may be silent: 0.9 clients send no heartbeat until the server asks for one."""
    oldest = gateway.clock() - int(HEARTBEATS_MISSED * gateway.config.heartbeat.interval * 1_000_000)
    for session in gateway.sessions:
        if session.groups and session.last_heartbeat < oldest and not session.stale and not session.is_watched:
            _log.info("%s: evicted, because the client sent no heartbeat", session.address)
            session.stale = True
            groups.leave_all(gateway, session)
            gateway.sessions.remove(session)


async def remove_expired_tokens(gateway: Gateway) -> None:
    await gateway.personal_tokens.remove_expired()


async def report_certificates(gateway: Gateway) -> None:
    """Repeats the warnings of the start, which nobody reads in the log of a server that has run for months."""
    for problem in gateway.readiness.certificates.problems():
        _log.warning("%s", problem)


async def measure_activity(gateway: Gateway) -> None:
    gateway.activity.measure()


async def tidy_log_files(gateway: Gateway) -> None:
    if gateway.log_files is not None:
        await asyncio.to_thread(gateway.log_files.tidy)


async def export_metrics(gateway: Gateway) -> None:
    # It knows the table of commands, which knows the gateway.
    from whippet.app.telemetry import metrics  # noqa: PLC0415

    if gateway.exporter is not None:
        gateway.exporter.add_metrics(metrics.sample(gateway))


def system_reporter() -> Chore:
    # Its own reading, because CPU usage is measured since the previous one.
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
    """Forgets clients that did not come back. That is checked when others connect and disconnect, too."""
    gateway.replay_caches.expire()
    gateway.resumable_sessions.expire()


async def reassign_overdue_partitions(gateway: Gateway) -> None:
    groups.reassign_overdue(gateway, gateway.clock())
