"""Packets that are read and written in bulk are those that aioquic reads and writes one by one."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from aioquic._buffer import Buffer
from aioquic.buffer import encode_uint_var
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import QuicProtocolVersion, decode_packet_number
from aioquic.quic.stream import QuicStreamSender
from aioquic.tls import CipherSuite
from cryptography.exceptions import InvalidTag

from whippet.transports.quic_packets import (
    LOW_BITS,
    MASK_BYTES,
    CutOff,
    Opener,
    PacketWriter,
    decode_varint,
    encode_varint,
    first_byte,
    header_masks,
    restore_number,
)

CONNECTION_ID = bytes(range(8))
SIZE = 1_452
SUITES = (CipherSuite.AES_128_GCM_SHA256, CipherSuite.AES_256_GCM_SHA384, CipherSuite.CHACHA20_POLY1305_SHA256)


@pytest.fixture(params=SUITES, ids=lambda suite: suite.name)
def pair(request: pytest.FixtureRequest) -> CryptoPair:
    """Encrypts what it can decrypt."""
    made = CryptoPair()
    for context in (made.recv, made.send):
        context.setup(cipher_suite=request.param, secret=bytes(48), version=QuicProtocolVersion.VERSION_1)
    return made


def ignore(*_: Any) -> None:
    """Nobody waits for the delivery."""


def sender_of(data: bytes) -> QuicStreamSender:
    sender = QuicStreamSender(0, writable=True)
    sender.write(data, end_stream=True)
    return sender


@pytest.mark.parametrize("number", [0, 1, 0xFFFF, 0x1_0000, 0x1234_5678])
def test_aioquic_decrypts_what_is_written(pair: CryptoPair, number: int) -> None:
    writer = PacketWriter(pair.send, CONNECTION_ID, SIZE)
    writer.begin(number, first_byte(spin_bit=True, key_phase=0))
    writer.begin_packet(SIZE)
    writer.add(b"head", b"data", ignore, ())
    assert writer.end_packet(1.0)
    datagrams = writer.finish()
    header, payload, found = pair.decrypt_packet(datagrams[0], 1 + len(CONNECTION_ID), number)
    assert (header[0], header[1:9], payload, found) == (0x61, CONNECTION_ID, b"headdata", number)


def test_a_run_is_the_stream_in_full_datagrams(pair: CryptoPair) -> None:
    data = os.urandom(40_000)
    sender = sender_of(data)
    writer = PacketWriter(pair.send, CONNECTION_ID, SIZE)
    writer.begin(7, first_byte(spin_bit=False, key_phase=0))
    packets = writer.write_run(sender, 64, 0, len(data), 100, 1.0)
    datagrams = writer.finish()
    assert {len(datagram) for datagram in datagrams} == {SIZE}
    assert [packet.packet_number for packet in packets] == list(range(7, 7 + len(packets)))
    found = bytearray()
    for datagram, packet in zip(datagrams, packets, strict=True):
        _, payload, _ = pair.decrypt_packet(datagram, 9, packet.packet_number)
        frame = Buffer(data=payload)
        assert (frame.pull_uint_var(), frame.pull_uint_var(), frame.pull_uint_var()) == (0x0C, 64, len(found))
        found += frame.pull_bytes(len(payload) - frame.tell())
        assert packet.stop == len(found)
    assert data.startswith(found), "what would not fill a datagram is left"
    assert len(data) - len(found) < SIZE


def test_the_last_datagram_of_a_run_ends_the_stream_if_it_is_full(pair: CryptoPair) -> None:
    writer = PacketWriter(pair.send, CONNECTION_ID, SIZE)
    writer.begin(0, first_byte(spin_bit=False, key_phase=0))
    sender = sender_of(bytes(2 * writer.payload_bytes - 3 - 4))
    packets = writer.write_run(sender, 4, 0, sender._buffer_stop, 5, 1.0)
    assert [packet.fin for packet in packets] == [False, True]


def test_a_packet_that_is_empty_is_not_sent(pair: CryptoPair) -> None:
    writer = PacketWriter(pair.send, CONNECTION_ID, SIZE)
    writer.begin(0, 0x41)
    writer.begin_packet(SIZE)
    assert writer.end_packet(1.0) is None
    assert (writer.finish(), writer.packet_number) == ([], 0)


def test_a_short_packet_is_padded(pair: CryptoPair) -> None:
    writer = PacketWriter(pair.send, CONNECTION_ID, SIZE)
    writer.begin(0, 0x41)
    writer.begin_packet(SIZE)
    writer.start_frame(1)
    assert writer.end_packet(1.0)
    assert pair.decrypt_packet(writer.finish()[0], 9, 0)[1] == b"\x01\0"


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_what_aioquic_encrypts_is_opened(pair: CryptoPair, size: int) -> None:
    opener = Opener(pair.recv, CONNECTION_ID)
    numbers = [200 + each for each in range(5)]
    packets = []
    for number in numbers:
        truncated = number.to_bytes(4, "big")[-size:]
        packets.append(pair.encrypt_packet(bytes([0x40 | size - 1]) + CONNECTION_ID + truncated, b"frames", number))
    masks = header_masks(pair.recv, opener.samples(packets))
    for at, (number, packet) in enumerate(zip(numbers, packets, strict=True)):
        mask = masks[at * MASK_BYTES :][:MASK_BYTES]
        first = packet[0] ^ mask[0] & LOW_BITS
        assert opener.open(packet, first, mask, number) == (number, b"frames")
        with pytest.raises(InvalidTag):
            opener.open(packet[:-1] + bytes([packet[-1] ^ 1]), first, mask, number)


def test_samples_end_before_a_datagram_that_is_unusual_from_outside(pair: CryptoPair) -> None:
    opener = Opener(pair.recv, CONNECTION_ID)
    usual = b"\x40" + CONNECTION_ID + bytes(30)
    unusual = (b"", usual[:20], b"\xc0" + usual[1:], b"\0" + usual[1:], b"\x40" + bytes(38))
    for datagram in unusual:
        assert len(opener.samples([usual, usual, datagram, usual])) == 2


def test_numbers_are_restored_as_in_aioquic() -> None:
    choose = random.Random(1)
    for _ in range(2_000):
        expected, size = choose.randrange(1 << choose.randrange(1, 40)), choose.randrange(1, 5)
        truncated = choose.randrange(1 << 8 * size)
        assert restore_number(truncated, size, expected) == decode_packet_number(truncated, 8 * size, expected)


@pytest.mark.parametrize("value", [0, 63, 64, 16_383, 16_384, (1 << 30) - 1, 1 << 30, (1 << 62) - 1])
def test_integers_are_those_of_aioquic(value: int) -> None:
    octets = encode_varint(value)
    assert octets == encode_uint_var(value)
    assert decode_varint(b"." + octets + b".", 1) == (value, 1 + len(octets))
    for end in range(len(octets)):
        with pytest.raises(CutOff):
            decode_varint(octets[:end], 0)
