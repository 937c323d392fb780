"""A topic to which a session may send, as long as nothing has changed on which that depends."""

from __future__ import annotations

from typing import Protocol

from whippet.app.model.catalogue import Directory, Stream, Topic
from whippet.app.model.identity import Login

Name = int | str


class Counted(Protocol):
    @property
    def changes(self) -> int: ...


class Route:
    """Found for a login and two names; `leads_to` says whether looking them up again would find the same."""

    __slots__ = (
        "_document",
        "_login",
        "_stream_name",
        "_streams",
        "_streams_version",
        "_topic_name",
        "_topics",
        "_topics_version",
        "_users",
        "_users_version",
        "topic",
    )

    def __init__(
        self,
        login: Login | None,
        names: tuple[Name, Name],
        users: Counted,
        streams: Directory[Stream],
        stream: Stream,
        topic: Topic,
    ) -> None:
        self.topic = topic
        self._login = login
        self._stream_name, self._topic_name = names
        self._users = users
        self._streams = streams
        self._topics = stream.topics
        self._document = topic.document
        self._users_version = users.changes
        self._streams_version = streams.changes
        self._topics_version = stream.topics.changes

    def leads_to(self, login: Login | None, stream: Name, topic: Name) -> bool:
        return (
            (login is self._login or login == self._login)
            and stream == self._stream_name
            and topic == self._topic_name
            and self._users.changes == self._users_version
            and self._streams.changes == self._streams_version
            and self._topics.changes == self._topics_version
            and self.topic.document is self._document
        )
