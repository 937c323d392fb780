"""One QUIC connection, sans-IO: datagrams in, events and datagrams out.

aioquic looks for everything that a packet could hold, and handles packets one by one. The short paths in
quic_receiving.py and quic_sending.py handle the usual packets, many at a time, and leave everything else to aioquic.

The size of datagrams is decided in quic_path.py, the rate in quic_pacing.py, the windows in quic_windows.py. All of
them override internals of aioquic: its version is pinned, and tests/transports/test_aioquic_internals.py fails when
they change.
"""

from __future__ import annotations

from typing import Any, cast

from aioquic.quic.connection import QuicConnectionState

from whippet.transports.datagrams import PeerAddress
from whippet.transports.quic_configuration import Handshake, Rules
from whippet.transports.quic_probing import ProbingConnection

ACKNOWLEDGED_AT_ONCE = 2
"""So many packets are acknowledged at once (RFC 9000, 13.2.2). A single one waits for a response that takes the
acknowledgement along, unless packets before it are missing."""
ACK_DELAY = 0.005
"""How long a single one waits at most. Clients expect up to 25 ms."""


class NullLog:
    """A logger that drops everything."""

    def drop(self, *_: object) -> None:
        """Does nothing."""

    debug = info = warning = error = drop


NULL_LOG = NullLog()


class Engine(ProbingConnection):
    """One connection, as quic_connection.py drives it."""

    def __init__(self, rules: Rules, original_id: bytes, retry_id: bytes | None) -> None:
        super().__init__(rules, original_id, retry_id)
        # aioquic logs whatever a client sends; only to ask whether it should costs a large part of a small request.
        self._logger = self._loss._logger = cast(Any, NULL_LOG)
        self._host_cids[0].stateless_reset_token = rules.reset_token(self.host_cid)
        self._sent_bytes = 0
        self._ack_delay = ACK_DELAY

    # ------------------------------------------------------------------------------------------------------- state

    @property
    def is_over(self) -> bool:
        """Nothing more is received or sent."""
        # To find a member of an enumeration in a set, its hash is computed in Python.
        state = self._state
        return state is not QuicConnectionState.CONNECTED and state is not QuicConnectionState.FIRSTFLIGHT

    @property
    def is_established(self) -> bool:
        return self._handshake_confirmed

    @property
    def is_validated(self) -> bool:
        """The client has proved its address."""
        return bool(self._network_paths) and self._network_paths[0].is_validated

    def _confirm_handshake(self) -> None:
        super()._confirm_handshake()
        # The buffers of the handshake are not needed any more: 48 KiB of each connection.
        self._crypto_buffers = {}

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        # No message has been handled yet, so the class can still be replaced: it differs in the negotiation alone.
        self.tls.__class__ = Handshake
        cast(Handshake, self.tls).protocols = self._rules.protocols

    def _replenish_connection_ids(self) -> None:
        super()._replenish_connection_ids()
        for connection_id in self._host_cids:
            if not connection_id.was_sent:
                connection_id.stateless_reset_token = self._rules.reset_token(connection_id.cid)

    def unacknowledged_on(self, stream_id: int) -> int:
        """Returns how many bytes of a stream are not sent or not acknowledged."""
        stream = self._streams.get(stream_id)
        return 0 if stream is None else len(stream.sender._buffer)

    def send_stream_data(self, stream_id: int, data: bytes, end_stream: bool = False) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            super().send_stream_data(stream_id, data, end_stream)
        else:
            stream.sender.write(data, end_stream)
        if not stream_id & 3:
            self._sent_bytes += len(data)

    @property
    def acknowledged_bytes(self) -> int:
        """Bytes of all responses so far that the client has acknowledged, or has cancelled."""
        return self._sent_bytes - self.unacknowledged_bytes

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes of all responses that are not sent or not acknowledged; the end of a stream counts as one."""
        return sum(
            len(stream.sender._buffer) + (stream.sender._buffer_fin is not None)
            for stream_id, stream in self._streams.items()
            if not (stream_id & 3 or stream.sender.is_finished) and stream.sender._reset_error_code is None
        )

    def can_be_written(self, stream_id: int) -> bool:
        stream = self._streams.get(stream_id)
        return stream is not None and stream.sender._reset_error_code is None and stream.sender._buffer_fin is None

    def is_being_received(self, stream_id: int) -> bool:
        stream = self._streams.get(stream_id)
        return stream is not None and not stream.receiver.is_finished

    # ------------------------------------------------------------------------------------------------------- sending

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, PeerAddress]]:
        if self._handshake_confirmed:
            self.discard_streams()
            space = self._space
            is_ack_due = self._eliciting_received >= ACKNOWLEDGED_AT_ONCE or len(space.ack_queue) > 1
            if is_ack_due and space.ack_at is not None:
                space.ack_at = now
            if self._has_nothing_to_send(now):
                self._pacing_at = None
                return []
            if space.ack_at is not None:
                # Acknowledges in a datagram that is sent anyway, instead of in one of its own a moment later.
                space.ack_at = now
        found = super().datagrams_to_send(now)
        if self._handshake_confirmed and not self.is_over:
            if self._space.ack_at is None:
                self._eliciting_received = 0
            self._watch_path()
            if (size := self.probe.next_size) is not None:
                found += self._probe_path(size, now)
        return found

    def _has_nothing_to_send(self, now: float) -> bool:
        """Checks without building packets, which would cost a large part of a small request."""
        ack_at = self._space.ack_at
        if (ack_at is not None and ack_at <= now) or self._close_pending:
            return False
        data, streams = self._local_max_data, self._local_max_streams_bidi
        if data.sent - data.used <= self._rules.receive_window // 2 or data.value != data.sent:
            return False
        if streams.value - streams.sent > streams.sent - streams.used:
            return False
        half = self._rules.stream_receive_window // 2
        for stream in self._streams.values():
            receiver, sender = stream.receiver, stream.sender
            if not sender.buffer_is_empty:
                return False
            if not receiver.is_finished and (
                stream.max_stream_data_local - receiver._buffer_start <= half
                or stream.max_stream_data_local != stream.max_stream_data_local_sent
            ):
                return False
        return self._network_paths[0] is self._path and self.probe.next_size is None and self._sends_usual_frames()
