"""Sends of one batch that need nothing but an append: the effect of `registry.execute`, in fewer steps.

Nothing is refused here. A send that cannot be made at once, for whatever reason, is left to `execute`, which does it or
finds out what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from whippet.app.access.permissions import send_messages
from whippet.app.commands.messages import choose_partition
from whippet.app.commands.requests import Identifier, Partitioning, SendMessages
from whippet.app.errors import TABLE, CommandError, of_storage
from whippet.storage.errors import StorageError

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.sessions import Session
    from whippet.storage.batch import Checked, Writable

OnDone = Callable[[CommandError | None], None]


def begin(
    gateway: Gateway,
    session: Session,
    stream_name: Identifier,
    topic_name: Identifier,
    partitioning: Partitioning,
    batch: Writable,
    checked: Checked,
    on_done: OnDone,
) -> bool | None:
    """Returns True if the batch was appended and has the durability of its partition, and False if it was appended and
    `on_done` will be called: with None, or with the reason why it was not stored after all. None: nothing was done, and
    `execute` has to do it."""
    began = perf_counter()
    user = gateway.users.by_login(session.login)
    stream = gateway.streams.find(stream_name)
    if user is None or session.stale or stream is None or user.permissions is None:
        return None
    topic = stream.topics.find(topic_name)
    if (
        topic is None
        or not topic.partitions
        or not send_messages(user.permissions, stream.id, topic.id)
        or gateway.deduplication.bounds(topic.document.options) is not None
    ):
        return None
    turn = topic.turn
    partition = topic.partition(choose_partition(topic, partitioning))
    appending = None
    if partition is not None:
        waiting = _Waiting(gateway, session, began, on_done, checked.message_count, len(batch))
        try:
            appending = partition.append_at_once(batch, checked, waiting)
        except StorageError:
            appending = None
    if appending is None:
        topic.turn = turn
    elif appending:
        waiting.count()
    return appending


class _Waiting:
    """A send whose batch has not reached its durability yet. The partition takes it for a future; unlike one it is
    called at once, not in the next turn of the event loop."""

    __slots__ = ("_began", "_bytes", "_gateway", "_messages", "_on_done", "_session")

    def __init__(
        self, gateway: Gateway, session: Session, began: float, on_done: OnDone, messages: int, size: int
    ) -> None:
        self._gateway = gateway
        self._session = session
        self._began = began
        self._on_done = on_done
        self._messages = messages
        self._bytes = size

    def count(self) -> None:
        measurements = self._gateway.measurements
        measurements.messages_sent += self._messages
        measurements.bytes_sent += self._bytes
        measurements.commands[SendMessages][self._session.transport].add(perf_counter() - self._began)

    def done(self) -> bool:
        return False

    def set_result(self, _: None) -> None:
        self.count()
        self._on_done(None)

    def set_exception(self, failure: StorageError) -> None:
        refused = of_storage(failure)
        measurements = self._gateway.measurements
        measurements.refusals["send_messages", TABLE[refused.code].name] += 1
        measurements.commands[SendMessages][self._session.transport].add(perf_counter() - self._began)
        self._on_done(refused)
