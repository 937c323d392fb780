"""The stream in which the server keeps its audit log: created by the server itself, if it is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whippet.app.audit.audit_topic import NAME
from whippet.app.commands import requests, streams, topics
from whippet.app.commands.target import Target
from whippet.app.errors import Code, CommandError
from whippet.app.model.sessions import Session, Transport
from whippet.storage.engine import Partition

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway


async def partition(gateway: Gateway) -> Partition:
    """Returns where the entries go. Raises what creating it may raise."""
    found = _find(gateway)
    if found is None:
        async with gateway.catalogue_lock:
            await _create(gateway)
            found = _find(gateway)
    if found is None:
        raise CommandError(Code.PARTITION_NOT_FOUND, about=(0, NAME, gateway.config.audit.stream))
    return found


def _find(gateway: Gateway) -> Partition | None:
    stream = gateway.streams.find(gateway.config.audit.stream)
    topic = None if stream is None else stream.topics.find(NAME)
    return None if topic is None else topic.partition(0)


async def _create(gateway: Gateway) -> None:
    """Only what is missing: the server may have been killed after the first step."""
    name = gateway.config.audit.stream
    nobody = Session(Transport.TCP, "", gateway.clock(), lambda: None)
    if gateway.streams.find(name) is None:
        await streams.create_stream(gateway, nobody, requests.CreateStream(name), Target())
    stream = gateway.streams.find(name)
    if stream is not None and stream.topics.find(NAME) is None:
        await topics.create_topic(gateway, nobody, requests.CreateTopic(name, NAME, 1), Target(stream))
