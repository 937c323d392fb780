"""Streams: namespaces of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from whippet.app.commands import groups, requests, responses, topics
from whippet.app.commands.catalogue_info import stream_details, stream_info
from whippet.app.commands.target import Target
from whippet.app.errors import Code, CommandError
from whippet.app.model.catalogue import Directory, Stream, check_name
from whippet.app.model.options import OptionScope, refuse_any
from whippet.storage.documents import StreamDocument

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.sessions import Session


async def get_stream(
    gateway: Gateway, session: Session, request: requests.GetStream, target: Target
) -> responses.StreamDetails:
    await gateway.store.measure(target.stream.id)
    return stream_details(target.stream, gateway.topic_defaults)


async def get_streams(
    gateway: Gateway, session: Session, request: requests.GetStreams, target: Target
) -> tuple[responses.StreamInfo, ...]:
    await gateway.store.measure()
    return tuple(stream_info(stream) for stream in gateway.streams)


async def create_stream(
    gateway: Gateway, session: Session, request: requests.CreateStream, target: Target
) -> responses.StreamDetails:
    check_name(request.name, "stream")
    refuse_any(request.options, OptionScope.STREAM)
    _refuse_taken(gateway, request.name)
    limit = gateway.config.system.limits.streams
    if len(gateway.streams) >= limit:
        raise CommandError(
            Code.TOO_MANY_STREAMS,
            f"there are {len(gateway.streams)} streams, as many as are allowed (system.limits.streams = {limit})",
        )
    document = StreamDocument(id=gateway.streams.next_id(), name=request.name, created_at=gateway.clock())
    await gateway.store.create_stream(document)
    stream = Stream(document, Directory([]))
    gateway.streams.add(stream)
    return stream_details(stream, gateway.topic_defaults)


async def update_stream(gateway: Gateway, session: Session, request: requests.UpdateStream, target: Target) -> None:
    stream = target.stream
    check_name(request.name, "stream")
    refuse_any(request.options, OptionScope.STREAM)
    if request.name == stream.name:
        return
    _refuse_taken(gateway, request.name)
    old_name = stream.name
    document = msgspec.structs.replace(stream.document, name=request.name)
    await gateway.store.update_stream(document)
    stream.document = document
    gateway.streams.rename(stream, old_name)


async def delete_stream(gateway: Gateway, session: Session, request: requests.DeleteStream, target: Target) -> None:
    stream = target.stream
    for topic in stream.topics:
        groups.disband_all(gateway, stream.id, topic)
        gateway.forget_ids(topic.partitions)
    await gateway.users.forget_stream(stream.id)
    await gateway.store.remove_stream(stream.id)
    gateway.streams.remove(stream)


async def purge_stream(gateway: Gateway, session: Session, request: requests.PurgeStream, target: Target) -> None:
    epoch = await gateway.unique_numbers.next()
    for topic in target.stream.topics:
        await topics.purge(gateway, target.stream, topic, epoch)


def _refuse_taken(gateway: Gateway, name: str) -> None:
    if gateway.streams.find(name) is not None:
        raise CommandError(Code.STREAM_NAME_ALREADY_EXISTS, about=(name,))
