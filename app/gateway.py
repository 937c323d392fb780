"""The gateway: everything that commands work on, in one place. app/server.py creates it; every command receives it.

It has no behaviour of commands. It loads the catalogue from the store, and starts what app/housekeeping.py does at
intervals.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from whippet.app import housekeeping
from whippet.app.access.access_tokens import FOLDER as ACCESS_FOLDER
from whippet.app.access.known_logins import KnownLogins
from whippet.app.access.personal_tokens import PersonalTokens
from whippet.app.access.throttle import Throttle
from whippet.app.access.users import Users
from whippet.app.audit.trail import Trail
from whippet.app.catalogue_events import CatalogueEvents
from whippet.app.commands import audit_stream, command_log, groups, requests
from whippet.app.commands.deduplication import Deduplication
from whippet.app.config import Config
from whippet.app.errors import Code, CommandError
from whippet.app.model.catalogue import Directory, Stream, Topic
from whippet.app.model.groups import Group
from whippet.app.model.modern_replay import ReplayCaches
from whippet.app.model.resumable_sessions import ResumableSessions
from whippet.app.model.sessions import Session, Sessions, Transport
from whippet.app.model.topic_options import TopicDefaults
from whippet.app.quota import Limit, Quota
from whippet.app.rates import Rates
from whippet.app.readiness import Readiness, Stage
from whippet.app.returning_clients import ReturningClients
from whippet.app.telemetry.activity import Activity
from whippet.app.telemetry.log_files import LogFiles
from whippet.app.telemetry.machine import Machine
from whippet.app.telemetry.measurements import Measurements
from whippet.app.telemetry.otlp.exporter import Exporter
from whippet.app.telemetry.otlp.records import Attributes
from whippet.app.unique_numbers import UniqueNumbers
from whippet.app.version import version
from whippet.storage.documents import Stream as StoredStream
from whippet.storage.documents import Topic as StoredTopic
from whippet.storage.engine import Engine, Partition

if TYPE_CHECKING:
    from whippet.storage.archive.archiver import Archiver


TIMED = {requests.SendMessages: "send_messages", requests.PollMessages: "poll_messages"}
"""The commands whose latencies are kept for the dashboard."""


class Addresses:
    """The host and the ports that the listeners are bound to. The port is 0 for a transport that is disabled."""

    __slots__ = ("host", "http", "quic", "tcp", "websocket")

    def __init__(self) -> None:
        self.host = "127.0.0.1"
        self.tcp = self.http = self.quic = self.websocket = 0


class Gateway:
    def __init__(
        self, config: Config, store: Engine, users: Users, tokens: PersonalTokens, clock: Callable[[], int]
    ) -> None:
        self.config = config
        self.store = store
        self.streams = _load_catalogue(store)
        self.topic_defaults = TopicDefaults(config.system, store.options)
        self.users = users
        self.personal_tokens = tokens
        self.clock = clock
        self.sessions = Sessions()
        self.catalogue_events = CatalogueEvents(self)
        self.rates = Rates(self)
        self.returning_clients = ReturningClients(os.path.join(config.system.path, config.system.runtime.path), clock)
        self.addresses = Addresses()
        self.connections: dict[Transport, Callable[[], int]] = {}
        """Counts the open connections of each listener; set by app/server.py."""
        self.readiness = Readiness(Stage.READY)
        self.measurements = Measurements()
        self.activity = Activity(lambda: self.measurements, clock, time.monotonic, TIMED)
        self.machine = Machine()
        self.audit: Trail | None = None
        """Set by `open_audit`; None if nothing is recorded."""
        self.log_files: LogFiles | None = None
        """Set by app/server.py when the log is also written to files."""
        self.archiver: Archiver | None = None
        """Set by `use_archiver`."""
        self.config_text = ""
        """The effective configuration as text with secrets masked, for snapshots."""
        self.started_at = clock()
        self.deduplication = Deduplication(config.system)
        limits = config.system.limits
        self.replay_caches = ReplayCaches(
            limits.session_answers, int(limits.session_memory * 1_000_000), limits.connections, clock
        )
        self.exporter: Exporter | None = None
        """Set by `open_telemetry`; None if nothing is exported."""
        self.observes_commands = command_log.is_wanted()
        """Whether each command is logged or traced."""
        self.commands_logged = 0
        self.operations = 0
        """Requests of 0.9 clients since the start, registrations included. They number the sessions."""
        self.resumable_sessions = ResumableSessions(
            int(limits.session_memory * 1_000_000), limits.connections, clock, self._end_session
        )
        self.waiting_polls = Quota(
            "waiting polls",
            Limit("system.limits.waiting_polls", limits.waiting_polls),
            Limit("system.limits.waiting_polls_per_user", limits.waiting_polls_per_user),
            partial(CommandError, Code.TOO_MANY_WAITING_POLLS),
        )
        self.refused_protocols: dict[tuple[str, int], None] = {}
        """The last addresses and protocol versions of clients that were refused: each is logged once."""
        self.unique_numbers = UniqueNumbers(store.numbers_reserved, clock(), store.reserve_numbers)
        self.catalogue_lock = asyncio.Lock()
        """Held while the catalogue changes, so that a name is looked up and taken in one step."""
        self.snapshot_pool = ThreadPoolExecutor(1, thread_name_prefix="snapshot")
        """Any logged-in user may request a snapshot. They are created one after the other, on one thread, because the C
        library keeps for each thread the memory that compression needs."""
        self.known_logins: KnownLogins | None = None
        self._chores: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls, config: Config, store: Engine, environment: Mapping[str, str], *, default_root: bool = False
    ) -> Gateway:
        known = KnownLogins(os.path.join(store.options.path, ACCESS_FOLDER))
        throttle = Throttle(known=await asyncio.to_thread(known.read), on_known=lambda: known.keep(throttle.known))
        users = await Users.open(store, environment, default_root=default_root, clock=store.clock, throttle=throttle)
        tokens = PersonalTokens(store, config.personal_access_token.max_tokens_per_user, store.clock)
        await tokens.forget_void(users)
        gateway = cls(config, store, users, tokens, store.clock)
        gateway.known_logins = known
        return gateway

    def use_archiver(self, archiver: Archiver | None) -> None:
        """Called after `readiness` is set; None if nothing is archived."""
        self.archiver = archiver
        if archiver is not None:
            self.readiness.archive_problem = archiver.summary

    def open_audit(self) -> None:
        config = self.config.audit
        if not config.enabled:
            return
        self.audit = trail = Trail(config, self.config.system.path, self.clock)
        self.readiness.audit_problem = trail.problem
        trail.start(partial(audit_stream.partition, self) if config.stream else None)
        trail.record(command="start", outcome="done", user=None, request={"version": version()})

    def open_telemetry(self) -> None:
        config = self.config.telemetry
        if config.enabled:
            about: Attributes = {
                "service.version": version(),
                "service.instance.id": uuid.uuid4().hex,
                "host.name": platform.node(),
            }
            self.exporter = Exporter(config, about)
            self.exporter.start()
            self.observes_commands = True

    def start_chores(self) -> None:
        self._chores = housekeeping.start(self)

    @property
    def catalogue_version(self) -> int:
        """A number that is higher after every change over a binary protocol, and after a restart too if the clock goes
        forward: no server makes a million changes a second."""
        return self.started_at + self.operations

    def _end_session(self, session: Session) -> None:
        """Ends the session of a client that does not come back."""
        groups.leave_all(self, session)
        self.sessions.remove(session)

    def forget_ids(self, partitions: Sequence[Partition | None]) -> None:
        """Their messages are gone, so a message with one of these ids is not a duplicate."""
        self.deduplication.forget(partitions)

    async def close(self) -> None:
        """Stops the chores. The store is closed by its opener."""
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        self.snapshot_pool.shutdown(cancel_futures=True)
        self.users.close()
        if self.known_logins is not None:
            await self.known_logins.close()
        if self.audit is not None:
            self.audit.record(command="stop", outcome="done", user=None)
            await self.audit.stop()
        if self.exporter is not None:
            await asyncio.to_thread(self.exporter.stop)


def _load_catalogue(store: Engine) -> Directory[Stream]:
    return Directory([_stream(store, stream) for stream in store.streams.values()], store.reserved_ids())


def _stream(store: Engine, stored: StoredStream) -> Stream:
    stream_id = stored.document.id
    topics = [_topic(store, stream_id, topic) for topic in stored.topics.values()]
    return Stream(stored.document, Directory(topics, store.reserved_ids(stream_id)))


def _topic(store: Engine, stream_id: int, stored: StoredTopic) -> Topic:
    document = stored.document
    numbers = range(document.partitions_count)
    groups = [Group(group, document.partitions_count) for group in stored.groups.values()]
    return Topic(
        document,
        [store.partition(stream_id, document.id, number) for number in numbers],
        Directory(groups, store.reserved_ids(stream_id, document.id)),
    )
