"""The small parts that requests and responses consist of: how each is read from a payload, and written.

A part is read by a function of a Reader and written by a function that returns bytes. Invalid bytes of a client raise a
CommandError with the number that the protocol specifies; no count or length is trusted before its bytes are known to be
there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from whippet.app.commands.requests import (
    Consumer,
    ConsumerKind,
    Identifier,
    Partitioning,
    PartitioningKind,
    Strategy,
    StrategyKind,
    UserStatus,
)
from whippet.app.errors import Code, CommandError
from whippet.storage.batch import Readable

U8_MAX = 2**8 - 1
U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1

_U8 = struct.Struct("<B")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_F32 = struct.Struct("<f")
_STRATEGY = struct.Struct("<BQ")
_PARTITION = struct.Struct("<BI")
_NUMERIC = struct.Struct("<BBI")
_KIND_AND_LENGTH = struct.Struct("<BB")

NUMERIC = 1
NAMED = 2

NO_PARTITION = bytes(5)


class Reader:
    """Reads a payload part by part, and never beyond its end."""

    __slots__ = ("_at", "_end", "_octets")

    def __init__(self, octets: memoryview) -> None:
        self._octets = octets
        self._at = 0
        self._end = len(octets)

    @property
    def at_end(self) -> bool:
        return self._at == self._end

    @property
    def left(self) -> int:
        return self._end - self._at

    @property
    def position(self) -> int:
        return self._at

    def take(self, size: int) -> memoryview:
        start = self._at
        if size > self._end - start:
            raise CommandError(
                Code.INVALID_COMMAND, f"{size} bytes are needed at byte {start} of the payload, which has {self._end}"
            )
        self._at = start + size
        return self._octets[start : self._at]

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        start = self._at
        if form.size > self._end - start:
            self.take(form.size)
        self._at = start + form.size
        return form.unpack_from(self._octets, start)

    def u8(self) -> int:
        start = self._at
        if start == self._end:
            self.take(1)
        self._at = start + 1
        return self._octets[start]

    def u16(self) -> int:
        return self.unpack(_U16)[0]  # type: ignore[no-any-return]

    def u32(self) -> int:
        return self.unpack(_U32)[0]  # type: ignore[no-any-return]

    def u64(self) -> int:
        return self.unpack(_U64)[0]  # type: ignore[no-any-return]

    def f32(self) -> float:
        return self.unpack(_F32)[0]  # type: ignore[no-any-return]

    def flag(self) -> bool:
        return self.u8() != 0

    def sized(self) -> memoryview:
        """Returns the bytes after a length of 32 bits."""
        size = self.u32()
        if size > self._end - self._at:
            raise CommandError(
                Code.INVALID_SIZE_BYTES, f"{size} bytes are announced at byte {self._at}, {self._end - self._at} follow"
            )
        return self.take(size)

    def rest(self) -> memoryview:
        return self.take(self._end - self._at)


# --------------------------------------------------------------------------------------------------------- plain values


def text(octets: memoryview) -> str:
    try:
        return str(octets, "utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(Code.INVALID_FORMAT, f"a text is not UTF-8: {error}") from None


def read_str8(reader: Reader) -> str:
    return text(reader.take(reader.u8()))


def read_name(reader: Reader) -> str:
    found = read_str8(reader)
    if not found:
        raise CommandError(Code.INVALID_FORMAT, "a name must not be empty")
    return found


def read_str32(reader: Reader) -> str:
    return text(reader.sized())


def pack(form: struct.Struct, *values: object) -> bytes:
    try:
        return form.pack(*values)
    except (struct.error, OverflowError) as error:
        raise CommandError(Code.INVALID_NUMBER_VALUE, f"{values} cannot be sent: {error}") from None


def u8(value: int) -> bytes:
    return pack(_U8, value)


def u16(value: int) -> bytes:
    return pack(_U16, value)


def u32(value: int) -> bytes:
    return pack(_U32, value)


def u64(value: int) -> bytes:
    return pack(_U64, value)


def f32(value: float) -> bytes:
    return pack(_F32, value)


def flag(value: bool) -> bytes:
    return b"\1" if value else b"\0"


def str8(value: str) -> bytes:
    octets = value.encode()
    if len(octets) > U8_MAX:
        raise CommandError(Code.INVALID_FORMAT, f"a text of {len(octets)} bytes is too long: {U8_MAX} can be sent")
    return _U8.pack(len(octets)) + octets


def name(value: str) -> bytes:
    if not value:
        raise CommandError(Code.INVALID_FORMAT, "a name must not be empty")
    return str8(value)


def str32(value: str) -> bytes:
    octets = value.encode()
    return u32(len(octets)) + octets


# -------------------------------------------------------------------------------------------------------- composites


def read_identifier(reader: Reader) -> Identifier:
    kind, length = reader.unpack(_KIND_AND_LENGTH)
    if kind == NUMERIC:
        if length != 4:
            raise CommandError(Code.INVALID_FORMAT, f"a numeric identifier has 4 bytes, this one {length}")
        return reader.u32()
    if kind != NAMED:
        raise CommandError(Code.INVALID_COMMAND, f"the kind {kind} of an identifier is unknown")
    if not length:
        raise CommandError(Code.INVALID_FORMAT, "the name of an identifier must not be empty")
    return text(reader.take(length))


def identifier(value: Identifier) -> bytes:
    if isinstance(value, int):
        return pack(_NUMERIC, NUMERIC, 4, value)
    return _U8.pack(NAMED) + name(value)


def _reads_consumer(kinds: Iterable[ConsumerKind]) -> Callable[[Reader], Consumer]:
    known = {int(kind): kind for kind in kinds}

    def read(reader: Reader) -> Consumer:
        number = reader.u8()
        kind = known.get(number)
        if kind is None:
            raise CommandError(Code.INVALID_COMMAND, f"the kind {number} of a consumer is unknown")
        return Consumer(kind, read_identifier(reader))

    return read


read_consumer = _reads_consumer((ConsumerKind.CONSUMER, ConsumerKind.GROUP))
"""External groups cannot poll, and clients before 0.12 do not have them."""
read_offset_owner = _reads_consumer(ConsumerKind)


def consumer(value: Consumer) -> bytes:
    return _U8.pack(value.kind) + identifier(value.id)


def read_partition(reader: Reader) -> int | None:
    """There is a number only if the flag is 1."""
    present, number = reader.unpack(_PARTITION)
    return number if present == 1 else None


def partition(value: int | None) -> bytes:
    return NO_PARTITION if value is None else pack(_PARTITION, 1, value)


_BALANCED = Partitioning(PartitioningKind.BALANCED)


def read_partitioning(reader: Reader) -> Partitioning:
    kind, length = reader.unpack(_KIND_AND_LENGTH)
    if kind == 2 and length == 4:
        return Partitioning(PartitioningKind.PARTITION_ID, reader.u32())
    if kind == 1 and length == 0:
        return _BALANCED
    if kind == 3 and length:
        return Partitioning(PartitioningKind.MESSAGES_KEY, key=bytes(reader.take(length)))
    raise CommandError(Code.INVALID_COMMAND, f"a partitioning of kind {kind} with {length} bytes is invalid")


def partitioning(value: Partitioning) -> bytes:
    match value.kind:
        case PartitioningKind.BALANCED:
            return b"\1\0"
        case PartitioningKind.PARTITION_ID:
            return pack(_NUMERIC, value.kind, 4, value.partition_id)
        case PartitioningKind.MESSAGES_KEY:
            if not 0 < len(value.key) <= U8_MAX:
                raise CommandError(Code.INVALID_KEY_VALUE_LENGTH)
            return _KIND_AND_LENGTH.pack(value.kind, len(value.key)) + value.key


STRATEGIES = {int(kind): kind for kind in StrategyKind}
VALUED_STRATEGIES = (StrategyKind.OFFSET, StrategyKind.TIMESTAMP)


def read_strategy(reader: Reader) -> Strategy:
    number, value = reader.unpack(_STRATEGY)
    kind = STRATEGIES.get(number)
    if kind is None:
        raise CommandError(Code.INVALID_COMMAND, f"the kind {number} of a polling strategy is unknown")
    return Strategy(kind, value if kind in VALUED_STRATEGIES else 0)


def strategy(value: Strategy) -> bytes:
    return pack(_STRATEGY, value.kind, value.value)


def read_status(reader: Reader) -> UserStatus:
    status = reader.u8()
    if status not in (1, 2):
        raise CommandError(Code.INVALID_COMMAND, f"the user status {status} is unknown")
    return UserStatus(status)


def read_compression(reader: Reader) -> int:
    algorithm = reader.u8()
    if algorithm not in (1, 2):
        raise CommandError(Code.INVALID_COMMAND, f"the compression algorithm {algorithm} is unknown")
    return algorithm


# --------------------------------------------------------------------------------------------------- parts, by name


class Part(NamedTuple):
    """How one part of a payload is read and written; the layouts of requests and responses consist of these."""

    read: Callable[[Reader], Any]
    write: Callable[[Any], Readable]


U8 = Part(Reader.u8, u8)
U16 = Part(Reader.u16, u16)
U32 = Part(Reader.u32, u32)
U64 = Part(Reader.u64, u64)
F32 = Part(Reader.f32, f32)
FLAG = Part(Reader.flag, flag)
NAME = Part(read_name, name)
STR8 = Part(read_str8, str8)
STR32 = Part(read_str32, str32)
IDENTIFIER = Part(read_identifier, identifier)
CONSUMER = Part(read_consumer, consumer)
OFFSET_OWNER = Part(read_offset_owner, consumer)
PARTITION = Part(read_partition, partition)
STRATEGY = Part(read_strategy, strategy)
STATUS = Part(read_status, u8)
COMPRESSION = Part(read_compression, u8)


def optional(part: Part) -> Part:
    """A part after a flag that tells whether it is present."""

    def read(reader: Reader) -> Any:
        return part.read(reader) if reader.flag() else None

    def write(value: Any) -> bytes:
        return b"\0" if value is None else b"".join((b"\1", part.write(value)))

    return Part(read, write)


def perhaps(part: Part, absent: object) -> Part:
    """A part at the end of a payload that older clients leave out."""
    return Part(lambda reader: absent if reader.at_end else part.read(reader), part.write)


def unless_none(part: Part, none: object) -> Part:
    """A required part: None is written as the closest value."""
    return Part(part.read, lambda value: part.write(none if value is None else value))


def counted(count: Part, part: Part) -> Part:
    """Equal parts after their count. A count that is too large is noticed when the bytes end."""

    def read(reader: Reader) -> tuple[Any, ...]:
        return tuple(part.read(reader) for _ in range(count.read(reader)))

    def write(values: tuple[Any, ...]) -> bytes:
        return b"".join((count.write(len(values)), *map(part.write, values)))

    return Part(read, write)


def followed(part: Part, value: object) -> Callable[[Part], Part]:
    """Adds a part after others that always has the same value when it is written, and is ignored when it is read."""

    def behind(before: Part) -> Part:
        def read(reader: Reader) -> Any:
            found = before.read(reader)
            part.read(reader)
            return found

        return Part(read, lambda found: b"".join((before.write(found), part.write(value))))

    return behind


def structure(kind: Callable[..., Any], /, **parts: Part) -> Part:
    """A value whose parts follow each other; the names are those of its fields."""
    reads = tuple((name, part.read) for name, part in parts.items())
    writes = tuple((name, part.write) for name, part in parts.items())

    def read(reader: Reader) -> Any:
        return kind(**{name: read(reader) for name, read in reads})

    def write(value: Any) -> bytes:
        return b"".join([write(getattr(value, name)) for name, write in writes])

    return Part(read, write)


def repeated(part: Part) -> Part:
    """Equal parts to the end of the payload."""

    def read(reader: Reader) -> tuple[Any, ...]:
        found = []
        while not reader.at_end:
            found.append(part.read(reader))
        return tuple(found)

    def write(values: tuple[Any, ...]) -> bytes:
        return b"".join(map(part.write, values))

    return Part(read, write)
