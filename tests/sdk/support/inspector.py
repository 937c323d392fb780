"""A second opinion: a plain connection that sees what the Python SDK does not show, and shares no code with Whippet.

It uses the binary protocol of Iggy 0.6 to 0.8, which is the same for everything it requests.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

SECONDS_MAX = 30
POLL_SECONDS = 0.01

CREATE_TOKEN = 42
LOGIN = 38
POLL = 100
SEND = 101
GET_OFFSET = 120
GET_TOPIC = 300
GET_GROUP = 600
CONSUMER, GROUP = 1, 2


class Refused(Exception):
    """The status of an unsuccessful response."""


@dataclass(frozen=True)
class Topic:
    id: int
    partitions: int
    message_expiry: int
    compression: int
    max_size: int
    replication: int
    messages: int
    name: str
    messages_of: dict[int, int]
    """By partition."""


@dataclass(frozen=True)
class Message:
    """A message as the SDKs 0.7 and 0.8 send it."""

    id: int
    payload: bytes
    headers: bytes = b""
    offset: int = 0
    timestamp: int = 0
    origin: int = 0


class Inspector:
    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=SECONDS_MAX)
        self.ask(LOGIN, text8("iggy") + text8("iggy") + text32("") + text32(""))

    def close(self) -> None:
        self._socket.close()

    def ask(self, code: int, payload: bytes = b"") -> bytes:
        self._socket.sendall(struct.pack("<II", 4 + len(payload), code) + payload)
        status, length = struct.unpack("<II", self._exactly(8))
        if status:
            raise Refused(status)
        return self._exactly(length)

    def _exactly(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            part = self._socket.recv(size - len(received))
            assert part, "the server has closed the connection"
            received += part
        return received

    # --------------------------------------------------------------------------------------------------- what is there

    def topic(self, stream: str, topic: str) -> Topic:
        answer = self.ask(GET_TOPIC, named(stream) + named(topic))
        identity, _, partitions, expiry, compression, max_size, replication, _, messages = struct.unpack_from(
            "<IQIQBQBQQ", answer
        )
        name_length = answer[50]
        name = answer[51 : 51 + name_length].decode()
        records = struct.iter_unpack("<IQIQQQ", answer[51 + name_length :])
        messages_of = {record[0]: record[5] for record in records}
        assert len(messages_of) == partitions
        return Topic(identity, partitions, expiry, compression, max_size, replication, messages, name, messages_of)

    def members(self, stream: str, topic: str, group: str) -> list[list[int]]:
        """Returns the partitions of every member of a group, in the order in which they joined."""
        answer = self.ask(GET_GROUP, named(stream) + named(topic) + named(group))
        if not answer:
            return []
        count = struct.unpack_from("<I", answer, 8)[0]
        position = 13 + answer[12]
        owned = []
        for _ in range(count):
            size = struct.unpack_from("<I", answer, position + 4)[0]
            owned.append(list(struct.unpack_from(f"<{size}I", answer, position + 8)))
            position += 8 + 4 * size
        assert position == len(answer)
        return owned

    def group_offset(self, stream: str, topic: str, group: str, partition: int = 0) -> int | None:
        return self._offset(struct.pack("<B", GROUP) + named(group), stream, topic, partition)

    def consumer_offset(self, stream: str, topic: str, consumer: int = 0, partition: int = 0) -> int | None:
        return self._offset(struct.pack("<BBBI", CONSUMER, 1, 4, consumer), stream, topic, partition)

    def _offset(self, who: bytes, stream: str, topic: str, partition: int) -> int | None:
        answer = self.ask(GET_OFFSET, who + named(stream) + named(topic) + struct.pack("<BI", 1, partition))
        return struct.unpack("<IQQ", answer)[2] if answer else None

    # ------------------------------------------------------------------------------------------------------- messages

    def send(self, stream: str, topic: str, messages: list[Message], partition: int = 0) -> None:
        area, index = b"", b""
        for message in messages:
            header = struct.pack(
                "<Q16sQQQIIQ",
                0,
                message.id.to_bytes(16, "little"),
                0,
                0,
                message.origin,
                len(message.headers),
                len(message.payload),
                0,
            )
            area += header + message.payload + message.headers
            index += struct.pack("<IIQ", 0, len(area), 0)
        metadata = named(stream) + named(topic) + struct.pack("<BBII", 2, 4, partition, len(messages))
        self.ask(SEND, struct.pack("<I", len(metadata)) + metadata + index + area)

    def poll(self, stream: str, topic: str, partition: int = 0, count: int = 1000) -> list[Message]:
        """Polls from the start of a partition."""
        who = struct.pack("<BBBI", CONSUMER, 1, 4, 0)
        wanted = struct.pack("<BIBQIB", 1, partition, 3, 0, count, 0)
        answer = self.ask(POLL, who + named(stream) + named(topic) + wanted)
        position, found = 16, []
        while position < len(answer):
            _, identity, offset, timestamp, origin, headers, payload, reserved = struct.unpack_from(
                "<Q16sQQQIIQ", answer, position
            )
            assert reserved == 0
            body = position + 64
            position = body + payload + headers
            found.append(
                Message(
                    int.from_bytes(identity, "little"),
                    answer[body : body + payload],
                    answer[body + payload : position],
                    offset,
                    timestamp,
                    origin,
                )
            )
        assert len(found) == struct.unpack_from("<I", answer, 12)[0]
        return found

    def token(self, name: str) -> str:
        """Creates a personal access token that does not expire."""
        return self.ask(CREATE_TOKEN, text8(name) + struct.pack("<Q", 2**64 - 1))[1:].decode()


def until(reached: Callable[[], bool], what: str, seconds: float = SECONDS_MAX) -> None:
    """Checks again and again, until a deadline."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, f"not in {seconds} s: {what}"
        time.sleep(POLL_SECONDS)


def named(name: str) -> bytes:
    """Encodes an identifier."""
    return b"\x02" + text8(name)


def text8(text: str) -> bytes:
    return bytes([len(text.encode())]) + text.encode()


def text32(text: str) -> bytes:
    return struct.pack("<I", len(text.encode())) + text.encode()
