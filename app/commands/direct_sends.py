"""Sends of one batch that need nothing but an append: the effect of `registry.execute`, in fewer steps.

Nothing is refused here. A send that cannot be made at once, for whatever reason, is left to `execute`, which does it or
finds out what is wrong with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from whippet.app.access.permissions import send_messages
from whippet.app.commands.messages import choose_partition
from whippet.app.commands.registry import execute
from whippet.app.commands.requests import Identifier, Partitioning, SendMessages
from whippet.app.commands.responses import Sent
from whippet.app.errors import TABLE, CommandError, of_storage
from whippet.app.model.route import Route
from whippet.storage.batch import Checked, Writable
from whippet.storage.errors import StorageError
from whippet.storage.single_batch import Single

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.identity import Login
    from whippet.app.model.sessions import Session
    from whippet.storage.engine import Partition

OnDone = Callable[[CommandError | None], None]
Content = Single | tuple[Writable, Checked | None]
"""What is sent: a message within the limits, or a batch and what is known about it."""


async def send(gateway: Gateway, session: Session, request: SendMessages) -> Sent:
    """Returns the response to a send, or raises the refusal, as `execute` does."""
    sending = None
    if request.durability is None and request.producer is None and len(request.batches) == 1:
        content = request.batches[0], request.checked[0] if request.checked else None
        sending = begin(gateway, session, request.stream, request.topic, request.partitioning, content)
    sent: Sent = await (execute(gateway, session, request) if sending is None else sending.result())
    return sent


def begin(
    gateway: Gateway,
    session: Session,
    stream: Identifier,
    topic: Identifier,
    partitioning: Partitioning,
    content: Content,
) -> Sending | None:
    """Appends with the durability of the topic. None: nothing was done, and `execute` has to do it."""
    began = perf_counter()
    route = session.route
    if route is None or not route.leads_to(session.login, stream, topic):
        route = session.route = _find_route(gateway, session.login, stream, topic)
    if route is None or session.stale:
        return None
    found = route.topic
    turn = found.turn
    partition = found.partition(choose_partition(found, partitioning)) if found.partitions else None
    first = None
    if partition is not None:
        try:
            if isinstance(content, Single):
                size = content.size
                sending = Sending(gateway, session, began, partition, 1, size)
                first = partition.append_at_once(content, size, sending)
            else:
                batch, checked = content
                checked = checked or partition.check(batch)
                size = len(batch)
                sending = Sending(gateway, session, began, partition, checked.message_count, size)
                first = partition.append_at_once((batch, checked), size, sending)
        except StorageError:
            # The command meets it again, and counts it.
            first = None
    if first is None:
        found.turn = turn
        return None
    sending.first_offset = first
    return sending


def _find_route(gateway: Gateway, login: Login | None, stream_name: Identifier, topic_name: Identifier) -> Route | None:
    """Returns None if there is no such topic, if the user may not send to it, or if it takes more than an append, for
    instance a line in the log."""
    user, stream = gateway.users.by_login(login), gateway.streams.find(stream_name)
    if user is None or user.permissions is None or stream is None:
        return None
    if gateway.observes_commands or not gateway.store.appends_at_once:
        return None
    topic = stream.topics.find(topic_name)
    if (
        topic is None
        or not send_messages(user.permissions, stream.id, topic.id)
        or stream.name == gateway.config.audit.stream
        or gateway.deduplication.bounds(topic.document.options) is not None
    ):
        return None
    return Route(login, (stream_name, topic_name), gateway.users, gateway.streams, stream, topic)


class Sending:
    """A batch that was appended. Until it is done its durability is awaited: the partition takes this for a future.
    Unlike those of a future, its callback is called at once, not in the next turn of the event loop."""

    __slots__ = (
        "_began",
        "_gateway",
        "_messages",
        "_partition",
        "_session",
        "_size",
        "first_offset",
        "is_done",
        "on_done",
        "refused",
    )

    def __init__(
        self, gateway: Gateway, session: Session, began: float, partition: Partition, messages: int, size: int
    ) -> None:
        self.is_done = False
        self.refused: CommandError | None = None
        """Why the batch was not stored after all."""
        self.first_offset = 0
        self.on_done: OnDone | None = None
        """Set by whoever waits for it. It may neither raise nor append anything."""
        self._gateway = gateway
        self._session = session
        self._began = began
        self._partition = partition
        self._messages = messages
        self._size = size

    def done(self) -> bool:
        return self.is_done

    def set_result(self, _: None) -> None:
        measurements = self._gateway.measurements
        measurements.messages_sent += self._messages
        measurements.bytes_sent += self._size
        self._finish()

    def set_exception(self, failure: StorageError) -> None:
        self.refused = refused = of_storage(failure)
        self._gateway.measurements.refusals["send_messages", TABLE[refused.code].name] += 1
        self._finish()

    def _finish(self) -> None:
        self._gateway.measurements.commands[SendMessages][self._session.transport].add(perf_counter() - self._began)
        self.is_done = True
        if self.on_done is not None:
            self.on_done(self.refused)

    async def result(self) -> Sent:
        """Returns the response once it is done, or raises the refusal."""
        if not self.is_done:
            finished = asyncio.get_running_loop().create_future()
            self.on_done = lambda _: None if finished.done() else finished.set_result(None)
            await finished
        if self.refused is not None:
            raise self.refused
        return self.sent

    @property
    def sent(self) -> Sent:
        """The response, if it was not refused."""
        partition = self._partition
        place = partition.place
        return Sent(place.stream, place.topic, place.partition, self.first_offset, self._messages, partition.durability)
