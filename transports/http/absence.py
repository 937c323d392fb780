"""Which part of a path is not there, where the command layer answers nothing and HTTP says what is missing."""

from __future__ import annotations

from whippet.app.errors import Code, CommandError
from whippet.transports.http.operation import Call


def refuse_topic(call: Call) -> None:
    """Unless stream and topic are there."""
    stream = call.api.gateway.streams.find(call.stream)
    if stream is None:
        raise CommandError(Code.STREAM_ID_NOT_FOUND, about=(call.stream,))
    if stream.topics.find(call.topic) is None:
        raise CommandError(Code.TOPIC_ID_NOT_FOUND, about=(call.topic, call.stream))
