"""The stream and the topic that a request names, found before its handler is called."""

from __future__ import annotations

from typing import NamedTuple

from whippet.app.model.catalogue import Stream, Topic


class Target(NamedTuple):
    """None for what the request does not name."""

    found_stream: Stream | None = None
    found_topic: Topic | None = None

    @property
    def stream(self) -> Stream:
        assert self.found_stream is not None
        return self.found_stream

    @property
    def topic(self) -> Topic:
        assert self.found_topic is not None
        return self.found_topic

    @property
    def stream_id(self) -> int:
        return 0 if self.found_stream is None else self.found_stream.id

    @property
    def topic_id(self) -> int:
        return 0 if self.found_topic is None else self.found_topic.id
