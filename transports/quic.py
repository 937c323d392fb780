"""QUIC: one UDP socket, and a connection for each client.

Datagrams go to the connection whose id they carry; an unknown client starts a new one, within limits. What one
iteration of the event loop has received is answered at its end, once for each connection. While many handshakes are in
progress, new clients have to prove their address first (Retry), which costs the server no memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from typing import TYPE_CHECKING

from aioquic._buffer import Buffer
from aioquic.quic.packet import (
    QuicHeader,
    QuicPacketType,
    QuicProtocolVersion,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.retry import QuicRetryTokenHandler
from starlette.types import ASGIApp

from whippet.app.config.formats import Address
from whippet.app.config.listeners import Quic
from whippet.app.gateway import Gateway
from whippet.transports import certificates, datagrams, listening, quic_configuration
from whippet.transports.admission.budgets import Budgets
from whippet.transports.admission.stall_detector import STALLED_SECONDS
from whippet.transports.certificates import Pair
from whippet.transports.connections import Connections
from whippet.transports.datagrams import Datagrams, PeerAddress
from whippet.transports.quic_configuration import CONNECTION_ID_BYTES, HTTP3, Rules
from whippet.transports.quic_connection import Connection
from whippet.transports.quic_engine import Engine
from whippet.transports.quic_path import DATAGRAM_BYTES_MIN

if TYPE_CHECKING:
    from whippet.transports.http.serving.listener import Listener

RETRY_ABOVE = 64
"""With this many handshakes in progress, new clients have to prove their address."""
HANDSHAKES_MAX = 1024
"""With this many handshakes in progress, new clients are ignored."""
RESETS_A_SECOND = 200
"""Stateless resets and version negotiations, which anybody can provoke at no cost."""

FLUSH_SECONDS = 1.0
"""How long the kernel may take for the last datagrams, which close the connections."""


class QuicListener(Connections[Connection]):
    """The UDP socket and its connections. Opened by `listen`, closed by `stop`."""

    def __init__(
        self,
        gateway: Gateway,
        budgets: Budgets,
        application: ASGIApp | None = None,
        http_listener: Listener | None = None,
        *,
        stalled_seconds: float = STALLED_SECONDS,
    ) -> None:
        """`application` is served over HTTP/3 to as many connections as `http_listener` has room for."""
        super().__init__(gateway, budgets, stalled_seconds=stalled_seconds)
        config: Quic = gateway.config.quic
        self.application = application
        self._http_listener = http_listener
        self.streams_max = config.max_concurrent_bidi_streams
        self.send_window = config.send_window
        self.address = Address("", 0)
        self._config = config
        self._data_folder = ""
        self._rules: Rules | None = None
        self._retry = QuicRetryTokenHandler()
        self._datagrams: Datagrams | None = None
        self._established = 0
        self._by_id: dict[bytes, Connection] = {}
        self._scheduled: set[Connection] = set()
        self._is_flush_scheduled = False
        self._stopping = False
        self._resets_left = RESETS_A_SECOND

    async def listen(self, address: Address, setting: str, data_folder: str) -> None:
        """Starts to listen. If a certificate has to be created, it is kept in the data folder."""
        self._data_folder = data_folder
        self.renew()
        link = await datagrams.bind(address, setting, self._config.socket)
        self.address = listening.effective(link)
        self._datagrams = Datagrams(link, self._on_datagrams, self._flush)
        self.start_sweeping("quic deadlines")

    def renew(self) -> bytes:
        """Reads the certificate again and returns it."""
        pair = certificates.for_quic(self._config.certificate, self._data_folder)
        self.use(pair)
        return pair.certificate

    def use(self, pair: Pair) -> None:
        """Sets the certificate for new connections."""
        config = self._config
        configuration = quic_configuration.configuration(
            config.max_idle_timeout or quic_configuration.NO_IDLE_TIMEOUT,
            config.receive_window,
            config.stream_receive_window,
        )
        pair.put_on(configuration)
        self._rules = Rules(
            configuration=configuration,
            initial_datagram_bytes=config.initial_mtu,
            datagram_bytes_max=config.max_datagram_size,
            receive_window=config.receive_window,
            stream_receive_window=config.stream_receive_window,
            protocols=() if self.application is None else (HTTP3,),
            reset_key=hashlib.sha256(b"stateless reset" + pair.key).digest(),
        )

    # -------------------------------------------------------------------------------------------------- datagrams

    def send(self, packets: list[bytes], peer: PeerAddress) -> None:
        if self._datagrams is not None:
            self._datagrams.send(packets, peer)

    def _on_datagrams(self, datagrams: list[bytes], peer: PeerAddress) -> None:
        """Passes datagrams to their connection; usually all are of the same."""
        start = 0
        while start < len(datagrams):
            first = datagrams[start]
            connection = self._find(first, peer)
            end = start + 1
            if connection is not None:
                if not first[0] & 0x80:
                    connection_id = first[1 : 1 + CONNECTION_ID_BYTES]
                    while end < len(datagrams) and _has_short_header(datagrams[end], connection_id):
                        end += 1
                self._pass_on(datagrams[start:end], connection, peer)
            start = end

    def _pass_on(self, datagrams: list[bytes], connection: Connection, peer: PeerAddress) -> None:
        now = time.monotonic()
        connection.receive(datagrams, peer, now)
        self._scheduled.add(connection)

    def _find(self, datagram: bytes, peer: PeerAddress) -> Connection | None:
        """Returns the connection of a datagram, which is a new one if a client starts it; None if there is none."""
        if len(datagram) < 1 + CONNECTION_ID_BYTES:
            return None
        if datagram[0] & 0x80:
            return self._find_by_long_header(datagram, peer)
        connection = self._by_id.get(datagram[1 : 1 + CONNECTION_ID_BYTES])
        if connection is None:
            self._send_reset(datagram, peer)
        return connection

    def _find_by_long_header(self, datagram: bytes, peer: PeerAddress) -> Connection | None:
        """Handles a packet of a handshake, which has a long header; returns its connection, or None."""
        buffer = Buffer(data=datagram)
        try:
            header = pull_quic_header(buffer, host_cid_length=CONNECTION_ID_BYTES)
        except ValueError:
            return None
        known = self._by_id.get(header.destination_cid)
        if known is not None:
            return known
        if len(datagram) < DATAGRAM_BYTES_MIN or self._stopping:
            return None
        if header.version != QuicProtocolVersion.VERSION_1:
            if header.version and self._may_reply():
                versions = [int(QuicProtocolVersion.VERSION_1)]
                packet = encode_quic_version_negotiation(header.destination_cid, header.source_cid, versions)
                self.send([packet], peer)
            return None
        if header.packet_type != QuicPacketType.INITIAL or len(header.destination_cid) < CONNECTION_ID_BYTES:
            # Clients have to choose a random id of at least this length; shorter ones would collide.
            return None
        return self._accept(header, peer)

    def _accept(self, header: QuicHeader, peer: PeerAddress) -> Connection | None:
        handshakes = len(self._connections) - self._established
        if handshakes >= HANDSHAKES_MAX or not self.has_room():
            return None
        now = time.monotonic()
        original, retried = header.destination_cid, None
        if header.token:
            try:
                original = self._retry.validate_token(
                    address=peer, destination_cid=header.destination_cid, token=header.token, now=now
                )
                retried = header.destination_cid
            except ValueError:
                # The token of another address, or an expired one, is ignored.
                retried = None
        if retried is None and handshakes >= RETRY_ABOVE:
            self._send_retry(header, peer, now)
            return None
        assert self._rules is not None
        connection = Connection(self, Engine(self._rules, original, retried), peer)
        self._connections.add(connection)
        self.add_id(connection, header.destination_cid)
        self.add_id(connection, connection.engine.host_cid)
        return connection

    def _send_retry(self, header: QuicHeader, peer: PeerAddress, now: float) -> None:
        connection_id = os.urandom(CONNECTION_ID_BYTES)
        token = self._retry.create_token(
            address=peer,
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=connection_id,
            now=now,
        )
        packet = encode_quic_retry(
            version=QuicProtocolVersion.VERSION_1,
            source_cid=connection_id,
            destination_cid=header.source_cid,
            original_destination_cid=header.destination_cid,
            retry_token=token,
        )
        self.send([packet], peer)

    def _send_reset(self, datagram: bytes, peer: PeerAddress) -> None:
        """Tells a client of an earlier process at once that it has to connect again."""
        assert self._rules is not None
        connection_id = datagram[1 : 1 + CONNECTION_ID_BYTES]
        packet = quic_configuration.stateless_reset(self._rules, connection_id, len(datagram), os.urandom)
        if packet and self._may_reply():
            self.send([packet], peer)

    def _may_reply(self) -> bool:
        self._resets_left -= 1
        return self._resets_left >= 0

    def schedule_flush(self, connection: Connection) -> None:
        self._scheduled.add(connection)
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        touched, self._scheduled = self._scheduled, set()
        now = time.monotonic()
        for connection in touched:
            connection.flush(now)

    # ------------------------------------------------------------------------------------------------ connections

    def add_id(self, connection: Connection, connection_id: bytes) -> None:
        self._by_id[connection_id] = connection
        connection.ids.add(connection_id)

    def remove_id(self, connection: Connection, connection_id: bytes) -> None:
        connection.ids.discard(connection_id)
        self._by_id.pop(connection_id, None)

    def admit(self, connection: Connection) -> bool:
        if not self.has_room():
            return False
        if connection.is_http and self._http_listener is not None:
            if not self._http_listener.has_room():
                return False
            self._http_listener.http3_connections += 1
        self._established += 1
        connection.is_counted = True
        return True

    def count_connections(self) -> int:
        return self._established

    def remove(self, connection: Connection) -> None:
        for connection_id in connection.ids:
            self._by_id.pop(connection_id, None)
        if connection.is_counted:
            connection.is_counted = False
            self._established -= 1
            if connection.is_http and self._http_listener is not None:
                self._http_listener.http3_connections -= 1
        super().remove(connection)

    def close_overdue(self, now: float) -> None:
        self._resets_left = RESETS_A_SECOND
        for connection in list(self._connections):
            connection.check_deadlines(now, self._config.keep_alive_interval)
        self.budgets.reclaim(now)

    async def stop(self, seconds_max: float) -> None:
        """Accepts no new connections and drains those that are open."""
        self._stopping = True
        await super().stop(seconds_max)
        self._flush()
        if self._datagrams is not None:
            await self._datagrams.flush(FLUSH_SECONDS)
            self._datagrams.close()
            self._datagrams = None


def _has_short_header(datagram: bytes, connection_id: bytes) -> bool:
    return datagram.startswith(connection_id, 1) and not datagram[0] & 0x80
