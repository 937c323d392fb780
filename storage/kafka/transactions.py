"""Transactions of one topic of one partition: all records of one are read, or none.

They have a transactional id. Whoever begins with the same id later ends what the one before has begun, and ends its
right to write: it gets `Fenced`.
"""

from __future__ import annotations

from collections.abc import Mapping

from aiokafka import errors
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from whippet.storage.errors import StorageError
from whippet.storage.kafka.cluster import TRANSACTION, Cluster, Coordinated, Refused
from whippet.storage.kafka.records import Producer, encode_documents

TIMEOUT_MS = 10_000
"""After this time brokers abort a transaction whose writer is gone."""
FENCED = (errors.ProducerFenced, errors.InvalidProducerEpoch, errors.TransactionCoordinatorFenced)


class Fenced(StorageError):
    """Somebody else has begun to write with the same id."""


class Undecided(StorageError):
    """It is not known whether a transaction was committed."""


class Transactions:
    """Begun by `begin`."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._coordinated = Coordinated(TRANSACTION, topic)
        self._producer = Producer(-1, -1)
        self._sequence = 0

    async def begin(self) -> None:
        """Ends what was begun with this id before, and takes it over."""
        found = await self._cluster.at_coordinator(
            self._coordinated,
            lambda: InitProducerIdRequest(self._topic, TIMEOUT_MS),
            lambda response: int(response.error_code),
        )
        self._producer = Producer(found.producer_id, found.producer_epoch)
        self._sequence = 0

    async def write(self, documents: Mapping[str, bytes | None]) -> None:
        """Writes a record for each, in one transaction. With any error but `Undecided`, nothing of it is ever read."""
        try:
            await self._write(documents)
        except Refused as refusal:
            if isinstance(refusal.reason, FENCED):
                raise Fenced(str(refusal)) from refusal
            raise

    async def _write(self, documents: Mapping[str, bytes | None]) -> None:
        identity, epoch = self._producer
        timeout_ms = max(int(self._cluster.options.timeout_s * 1000), 1)
        try:
            await self._cluster.at_coordinator(
                self._coordinated,
                lambda: AddPartitionsToTxnRequest(self._topic, identity, epoch, [(self._topic, [0])]),
                lambda found: int(found.errors[0][1][0][1]),
            )
            content = encode_documents(documents, self._producer, self._sequence)
            topics = [(self._topic, [(0, content)])]
            await self._cluster.at_leader(
                self._topic,
                0,
                lambda: ProduceRequest(self._topic, -1, timeout_ms, topics),
                lambda found: int(found.topics[0][1][0][1]),
            )
        except Refused as refusal:
            if not isinstance(refusal.reason, FENCED):
                await self.begin()
            raise
        except StorageError:
            # It may be read only if it is committed, and the next beginning aborts it.
            self._producer = Producer(-1, -1)
            raise
        self._sequence += len(documents)
        try:
            await self._cluster.at_coordinator(
                self._coordinated,
                lambda: EndTxnRequest(self._topic, identity, epoch, True),
                lambda found: int(found.error_code),
            )
        except Refused:
            raise
        except StorageError as error:
            raise Undecided(str(error)) from error

    @property
    def has_begun(self) -> bool:
        """False after an error that left a transaction open; `begin` aborts it."""
        return self._producer.id >= 0
