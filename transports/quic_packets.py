"""Packets of an established connection, as they are read and written in bulk: keys, headers, and what is remembered.

aioquic protects packets one by one, copies each several times, and keeps eight fields of each that is in flight. The
header protection of AES is a block cipher without a mode, so one call computes the masks of many packets. Everything
here applies to packets with a short header only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from aioquic import tls
from aioquic._buffer import Buffer
from aioquic.quic.crypto import CryptoContext
from aioquic.quic.packet import (
    NON_ACK_ELICITING_FRAME_TYPES,
    NON_IN_FLIGHT_FRAME_TYPES,
    PACKET_FIXED_BIT,
    QuicFrameType,
    QuicPacketType,
)
from aioquic.quic.packet_builder import QuicPacketBuilderStop
from aioquic.quic.stream import QuicStreamSender

NUMBER_BYTES = 2
"""The length of packet numbers that are sent, as in aioquic."""
NUMBER_BYTES_MAX = 4
TAG_BYTES = MASK_BYTES = 16
SHORT_BITS, LOW_BITS = 0xC0, 0x1F
"""The bits of the first byte that distinguish the kinds of packets, and those that are protected."""
_BYTE = [bytes([value]) for value in range(256)]

Handler = tuple[Callable[..., None], Sequence[Any]]


class SentPacket:
    """A packet in flight, with what recovery needs of aioquic's QuicSentPacket."""

    __slots__ = ("delivery_handlers", "in_flight", "is_ack_eliciting", "packet_number", "sent_bytes", "sent_time")

    epoch: ClassVar = tls.Epoch.ONE_RTT
    packet_type: ClassVar = QuicPacketType.ONE_RTT
    is_crypto_packet: ClassVar = False

    def __init__(
        self,
        number: int,
        sent_time: float,
        sent_bytes: int,
        in_flight: bool,
        is_ack_eliciting: bool,
        delivery_handlers: list[Handler],
    ) -> None:
        self.packet_number = number
        self.sent_time = sent_time
        self.sent_bytes = sent_bytes
        self.in_flight = in_flight
        self.is_ack_eliciting = is_ack_eliciting
        self.delivery_handlers = delivery_handlers


class StreamPacket:
    """A packet in flight that holds nothing but a part of one stream."""

    __slots__ = ("fin", "packet_number", "sender", "sent_bytes", "sent_time", "start", "stop")

    epoch: ClassVar = tls.Epoch.ONE_RTT
    packet_type: ClassVar = QuicPacketType.ONE_RTT
    is_crypto_packet: ClassVar = False
    in_flight: ClassVar = True
    is_ack_eliciting: ClassVar = True

    def __init__(
        self, number: int, sent_time: float, sent_bytes: int, sender: QuicStreamSender, start: int, stop: int, fin: bool
    ) -> None:
        self.packet_number = number
        self.sent_time = sent_time
        self.sent_bytes = sent_bytes
        self.sender = sender
        self.start = start
        self.stop = stop
        self.fin = fin

    @property
    def delivery_handlers(self) -> list[Handler]:
        return [(self.sender.on_data_delivery, (self.start, self.stop, self.fin))]


def header_masks(context: CryptoContext, samples: list[bytes]) -> bytes:
    """Returns MASK_BYTES for each sample of as many bytes."""
    protection: Any = context.hp
    if protection._is_chacha20:
        return b"".join(protection._mask(sample).ljust(MASK_BYTES, b"\0") for sample in samples)
    masks: bytes = protection._encryptor.update(b"".join(samples))
    return masks


class Opener:
    """The key that packets are received with, for as long as it is in use."""

    __slots__ = ("_aead", "_decrypt", "_headers", "_iv", "connection_id", "number_at", "phase", "sample_at")

    def __init__(self, context: CryptoContext, connection_id: bytes) -> None:
        aead: Any = context.aead
        self._aead = aead
        self._decrypt: Callable[[bytes, bytes, bytes], bytes] = aead._aead.decrypt
        self._iv: int = aead._iv
        self.connection_id = connection_id
        self.phase = context.key_phase << 2
        self.number_at = 1 + len(connection_id)
        self.sample_at = self.number_at + NUMBER_BYTES_MAX
        self._headers = [_BYTE[first] + connection_id for first in range(256)]
        """What precedes the packet number, by the first byte."""

    def is_current(self, context: CryptoContext, connection_id: bytes) -> bool:
        return context.aead is self._aead and connection_id == self.connection_id

    def samples(self, datagrams: Sequence[bytes]) -> list[bytes]:
        """Returns the samples for header protection of the first datagrams, up to one that is unusual from outside."""
        samples, connection_id, start, end = [], self.connection_id, self.sample_at, self.sample_at + MASK_BYTES
        for datagram in datagrams:
            if len(datagram) < end or datagram[0] & SHORT_BITS != 0x40 or not datagram.startswith(connection_id, 1):
                break
            samples.append(datagram[start:end])
        return samples

    def open(self, datagram: bytes, first: int, mask: bytes, expected: int) -> tuple[int, bytes]:
        """Returns the number and the frames of a packet; `first` is its first byte without protection. Raises
        InvalidTag if it was made with another key."""
        number_at = self.number_at
        size = (first & 3) + 1
        payload_at = number_at + size
        protected = int.from_bytes(datagram[number_at:payload_at], "big")
        truncated = protected ^ int.from_bytes(mask[1 : 1 + size], "big")
        number = restore_number(truncated, size, expected)
        header = self._headers[first] + truncated.to_bytes(size, "big")
        return number, self._decrypt((self._iv ^ number).to_bytes(12, "big"), datagram[payload_at:], header)


def restore_number(truncated: int, size: int, expected: int) -> int:
    """Returns the packet number with these last bytes that is nearest to the expected one (RFC 9000, A.3)."""
    window = 1 << 8 * size
    highest = expected + (window >> 1)
    number = highest - ((highest - truncated) & (window - 1))
    return number if number >= 0 else number + window


class PacketWriter:
    """Writes packets with one key: the usual frames as bytes, others through the interface of aioquic's builder, and
    runs of packets with data of one stream at once. `begin` and `finish` enclose the packets that are sent together,
    `begin_packet` and `end_packet` each packet."""

    def __init__(self, context: CryptoContext, connection_id: bytes, datagram_bytes: int) -> None:
        aead: Any = context.aead
        self._aead = aead
        self._encrypt: Callable[[bytes, bytes, bytes], bytes] = aead._aead.encrypt
        self._iv: int = aead._iv
        self._context = context
        self._connection_id = connection_id
        self.datagram_bytes = datagram_bytes
        self._overhead = 1 + len(connection_id) + NUMBER_BYTES + TAG_BYTES
        self.payload_bytes = datagram_bytes - self._overhead
        """How many bytes of frames fit into a datagram."""
        self.packet_number = 0
        """The number of the next packet."""
        self._first = 0
        self._prefix = b""
        """What precedes the packet number, without header protection."""
        self._sealed: list[tuple[bytes, bytes]] = []
        """The numbers and the contents of encrypted packets, whose headers are not protected yet."""
        self._frames: list[bytes] = []
        self._buffer: Buffer | None = None
        """A frame that aioquic writes."""
        self.size = 0
        """Bytes of frames in the packet."""
        self.flight_room = 0
        """How many there may be of those that count as in flight."""
        self._handlers: list[Handler] = []
        self._in_flight = self._is_ack_eliciting = False

    def is_current(self, context: CryptoContext, connection_id: bytes, datagram_bytes: int) -> bool:
        return (
            context.aead is self._aead
            and connection_id == self._connection_id
            and datagram_bytes == self.datagram_bytes
        )

    def begin(self, number: int, first_byte: int) -> None:
        """Starts with this packet number; `first_byte` is the one of unprotected headers."""
        self.packet_number = number
        self._first = first_byte
        self._prefix = _BYTE[first_byte] + self._connection_id
        self._sealed = []

    # --------------------------------------------------------------------------------- one packet, frame by frame

    def begin_packet(self, flight_bytes: int) -> None:
        """Starts a packet that may add `flight_bytes` to those in flight."""
        self._frames, self._handlers = [], []
        self._buffer = None
        self.size = 0
        self._in_flight = self._is_ack_eliciting = False
        self.flight_room = min(self.payload_bytes, flight_bytes - self._overhead)

    def collect(self) -> None:
        """Takes over the frames that aioquic has written."""
        if self._buffer is not None:
            frames, self._buffer = self._buffer.data, None
            self._frames.append(frames)
            self.size += len(frames)

    @property
    def remaining_buffer_space(self) -> int:
        """How many bytes aioquic may still write to the frame that it has started."""
        return self.payload_bytes - self.size - (0 if self._buffer is None else self._buffer.tell())

    def add_ack(self, frame: bytes, handler: Callable[..., None], args: Sequence[Any]) -> None:
        """Writes an acknowledgement, for which there must be space."""
        self._frames.append(frame)
        self.size += len(frame)
        self._handlers.append((handler, args))

    def add(self, head: bytes, data: bytes, handler: Callable[..., None], args: Sequence[Any]) -> None:
        """Writes a frame that is acknowledged and counts as in flight, for which there must be space."""
        self._frames += (head, data)
        self.size += len(head) + len(data)
        self._handlers.append((handler, args))
        self._in_flight = self._is_ack_eliciting = True

    def start_frame(
        self, frame_type: int, capacity: int = 1, handler: Callable[..., None] | None = None, handler_args: Any = ()
    ) -> Buffer:
        """Starts a frame of at least `capacity` bytes, or raises QuicPacketBuilderStop before anything is written."""
        self.collect()
        is_in_flight = frame_type not in NON_IN_FLIGHT_FRAME_TYPES
        if (self.flight_room if is_in_flight else self.payload_bytes) - self.size < capacity:
            raise QuicPacketBuilderStop
        self._buffer = Buffer(capacity=self.payload_bytes - self.size)
        self._buffer.push_uint_var(frame_type)
        if is_in_flight:
            self._in_flight = True
        if frame_type not in NON_ACK_ELICITING_FRAME_TYPES:
            self._is_ack_eliciting = True
        if handler is not None:
            self._handlers.append((handler, handler_args))
        return self._buffer

    def end_packet(self, now: float) -> SentPacket | None:
        """Ends the packet and returns it; None if it is empty, and then nothing is sent."""
        self.collect()
        if not self.size:
            return None
        payload = b"".join(self._frames)
        if len(payload) < NUMBER_BYTES_MAX - NUMBER_BYTES:
            # Padding, so that there are enough bytes to protect the header with.
            payload = payload.ljust(NUMBER_BYTES_MAX - NUMBER_BYTES, b"\0")
        number = self.packet_number
        truncated = (number & 0xFFFF).to_bytes(NUMBER_BYTES, "big")
        nonce = (self._iv ^ number).to_bytes(12, "big")
        self._sealed.append((truncated, self._encrypt(nonce, payload, self._prefix + truncated)))
        self.packet_number = number + 1
        size = len(payload) + self._overhead
        return SentPacket(number, now, size, self._in_flight, self._is_ack_eliciting, self._handlers)

    # ------------------------------------------------------------------------------------------- whole runs

    def write_run(
        self, sender: QuicStreamSender, stream_id: int, start: int, stop: int, count_max: int, now: float
    ) -> list[StreamPacket]:
        """Writes data of a stream, from `start` up to `stop`, into at most `count_max` datagrams of full size; returns
        their packets. What would not fill a datagram is left."""
        packets = []
        base, end_at = sender._buffer_start, sender._buffer_fin
        payload_bytes, size = self.payload_bytes, self.datagram_bytes
        prefix, encrypt, iv, sealed = self._prefix, self._encrypt, self._iv, self._sealed
        number = self.packet_number
        stream = encode_varint(stream_id)
        middle, last = bytes([QuicFrameType.STREAM_BASE | 4]) + stream, bytes([QuicFrameType.STREAM_BASE | 5]) + stream
        with memoryview(sender._buffer) as data:
            for _ in range(count_max):
                offset = encode_varint(start)
                # Without a length, the frame takes all of the packet.
                room = payload_bytes - len(middle) - len(offset)
                following = start + room
                if following > stop:
                    break
                fin = following == end_at
                payload = b"".join((last if fin else middle, offset, data[start - base : following - base]))
                truncated = (number & 0xFFFF).to_bytes(NUMBER_BYTES, "big")
                nonce = (iv ^ number).to_bytes(12, "big")
                sealed.append((truncated, encrypt(nonce, payload, prefix + truncated)))
                packets.append(StreamPacket(number, now, size, sender, start, following, fin))
                start = following
                number += 1
        self.packet_number = number
        return packets

    def finish(self) -> list[bytes]:
        """Returns all datagrams, with protected headers."""
        sealed = self._sealed
        skipped = NUMBER_BYTES_MAX - NUMBER_BYTES
        masks = header_masks(self._context, [payload[skipped : skipped + MASK_BYTES] for _, payload in sealed])
        first, connection_id = self._first, self._connection_id
        datagrams = []
        at = 0
        for (high, low), payload in sealed:
            number = _BYTE[high ^ masks[at + 1]] + _BYTE[low ^ masks[at + 2]]
            datagrams.append(b"".join((_BYTE[first ^ masks[at] & LOW_BITS], connection_id, number, payload)))
            at += MASK_BYTES
        return datagrams


def first_byte(*, spin_bit: bool, key_phase: int) -> int:
    return PACKET_FIXED_BIT | spin_bit << 5 | key_phase << 2 | NUMBER_BYTES - 1


def encode_varint(value: int) -> bytes:
    if value < 1 << 6:
        return _BYTE[value]
    if value < 1 << 14:
        return (value | 1 << 14).to_bytes(2, "big")
    if value < 1 << 30:
        return (value | 2 << 30).to_bytes(4, "big")
    return (value | 3 << 62).to_bytes(8, "big")


class CutOff(ValueError):
    """The packet ends in the middle of a frame."""


def decode_varint(octets: bytes, at: int) -> tuple[int, int]:
    """Returns the integer at this position, and the position after it."""
    if at >= len(octets):
        raise CutOff
    first = octets[at]
    if first < 1 << 6:
        return first, at + 1
    size = 1 << (first >> 6)
    following = at + size
    if following > len(octets):
        raise CutOff
    return int.from_bytes(octets[at:following], "big") & (1 << (8 * size - 2)) - 1, following
