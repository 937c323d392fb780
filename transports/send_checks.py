"""Checks sends of clients since 0.9, whose batches go to the log unchanged."""

from __future__ import annotations

import msgspec

from whippet.app.commands.registry import Destination, admit
from whippet.app.commands.requests import SendMessages
from whippet.app.errors import of_storage
from whippet.app.gateway import Gateway
from whippet.app.model.sessions import Session
from whippet.storage.batch import HEADER, Limits, check
from whippet.storage.batch_producer import remove_producer
from whippet.storage.errors import InvalidBatch
from whippet.transports import offload


def is_small(request: SendMessages) -> bool:
    """Whether the log itself can check the send on the event loop, as it is."""
    return not _names_producer(request) and not offload.is_large(*_size_of(request))


def _names_producer(request: SendMessages) -> bool:
    """Whether the batch itself has the producer in its header, which the log does not store."""
    return request.producer is not None and request.producer.counts_messages


def _size_of(request: SendMessages) -> tuple[int, int]:
    (batch,) = request.batches
    return len(batch), HEADER.unpack_from(batch)[6]


async def check_send(gateway: Gateway, session: Session, request: SendMessages, limits: Limits) -> SendMessages:
    """Prepares a send that is not small. A large batch is checked in a thread."""
    (batch,) = request.batches
    size, count = _size_of(request)
    is_large = offload.is_large(size, count)
    admit(gateway, session, SendMessages, Destination(request.stream, request.topic))
    if _names_producer(request):
        await offload.call(size, count, remove_producer, batch)
    if not is_large:
        return request
    try:
        found = await offload.call(size, count, check, batch, limits)
    except InvalidBatch as error:
        raise of_storage(error) from error
    return msgspec.structs.replace(request, checked=(found,))
