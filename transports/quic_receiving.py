"""What a connection receives, many datagrams at a time; with a short path for the usual packet.

The usual packet of an established connection comes on the path in use and holds acknowledgements, or data that comes
next on its stream. It is decrypted and read here. Everything else is left to aioquic: other frames of the same packet,
or all of a datagram that is unusual from outside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, cast

from aioquic import tls
from aioquic.quic.connection import (
    END_STATES,
    QuicConnection,
    QuicConnectionError,
    QuicConnectionState,
    QuicReceiveContext,
)
from aioquic.quic.events import QuicEvent, StreamDataReceived
from aioquic.quic.packet import QuicFrameType
from aioquic.quic.recovery import MAX_ACK_RANGES, QuicPacketNumberWindow, QuicPacketSpace
from aioquic.quic.stream import QuicStream
from cryptography.exceptions import InvalidTag

from whippet.transports.datagrams import PeerAddress
from whippet.transports.quic_pacing import Congestion, Pacer
from whippet.transports.quic_packets import (
    LOW_BITS,
    MASK_BYTES,
    CutOff,
    Opener,
    decode_varint,
    header_masks,
)
from whippet.transports.quic_recovery import Recovery

RUN_MAX = 64
"""Datagrams that are handled together."""
STREAM_FIN, STREAM_LENGTH, STREAM_OFFSET, STREAM_BITS = 1, 2, 4, 7
PHASE_AND_RESERVED = 0x1C


class ReceivedData:
    """Data of streams on its way to the events: what is consecutive is one event."""

    __slots__ = ("_events", "_pieces", "_stream_id")

    def __init__(self, events: deque[QuicEvent]) -> None:
        self._events = events
        self._stream_id = -1
        self._pieces: list[bytes] = []

    def add(self, stream_id: int, piece: bytes, *, fin: bool) -> None:
        if stream_id != self._stream_id:
            if self._pieces:
                self.flush()
            self._stream_id = stream_id
        self._pieces.append(piece)
        if fin:
            self.flush(fin=True)

    def flush(self, *, fin: bool = False) -> None:
        pieces = self._pieces
        if pieces:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._events.append(StreamDataReceived(data, fin, self._stream_id))
            self._pieces = []


class NumberWindow(QuicPacketNumberWindow):
    """aioquic's window of packet numbers that were received, which takes many at a time."""

    def add_range(self, start: int, stop: int) -> None:
        self._received.update(range(start, stop - 1))
        # Prunes, too.
        self.add(stop - 1)


class ReceivingConnection(QuicConnection):
    """Either end of a connection."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Its methods differ, its state does not.
        self._loss.__class__ = Recovery
        self._loss._cc = Congestion(max_datagram_size=self._max_datagram_size)
        self._loss._pacer = Pacer(max_datagram_size=self._max_datagram_size)
        self._opener: Opener | None = None
        self._eliciting_received = 0
        """Packets that have to be acknowledged, since the last acknowledgement was written."""

    def _confirm_handshake(self) -> None:
        super()._confirm_handshake()
        # What is looked up for each packet: the hash of an enumeration's member is computed in Python.
        self._space, self._keys = self._spaces[tls.Epoch.ONE_RTT], self._cryptos[tls.Epoch.ONE_RTT]
        self._early_keys = self._cryptos[tls.Epoch.ZERO_RTT].recv

    def next_event(self) -> QuicEvent | None:
        return self._events.popleft() if self._events else None

    def receive_datagrams(self, datagrams: Sequence[bytes], peer: PeerAddress, now: float) -> None:
        """Handles datagrams that arrived together from one address, in this order."""
        position, count = 0, len(datagrams)
        while position < count:
            following = self._receive_run(datagrams, position, now) if self._is_usual(peer) else position
            if following == position:
                self._eliciting_received += 1
                self.receive_datagram(datagrams[position], peer, now)
                following += 1
            position = following

    def _is_usual(self, peer: PeerAddress) -> bool:
        """The connection is established, and the other side has not moved."""
        paths = self._network_paths
        return (
            self._handshake_confirmed
            and self._state is QuicConnectionState.CONNECTED
            and not self._close_pending
            and paths[0].addr == peer
            and paths[0].is_validated
            and not self._early_keys.is_valid()
        )

    def _receive_run(self, datagrams: Sequence[bytes], position: int, now: float) -> int:
        """Handles datagrams from this position on; returns the position of the first that is left. If none was handled,
        that one is unusual."""
        context, space, connection_id = self._keys.recv, self._space, self.host_cid
        opener = self._opener
        if opener is None or not opener.is_current(context, connection_id):
            opener = self._opener = Opener(context, connection_id)
        samples = opener.samples(datagrams[position : position + RUN_MAX])
        masks = header_masks(context, samples)
        received, numbers = ReceivedData(self._events), ReceivedNumbers(space, now)
        mask_at = -MASK_BYTES
        for datagram in datagrams[position : position + len(samples)]:
            mask_at += MASK_BYTES
            first = datagram[0] ^ masks[mask_at] & LOW_BITS
            if first & PHASE_AND_RESERVED != opener.phase:
                break
            position += 1
            try:
                mask = masks[mask_at : mask_at + MASK_BYTES]
                number, plain = opener.open(datagram, first, mask, space.expected_packet_number)
            except InvalidTag:
                # As aioquic does: whoever sent it does not know the key.
                continue
            if number <= numbers.largest and numbers.has(number):
                continue
            if number > space.expected_packet_number:
                space.expected_packet_number = number + 1
            if number > self._spin_highest_pn:
                self._spin_highest_pn = number
                self._spin_bit = bool(first & 0x20) != self._is_client
            at, is_eliciting = self._read_frames(plain, received, now)
            is_rest_usual = at == len(plain) > 0
            if not is_rest_usual:
                received.flush()
                try:
                    is_rest_eliciting, _ = self._payload_received(self._context(now), plain[at:])
                except QuicConnectionError as error:
                    self.close(error.error_code, error.frame_type, error.reason_phrase)
                    break
                if self._state in END_STATES or self._close_pending:
                    break
                is_eliciting = is_eliciting or is_rest_eliciting
            numbers.add(number)
            if is_eliciting:
                self._eliciting_received += 1
                if space.ack_at is None:
                    space.ack_at = now + self._ack_delay
            if not is_rest_usual:
                # Anything may be different now.
                break
        received.flush()
        if numbers.commit() and self._state is QuicConnectionState.CONNECTED:
            self._close_at = now + self._idle_timeout()
            self._ack_eliciting_sent_since_receipt = False
        return position

    def _context(self, now: float) -> QuicReceiveContext:
        return QuicReceiveContext(tls.Epoch.ONE_RTT, self.host_cid, self._network_paths[0], None, now, None)

    # -------------------------------------------------------------------------------------------------------- frames

    def _read_frames(self, plain: bytes, received: ReceivedData, now: float) -> tuple[int, bool]:
        """Reads the usual frames; returns the position of the first that is not, and whether one of those before it has
        to be acknowledged."""
        at, end, is_eliciting = 0, len(plain), False
        try:
            while at < end:
                frame_type = plain[at]
                if frame_type & ~STREAM_BITS == QuicFrameType.STREAM_BASE:
                    following = self._read_stream_frame(plain, at, received)
                    is_eliciting = is_eliciting or following > at
                elif frame_type == QuicFrameType.ACK:
                    following = self._read_ack_frame(plain, at, now)
                elif frame_type == QuicFrameType.PADDING:
                    following = end - len(plain[at:].lstrip(b"\0"))
                else:
                    break
                if following == at:
                    break
                at = following
        except CutOff:
            # aioquic finds out what is wrong.
            pass
        return at, is_eliciting

    def _read_stream_frame(self, plain: bytes, at: int, received: ReceivedData) -> int:
        """Returns the position after the frame; the position of the frame if it is left to aioquic, and then nothing
        has changed."""
        frame_type = plain[at]
        stream_id, data_at = decode_varint(plain, at + 1)
        offset = 0
        if frame_type & STREAM_OFFSET:
            offset, data_at = decode_varint(plain, data_at)
        end = len(plain)
        if frame_type & STREAM_LENGTH:
            length, data_at = decode_varint(plain, data_at)
            if data_at + length > end:
                return at
            end = data_at + length
        else:
            length = end - data_at
        fin, stop, data = bool(frame_type & STREAM_FIN), offset + length, self._local_max_data
        if not length or data.used + length > data.value:
            return at
        stream = self._streams.get(stream_id)
        if stream is None:
            # All of the client's next stream in one frame is usual, too.
            limit, window = self._local_max_streams_bidi, self._local_max_stream_data_bidi_remote
            if (
                self._is_client
                or offset
                or not fin
                or stream_id != limit.used << 2
                or limit.used >= limit.value
                or length > window
            ):
                return at
            limit.used += 1
            stream = QuicStream(stream_id, window, self._remote_max_stream_data_bidi_local)
            self._streams[stream_id] = stream
            self._streams_queue.append(stream)
        receiver = stream.receiver
        if (
            receiver._buffer_start != offset
            or receiver.is_finished
            or receiver._buffer
            or receiver._final_size is not None
            or stop > stream.max_stream_data_local
        ):
            return at
        receiver._buffer_start = receiver.highest_offset = stop
        data.used += length
        if fin:
            receiver._final_size = stop
            receiver.is_finished = True
        received.add(stream_id, plain[data_at:end], fin=fin)
        return end

    def _read_ack_frame(self, plain: bytes, at: int, now: float) -> int:
        """Handles an acknowledgement of one range; returns the position of the frame if there are more."""
        largest, following = decode_varint(plain, at + 1)
        delay, following = decode_varint(plain, following)
        ranges, following = decode_varint(plain, following)
        count, following = decode_varint(plain, following)
        if ranges or count > largest:
            return at
        self._loss.on_ack_received(
            ack_rangeset=(range(largest - count, largest + 1),),  # type: ignore[arg-type]
            ack_delay=(delay << self._remote_ack_delay_exponent) / 1_000_000,
            now=now,
            space=self._space,
        )
        return following


class ReceivedNumbers:
    """Records the numbers of packets that arrive together; a run of them at once."""

    __slots__ = ("_now", "_space", "_start", "_stop", "largest")

    def __init__(self, space: QuicPacketSpace, now: float) -> None:
        self._space = space
        self._now = now
        self._start = self._stop = -1
        self.largest = space.largest_received_packet

    def has(self, number: int) -> bool:
        return self._start <= number < self._stop or number in self._space.received_packets

    def add(self, number: int) -> None:
        self.largest = max(self.largest, number)
        if number == self._stop:
            self._stop += 1
        else:
            if self._start >= 0:
                self.commit()
            self._start, self._stop = number, number + 1

    def commit(self) -> bool:
        """Returns False if there was nothing to record."""
        start, stop, space = self._start, self._stop, self._space
        if start < 0:
            return False
        if stop - 1 > space.largest_received_packet:
            space.largest_received_packet, space.largest_received_time = stop - 1, self._now
        window = space.received_packets
        if stop - start == 1:
            window.add(start)
        else:
            # The class differs in this method alone.
            window.__class__ = NumberWindow
            cast(NumberWindow, window).add_range(start, stop)
        space.ack_queue.add(start, stop)
        if len(space.ack_queue) > MAX_ACK_RANGES:
            space.ack_queue.shift()
        return True
