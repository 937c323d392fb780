"""What a change of the catalogue finds and leaves, for the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from whippet.app.audit.notes import State, note
from whippet.app.catalogue_events import EVENTS
from whippet.app.commands import requests
from whippet.app.commands.target import Target
from whippet.app.model.catalogue import Stream, Topic

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway

INTERNAL = ("incarnations", "removing")
"""Fields of documents that mean nothing to people."""
DELETING = (requests.PurgeStream, requests.DeleteStream, requests.PurgeTopic, requests.DeleteTopic)


class Observed:
    """Created before the change; `note` is called after it, whether it succeeded or not, by the same task."""

    def __init__(self, gateway: Gateway, request: requests.Request, target: Target) -> None:
        self._gateway = gateway
        self._request = request
        self._target = target
        self._kind = EVENTS[type(request)][1]
        self._before, self._name = self._look()

    def note(self) -> None:
        after, name = self._look()
        note(self._kind, self._name or name, self._before, after)

    def _look(self) -> tuple[State | None, str]:
        """Returns the state of what the request is about, and how it is called; None if it does not exist."""
        request, target = self._request, self._target
        if isinstance(request, requests.CreateStream):
            return self._stream(self._gateway.streams.find(request.name))
        stream = self._gateway.streams.find(target.stream.id)
        if self._kind == "stream" or stream is None:
            return self._stream(stream)
        if isinstance(request, requests.CreateTopic):
            return self._topic(stream, stream.topics.find(request.name))
        topic = stream.topics.find(target.topic.id)
        if self._kind == "topic" or topic is None:
            return self._topic(stream, topic)
        if self._kind == "partitions":
            return {"partitions_count": len(topic.partitions)}, f"{stream.name}/{topic.name}"
        identifier = request.name if isinstance(request, requests.CreateConsumerGroup) else request.group  # type: ignore[attr-defined]
        group = topic.groups.find(identifier)
        if group is None:
            return None, ""
        return _document(group.document), f"{stream.name}/{topic.name}/{group.name}"

    def _stream(self, stream: Stream | None) -> tuple[State | None, str]:
        if stream is None:
            return None, ""
        return _document(stream.document) | self._contents(list(stream.topics)), stream.name

    def _topic(self, stream: Stream, topic: Topic | None) -> tuple[State | None, str]:
        if topic is None:
            return None, ""
        return _document(topic.document) | self._contents([topic]), f"{stream.name}/{topic.name}"

    def _contents(self, topics: list[Topic]) -> State:
        """Only for what is deleted: otherwise it differs whenever somebody sends meanwhile."""
        if not isinstance(self._request, DELETING):
            return {}
        partitions = [partition for topic in topics for partition in topic.served]
        messages = sum(partition.messages_count for partition in partitions)
        return {"messages": messages, "bytes": sum(partition.size_bytes for partition in partitions)}


def _document(document: msgspec.Struct) -> State:
    fields: dict[str, Any] = msgspec.to_builtins(document)
    if isinstance(options := fields.get("options"), dict):
        fields["options"] = {key: value for key, value in options.items() if value is not None}
    return {key: value for key, value in fields.items() if key not in INTERNAL}
