"""Finds the datagram size of a QUIC connection: sends the probes that quic_path.py requests, and applies results."""

from __future__ import annotations

from typing import Any

from aioquic import tls
from aioquic._buffer import Buffer
from aioquic.quic.packet import QuicFrameType, QuicPacketType, QuicProtocolVersion, pull_quic_transport_parameters
from aioquic.quic.packet_builder import QuicDeliveryState, QuicPacketBuilder

from whippet.transports.datagrams import PeerAddress
from whippet.transports.quic_configuration import Rules
from whippet.transports.quic_path import DATAGRAM_BYTES_MIN, LOST_IN_A_ROW, PathProbe
from whippet.transports.quic_windows import WindowedConnection


class ProbingConnection(WindowedConnection):
    """A connection whose datagrams are as large as the path allows."""

    def __init__(self, rules: Rules, original_id: bytes, retry_id: bytes | None) -> None:
        super().__init__(rules, original_id, retry_id)
        self.probe = PathProbe(rules.initial_datagram_bytes, rules.datagram_bytes_max)
        self._path: object = None

    def _parse_transport_parameters(self, data: bytes, from_session_ticket: bool = False) -> None:
        super()._parse_transport_parameters(data, from_session_ticket)
        theirs = pull_quic_transport_parameters(Buffer(data=data)).max_udp_payload_size
        if theirs is not None:
            self.probe.limit(theirs)

    def _watch_path(self) -> None:
        """Starts over on a new path, which may carry more, and falls back on a path where nothing gets through any
        more."""
        path = self._network_paths[0]
        if path is not self._path:
            self._path = path
            self.probe.begin()
            self._set_datagram_size(self.probe.carried)
        elif self._loss._pto_count >= LOST_IN_A_ROW and self._max_datagram_size > DATAGRAM_BYTES_MIN:
            self.probe.narrow()
            self._set_datagram_size(self.probe.carried)

    def _probe_path(self, size: int, now: float) -> list[tuple[bytes, PeerAddress]]:
        """Returns a datagram of this size that holds only padding. It does not count as being in flight, because its
        loss says nothing about congestion."""
        path = self._network_paths[0]
        if not path.is_validated:
            return []
        builder = QuicPacketBuilder(
            host_cid=self.host_cid,
            is_client=False,
            max_datagram_size=size,
            packet_number=self._packet_number,
            peer_cid=self._peer_cid.cid,
            spin_bit=self._spin_bit,
            version=self._version or QuicProtocolVersion.VERSION_1,
        )
        builder.start_packet(QuicPacketType.ONE_RTT, self._cryptos[tls.Epoch.ONE_RTT])
        buffer = builder.start_frame(QuicFrameType.PING, handler=self._on_probe_result, handler_args=(size, path))
        buffer.push_bytes(bytes(builder.remaining_flight_space))
        if builder._packet is not None:
            builder._packet.in_flight = False
        self.probe.on_sent()
        return self._flush_builder(builder=builder, network_path=path, peer_cid=self._peer_cid.cid, now=now)

    def _on_probe_result(self, delivery: QuicDeliveryState, size: int, path: object) -> None:
        arrived, is_current = delivery is QuicDeliveryState.ACKED, path is self._path
        if self.probe.on_result(size, arrived=arrived, is_current=is_current):
            self._set_datagram_size(self.probe.carried)

    def _set_datagram_size(self, size: int) -> None:
        self._max_datagram_size = size
        self._loss._pacer._max_datagram_size = size
        control: Any = self._loss._cc
        control._max_datagram_size = size
        control.congestion_window = max(control.congestion_window, 10 * size)
