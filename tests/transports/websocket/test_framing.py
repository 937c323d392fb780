"""Frames as bytes: anything that a client sends, split in any way; and what it receives, as the websockets package
reads it.

The violations are those of Autobahn's suite, case by case where one is named.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Frame as TheirFrame
from websockets.protocol import OPEN
from websockets.uri import parse_uri

from tests.transports.websocket.support.talking import frame
from whippet.transports.websocket import framing
from whippet.transports.websocket.framing import Incoming, Violation

Messages = list[tuple[int, bytes]]


def heard(pieces: list[bytes], **limits: object) -> Messages:
    """The content of these reads: whole messages and control frames."""
    incoming = Incoming(**limits)  # type: ignore[arg-type]
    found: Messages = []
    parts: list[bytes] = []
    for octets in pieces:
        for opcode, content, is_last in incoming.pieces(memoryview(bytearray(octets))):
            if opcode >= framing.CLOSE:
                assert is_last
                found.append((opcode, bytes(content)))
                continue
            parts.append(bytes(content))
            if is_last:
                found.append((opcode, b"".join(parts)))
                parts = []
    assert not parts or incoming.left or incoming._message
    return found


def cut(octets: bytes, *places: int) -> list[bytes]:
    edges = [0, *sorted(places), len(octets)]
    return [octets[start:end] for start, end in itertools.pairwise(edges)]


control = st.tuples(st.sampled_from([8, 9, 10]), st.binary(max_size=125))
fragments = st.tuples(st.sampled_from([1, 2]), st.lists(st.binary(max_size=300), min_size=1, max_size=4))


@given(st.lists(st.tuples(fragments, st.lists(control, max_size=2)), max_size=5), st.data())
def test_messages_are_decoded_as_sent_however_they_are_split(
    said: list[tuple[tuple[int, list[bytes]], Messages]], data: st.DataObject
) -> None:
    octets, expected = b"", []
    for (opcode, parts), controls in said:
        for number, part in enumerate(parts):
            octets += frame(opcode if number == 0 else 0, part, fin=number == len(parts) - 1)
            if number == 0:
                # In the middle of the message, if it has one.
                octets += b"".join(frame(*each) for each in controls)
        whole = (opcode, b"".join(parts))
        expected += [whole, *controls] if len(parts) == 1 else [*controls, whole]
    places = data.draw(st.lists(st.integers(0, len(octets)), max_size=8))
    assert heard(cut(octets, *places)) == expected
    assert heard([octets[at : at + 1] for at in range(len(octets))]) == expected


@pytest.mark.parametrize("opcode", [framing.TEXT, framing.BINARY])
@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535])
@pytest.mark.parametrize("mask", [b"\x01\x02\x03\xf4", bytes(4)])
def test_a_message_that_arrives_alone_is_decoded_at_once(opcode: int, size: int, mask: bytes) -> None:
    content = bytes(i % 251 for i in range(size))
    octets = frame(opcode, content, mask=mask)
    incoming = Incoming(frame_bytes_max=size, message_bytes_max=size)
    for _ in range(2):
        whole = incoming.whole(memoryview(bytearray(octets)), opcode)
        assert whole is not None
        assert bytes(whole) == content
    assert heard([octets]) == [(opcode, content)]


def test_what_is_not_one_whole_message_is_not_decoded_at_once() -> None:
    whole = frame(framing.BINARY, b"abc")
    others = {
        "nothing": b"",
        "a part": whole[:-1],
        "a header": whole[:5],
        "more": whole + b"\x82",
        "two": whole * 2,
        "a fragment": b"\x02" + whole[1:],
        "a continuation": b"\x80" + whole[1:],
        "a text": frame(framing.TEXT, b"abc"),
        "a ping": frame(framing.PING, b"abc"),
        "without a mask": b"\x82\x06abcdef",
        "reserved bits": b"\xc2" + whole[1:],
        "a long one": frame(framing.BINARY, bytes(1 << 16)),
    }
    for what, octets in others.items():
        assert Incoming().whole(memoryview(bytearray(octets)), framing.BINARY) is None, what
    for limited in (Incoming(frame_bytes_max=2), Incoming(message_bytes_max=2)):
        assert limited.whole(memoryview(bytearray(whole)), framing.BINARY) is None
    begun = {
        "after half a header": whole[:1],
        "after half a payload": whole[:-1],
        "in a message": b"\x02" + whole[1:],
        "after half a ping": frame(framing.PING, b"abc")[:-1],
    }
    for what, octets in begun.items():
        incoming = Incoming()
        list(incoming.pieces(memoryview(bytearray(octets))))
        assert incoming.whole(memoryview(bytearray(whole)), framing.BINARY) is None, what


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 128, 65_535, 65_536, 200_001])
def test_every_form_of_a_length_is_read_and_written(size: int) -> None:
    content = bytes(number % 251 for number in range(size))
    assert heard([frame(2, content)]) == [(2, content)]
    assert read_by_them(b"".join(map(bytes, framing.binary([content])))) == [content]


@pytest.mark.parametrize("size", [*range(20), *range(8_188, 8_205), 70_001])
def test_masks_are_removed_in_place(size: int) -> None:
    content, mask = bytes(number * 7 % 256 for number in range(size)), b"\x01\x80\xff\x33"
    masked = bytearray(octet ^ mask[at % 4] for at, octet in enumerate(content))
    framing.unmask(memoryview(masked), mask)
    assert masked == content


@given(st.integers(0, 40_000), st.integers(0, 40_000))
def test_a_payload_read_elsewhere_is_unmasked_there(size: int, before: int) -> None:
    content = bytes(number * 13 % 256 for number in range(size))
    octets = bytearray(frame(2, content) + frame(9, b"after"))
    head = len(octets) - len(frame(9, b"after")) - size
    before = min(before, size)
    incoming, view = Incoming(), memoryview(octets)
    found = b"".join(bytes(piece.content) for piece in incoming.pieces(view[: head + before]))
    assert incoming.left == size - before
    rest = view[head + before : head + size]
    incoming.take(rest)
    assert found + rest == content
    assert incoming.left == 0
    assert [(each.opcode, bytes(each.content)) for each in incoming.pieces(view[head + size :])] == [(9, b"after")]


def read_by_them(octets: bytes) -> list[bytes]:
    client = ClientProtocol(parse_uri("ws://x"), state=OPEN, max_size=None)
    client.receive_data(octets)
    client.receive_eof()
    frames = [event for event in client.events_received() if isinstance(event, TheirFrame)]
    assert all(each.fin and each.opcode == 2 for each in frames)
    return [bytes(each.data) for each in frames]


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_a_response_too_long_for_a_frame_becomes_several_messages(buffers: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "FRAME_BYTES_MAX", 16)
        found = read_by_them(b"".join(map(bytes, framing.binary(buffers))))
    assert b"".join(found) == b"".join(buffers)
    assert all(len(each) <= 16 for each in found)
    assert len(found) == max(1, -(-sum(map(len, buffers)) // 16))


VIOLATIONS = {
    "a control frame of 126 bytes (2.5)": (1002, [frame(9, bytes(126), fin=True)]),
    "a control frame in pieces (5.1)": (1002, [frame(9, b"x", fin=False)]),
    "a pong in pieces (5.2)": (1002, [frame(10, b"x", fin=False)]),
    **{
        f"reserved bits {bits:03b} (3.{bits})": (1002, [frame(opcode, b"x", reserved=bits << 4)])
        for bits, opcode in zip(range(1, 8), (1, 1, 1, 1, 2, 9, 8), strict=True)
    },
    **{
        f"opcode {opcode} (4.x)": (1002, [bytes((0x80 | opcode, 0x80, 1, 2, 3, 4))])
        for opcode in (*range(3, 8), *range(11, 16))
    },
    "a continuation of nothing (5.9)": (1002, [frame(0, b"x")]),
    "an unfinished continuation of nothing (5.10)": (1002, [frame(0, b"x", fin=False)]),
    "a continuation after the end (5.15)": (1002, [frame(1, b"x"), frame(0, b"x", fin=False)]),
    "a message within a message (5.18)": (1002, [frame(1, b"x", fin=False), frame(1, b"y")]),
    "a frame without a mask": (1002, [frame(2, b"x", masked=False)]),
    "a length with the highest bit": (1002, [b"\x82\xff" + (1 << 63).to_bytes(8, "big") + b"mask"]),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_violations_are_reported(name: str) -> None:
    code, pieces = VIOLATIONS[name]
    for said in (pieces, [b"".join(pieces)], [bytes((octet,)) for piece in pieces for octet in piece]):
        with pytest.raises(Violation) as violated:
            heard(list(said))
        assert violated.value.code == code


def test_an_invalid_header_is_reported_before_it_is_complete() -> None:
    for beginning in (b"\xc2", b"\x83", b"\x09", b"\x89\xfe", b"\x82\x01"):
        with pytest.raises(Violation):
            heard([beginning])


def test_messages_and_frames_may_have_limits() -> None:
    assert heard([frame(2, bytes(100))], frame_bytes_max=100, message_bytes_max=100) == [(2, bytes(100))]
    for limits in ({"frame_bytes_max": 99}, {"message_bytes_max": 99}):
        with pytest.raises(Violation) as violated:
            heard([frame(2, bytes(100))[:8]], **limits)
        assert violated.value.code == 1009
    with pytest.raises(Violation) as violated:
        heard([frame(2, bytes(60), fin=False), frame(0, bytes(60))], message_bytes_max=100)
    assert violated.value.code == 1009


def test_the_limit_applies_to_each_message() -> None:
    assert len(heard([frame(2, bytes(60), fin=False) + frame(0, bytes(40))] * 5, message_bytes_max=100)) == 5


def test_unmasked_frames_are_decoded_if_allowed() -> None:
    assert heard([frame(2, b"bare", masked=False) + frame(2, b"masked")], unmasked_too=True) == [
        (2, b"bare"),
        (2, b"masked"),
    ]


def test_fragments_may_be_many_or_small_but_not_both() -> None:
    sixteen = frame(2, bytes(16), fin=False) + frame(0, bytes(16), fin=False) * 9_999 + frame(0)
    assert [len(content) for _, content in heard([sixteen])] == [160_000]
    with pytest.raises(Violation) as violated:
        heard([frame(2, b"x", fin=False) + frame(0, b"x", fin=False) * 9_999])
    assert violated.value.code == 1008


@pytest.mark.parametrize(
    "code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999]
)
def test_a_valid_close_code_is_returned(code: int) -> None:
    assert framing.close_code(memoryview(code.to_bytes(2, "big") + "schönen Tag".encode())) == code


@pytest.mark.parametrize("code", [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535])
def test_an_invalid_close_code_is_a_violation(code: int) -> None:
    with pytest.raises(Violation) as violated:
        framing.close_code(memoryview(code.to_bytes(2, "big")))
    assert violated.value.code == 1002


def test_a_close_frame_may_be_empty_but_not_invalid() -> None:
    assert framing.close_code(memoryview(b"")) is None
    for content, code in ((b"\x03", 1002), (b"\x03\xe8\xce\xba\xe1\xbd\xb9\xcf\x83\xbc\xce\xb5\xed\xa0\x80", 1007)):
        with pytest.raises(Violation) as violated:
            framing.close_code(memoryview(content))
        assert violated.value.code == code


def test_a_reason_is_cut_where_a_character_ends() -> None:
    said = framing.close(1008, "ä" * 100)
    assert len(said) == 2 + 2 + 122
    assert said[4:].decode() == "ä" * 61
    assert framing.close(None) == b"\x88\x00"
