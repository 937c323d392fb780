"""Requests to the brokers of a cluster: to the leader of a partition, the coordinator of a group, or the controller.

While a broker is unavailable, or is no longer the one to ask, a request is tried again until its deadline; then it
fails with `ClusterUnavailable`. A refusal is raised as `Refused`, whose `reason` is the error of Kafka.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from aiokafka import errors
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.protocol.transaction import InitProducerIdRequest
from aiokafka.structs import TopicPartition

from whippet.storage.errors import ClusterUnavailable, StorageError
from whippet.storage.kafka.options import KafkaOptions
from whippet.storage.kafka.records import Producer

_log = logging.getLogger(__name__)

BACKOFF_S = 0.01
BACKOFF_MAX_S = 1.0
NOTED_S = 0.4
"""Pauses from this length on are noted: after a change, it takes brokers a moment to agree about it."""
GROUP, TRANSACTION = CoordinationType.GROUP, CoordinationType.TRANSACTION
COORDINATORS_MAX = 10_000
"""So many are remembered."""
ORDINARY = 0
"""The connection to a broker for requests that it answers at once. Others have a number of their own: a broker executes
the requests of one connection one after the other."""

PERMANENT = (
    errors.AuthenticationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.IncompatibleBrokerVersion,
    errors.TransactionalIdAuthorizationFailed,
    errors.UnsupportedVersionError,
)
"""Errors of a request that no repetition changes."""

ErrorOf = Callable[[Any], "int | tuple[int, str | None]"]
"""Finds the error code in a response, and what the broker says about it, if it says anything."""


class Refused(StorageError):
    """A broker has refused a request, and would again."""

    reason: errors.KafkaError = errors.KafkaError()

    @classmethod
    def by(cls, what: str, reason: errors.KafkaError) -> Refused:
        refused = cls(f"{what}: Kafka refuses: {said(reason)}")
        refused.reason = reason
        return refused


def said(error: BaseException) -> str:
    """An error of Kafka in words."""
    name = type(error).__name__
    given = " ".join(str(each) for each in error.args)
    words = given or str(getattr(error, "description", "") or error)
    return f"{name}: {' '.join(words.split())}" if words and not words.startswith(name) else words or name


class Coordinated(NamedTuple):
    """What has a coordinator."""

    kind: int
    name: str

    def __str__(self) -> str:
        return f"{'group' if self.kind == GROUP else 'transactions of'} {self.name}"


class Cluster:
    """Created by `open`, which waits for the first broker; ended by `close`."""

    def __init__(self, options: KafkaOptions) -> None:
        self.options = options
        self.problem: str | None = None
        """What was wrong the last time that something had to be tried again; None if nothing is."""
        self._client = AIOKafkaClient(
            bootstrap_servers=list(options.servers),
            client_id=options.client_id,
            request_timeout_ms=max(int(options.timeout_s * 1000), 1),
            metadata_max_age_ms=60_000,
        )
        self._coordinators: dict[Coordinated, int] = {}
        self._free_links: list[int] = []
        self._links = ORDINARY

    @property
    def servers(self) -> str:
        return ", ".join(self.options.servers)

    @classmethod
    async def open(cls, options: KafkaOptions) -> Cluster:
        # What it logs is logged here, once; its lines would be repeated with each attempt.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        cluster = cls(options)
        pause = BACKOFF_S
        while True:
            try:
                await cluster._client.bootstrap()
            except (TimeoutError, errors.KafkaError, OSError) as error:
                cluster._note(f"none of the brokers {cluster.servers} can be reached: {said(error)}")
                await asyncio.sleep(pause)
                pause = min(2 * pause, BACKOFF_MAX_S)
            else:
                cluster._note(None)
                return cluster

    async def close(self) -> None:
        await self._client.close()

    @contextlib.asynccontextmanager
    async def own_link(self) -> AsyncIterator[int]:
        """A connection to any broker that nobody else uses meanwhile."""
        if self._free_links:
            link = self._free_links.pop()
        else:
            self._links += 1
            link = self._links
        try:
            yield link
        finally:
            self._free_links.append(link)

    def partitions_of(self, topic: str) -> int | None:
        """The number of partitions of a topic; None if it is not known, or does not exist."""
        found = self._client.cluster.partitions_for_topic(topic)
        return None if found is None else len(found)

    async def follow(self, *topics: str) -> None:
        """Learns where the partitions of these topics are, too, and keeps it up to date. Topics that do not exist are
        left out."""
        for topic in topics:
            self._client.add_topic(topic)
        await self._client.force_metadata_update()

    async def until_known(self, topic: str) -> None:
        """Returns when the brokers that are asked know a topic that was just created, or after a second."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                while self.partitions_of(topic) is None:
                    await self.follow(topic)
                    await asyncio.sleep(0.01)

    # -------------------------------------------------------------------------------------------------------- requests

    async def at_leader(
        self,
        topic: str,
        partition: int,
        request: Callable[[], Any],
        error_of: ErrorOf,
        *,
        link: int = ORDINARY,
        until: float | None = None,
    ) -> Any:
        """Sends a request to the leader of a partition. `until` is the time of the event loop at which it has
        failed."""

        async def leader() -> int:
            node = self._client.cluster.leader_for_partition(TopicPartition(topic, partition))
            if node is None:
                self._client.add_topic(topic)
                raise errors.UnknownTopicOrPartitionError(f"no broker has {topic}, partition {partition}")
            if node < 0:
                raise errors.LeaderNotAvailableError(f"{topic}, partition {partition} has no leader")
            return int(node)

        return await self._try(f"{topic}, partition {partition}", leader, request, error_of, link, until)

    async def at_coordinator(self, what: Coordinated, request: Callable[[], Any], error_of: ErrorOf) -> Any:
        """Sends a request to the coordinator of a group, or of a transactional id."""

        async def coordinator() -> int:
            node = self._coordinators.get(what)
            if node is None:
                node = await self._client.coordinator_lookup(what.kind, what.name)
                if self._client.cluster.broker_metadata(node) is None:
                    raise errors.StaleMetadata(f"broker {node} is not known yet")
                self._coordinators[what] = node
                while len(self._coordinators) > COORDINATORS_MAX:
                    del self._coordinators[next(iter(self._coordinators))]
            return int(node)

        def again() -> None:
            self._coordinators.pop(what, None)

        return await self._try(str(what), coordinator, request, error_of, again=again)

    async def anywhere(
        self, what: str, request: Callable[[], Any], error_of: ErrorOf, until: float | None = None
    ) -> Any:
        """Sends a request that any broker answers, or passes on to the controller."""

        async def some() -> int:
            node = self._client.get_random_node()
            if node is None:
                raise errors.NoBrokersAvailable("no broker is known")
            return int(node)

        return await self._try(what, some, request, error_of, until=until)

    async def new_producer(self, until: float | None = None) -> Producer:
        found = await self.anywhere(
            "a producer id",
            lambda: InitProducerIdRequest(None, 60_000),
            lambda response: int(response.error_code),
            until,
        )
        return Producer(found.producer_id, found.producer_epoch)

    async def _try(self, *given: Any, **named: Any) -> Any:
        # Requests of clients begin outside of any task, where a deadline cannot be set.
        return await asyncio.create_task(self._try_in_task(*given, **named))

    async def _try_in_task(
        self,
        what: str,
        node_of: Callable[[], Awaitable[int]],
        request: Callable[[], Any],
        error_of: ErrorOf,
        link: int = ORDINARY,
        until: float | None = None,
        again: Callable[[], object] = lambda: None,
    ) -> Any:
        now = asyncio.get_running_loop().time
        deadline = now() + self.options.timeout_s if until is None else until
        pause = BACKOFF_S
        while True:
            failure: Exception
            try:
                async with asyncio.timeout_at(deadline):
                    response = await self._client.send(await node_of(), request(), group=link)
                found = error_of(response)
                code, words = found if isinstance(found, tuple) else (found, None)
                if not code:
                    if self.problem is not None:
                        self._note(None)
                    return response
                failure = errors.for_code(code)(*([words] if words else []))
                if not getattr(failure, "retriable", False) and not isinstance(failure, errors.ConcurrentTransactions):
                    raise Refused.by(what, failure)
            except (TimeoutError, errors.KafkaError, OSError) as error:
                if isinstance(error, PERMANENT):
                    raise Refused.by(what, error) from error
                failure = error
            is_over = now() + pause >= deadline
            if is_over or pause >= NOTED_S:
                self._note(f"{what}: {said(failure)}")
            if is_over:
                raise ClusterUnavailable(
                    f"{what}: no answer from the brokers within {self.options.timeout_s:g} s: {said(failure)}"
                ) from failure
            again()
            with contextlib.suppress(TimeoutError, errors.KafkaError):
                await asyncio.wait_for(self._client.force_metadata_update(), pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, BACKOFF_MAX_S)

    def _note(self, problem: str | None) -> None:
        """Logs what is wrong when it begins, and when it is over."""
        if problem is None:
            if self.problem is not None:
                _log.info("Kafka answers again")
        elif self.problem is None:
            _log.warning("Kafka: %s; trying again", problem)
        self.problem = problem
