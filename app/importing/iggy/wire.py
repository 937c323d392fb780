"""The encodings inside the commands that Iggy records: a reader that moves through bytes.

The names of the methods are those of the protocol's description. Every method raises `Malformed` if the bytes end too
early or have no meaning.
"""

from __future__ import annotations

import struct

import msgspec

from whippet.app.access.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from whippet.app.model.options import Option, ValueKind

Identifier = int | str
"""A number, or a name."""

_NUMERIC, _NAMED = 1, 2


class Malformed(Exception):
    """The bytes of a command are not what its code promises."""


def of_stream(flags: list[bool], topics: dict[int, TopicPermissions]) -> StreamPermissions:
    """The permissions for a stream from their flags, which have the same order everywhere."""
    names = (name for name in StreamPermissions.__struct_fields__ if name != "topics")
    return msgspec.structs.replace(StreamPermissions(topics=topics), **dict(zip(names, flags, strict=True)))


class Reader:
    """Reads the fields of one command in their order."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._content) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise Malformed(f"{count} bytes are needed at byte {self._at} of the command, and {self.left} are left")
        self._at += count
        return self._content[self._at - count : self._at]

    def rest(self) -> bytes:
        return self.take(self.left)

    def end(self) -> None:
        """Called after the last field."""
        if self.left:
            raise Malformed(f"{self.left} bytes follow the last field")

    def u8(self) -> int:
        return self.take(1)[0]

    def u32(self) -> int:
        return int(struct.unpack("<I", self.take(4))[0])

    def u64(self) -> int:
        return int(struct.unpack("<Q", self.take(8))[0])

    def flag(self) -> bool:
        value = self.u8()
        if value > 1:
            raise Malformed(f"byte {self._at - 1} of the command is {value}, where 0 or 1 is needed")
        return bool(value)

    def text(self, length: int) -> str:
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise Malformed(f"the text that ends at byte {self._at} of the command is not UTF-8") from None

    def name(self) -> str:
        length = self.u8()
        if not length:
            raise Malformed("a name is empty")
        return self.text(length)

    def password_hash(self) -> str:
        return self.text(self.u8())

    def identifier(self) -> Identifier:
        kind, length = self.u8(), self.u8()
        if kind == _NUMERIC and length == 4:
            return self.u32()
        if kind == _NAMED and length:
            return self.text(length)
        raise Malformed(f"there is no identifier of kind {kind} with {length} bytes")

    def sized(self) -> Reader:
        """A part with its length in front."""
        return Reader(self.take(self.u32()))

    def optional_permissions(self) -> Permissions | None:
        return self.sized().permissions() if self.flag() else None

    def permissions(self) -> Permissions:
        everywhere = GlobalPermissions(*(self.flag() for _ in range(10)))
        streams: dict[int, StreamPermissions] = {}
        more = self.flag()
        while more:
            stream_id = self.u32()
            flags = [self.flag() for _ in range(6)]
            streams[stream_id] = of_stream(flags, self._topic_permissions())
            more = self._has_more()
        self.end()
        return Permissions(everywhere, streams)

    def _topic_permissions(self) -> dict[int, TopicPermissions]:
        topics: dict[int, TopicPermissions] = {}
        more = self.flag()
        while more:
            topic_id = self.u32()
            topics[topic_id] = TopicPermissions(*(self.flag() for _ in range(4)))
            more = self._has_more()
        return topics

    def _has_more(self) -> bool:
        """One SDK leaves out the last flags of the encoding."""
        return self.flag() if self.left else False

    def options(self) -> dict[str, Option]:
        """Settings up to the end, by key."""
        found: dict[str, Option] = {}
        while self.left:
            if self.u8() != ValueKind.STRING:
                raise Malformed("the key of an option is not a text")
            key = self.text(self.u32())
            kind = self.u8()
            value = self.take(self.u32())
            try:
                found[key] = Option(key, ValueKind(kind), value)
            except ValueError:
                raise Malformed(f"option {key!r} has a value of the unknown kind {kind}") from None
        return found
