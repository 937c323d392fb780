"""QUIC: one UDP socket, and a connection for every client that is behind it.

What arrives is handed to the connection that its id names; somebody new begins one, within bounds. What a turn of the
loop has brought is answered at its end, for each connection once. While many shake hands, everybody new has to prove
first that he is where he says (Retry), which costs us no memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
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
from whippet.app.config.system import Limits
from whippet.app.gateway import Gateway
from whippet.transports import certificates, datagrams, listening, quic_engine
from whippet.transports.admission.budgets import Budgets
from whippet.transports.admission.stall_detector import STALLED_SECONDS
from whippet.transports.certificates import Pair
from whippet.transports.connections import SWEEP_SECONDS, ConnectionLimit
from whippet.transports.datagrams import Datagrams, PeerAddress
from whippet.transports.quic_connection import Connection
from whippet.transports.quic_engine import CONNECTION_ID_BYTES, HTTP3, Engine, Rules
from whippet.transports.quic_path import DATAGRAM_BYTES_MIN

if TYPE_CHECKING:
    from whippet.transports.http.serving.protocol import Listener

_log = logging.getLogger(__name__)

RETRY_ABOVE = 64
"""With so many handshakes in hand, everybody new has to prove his address."""
HANDSHAKES_MAX = 1024
"""With so many nobody new is heard."""
RESETS_A_SECOND = 200
"""Stateless resets, and answers to unknown versions: what costs nothing to ask for."""

FLUSH_SECONDS = 1.0
"""How long the kernel may take for the last datagrams, with which connections are closed."""


class QuicListener:
    """The UDP socket and everyone behind it. Made by `listen`, ended by `stop`."""

    def __init__(
        self,
        gateway: Gateway,
        budgets: Budgets,
        application: ASGIApp | None = None,
        door: Listener | None = None,
        *,
        stalled_seconds: float = STALLED_SECONDS,
    ) -> None:
        """`rooms` are shared with all other transports; `application` is served over HTTP/3, to whom the `door`
        of HTTP has room for."""
        config: Quic = gateway.config.quic
        self.gateway = gateway
        self.budgets = budgets
        self.application = application
        self._door = door
        self.stalled_seconds = stalled_seconds
        forced = gateway.config.tcp.message_header
        self.header_size = None if forced == "auto" else int(forced)
        self.limits: Limits = gateway.config.system.limits
        self.streams_max = config.max_concurrent_bidi_streams
        self.send_window = config.send_window
        self.address = Address("", 0)
        self._config = config
        self._data_folder = ""
        self._rules: Rules | None = None
        self._retry = QuicRetryTokenHandler()
        self._datagrams: Datagrams | None = None
        self._connections: set[Connection] = set()
        self._established = 0
        self._by_id: dict[bytes, Connection] = {}
        self._touched: set[Connection] = set()
        self._is_settling_soon = False
        self._sweeper: asyncio.Task[None] | None = None
        self._empty: asyncio.Future[None] | None = None
        self._stopping = False
        self._limit = ConnectionLimit("system.limits.connections", self.limits.connections)
        self._resets_left = RESETS_A_SECOND

    async def listen(self, address: Address, setting: str, data_folder: str) -> None:
        """A certificate that is made is kept in the data folder."""
        self._data_folder = data_folder
        self.renew()
        link = await datagrams.bind(address, setting, self._config.socket)
        self.address = listening.effective(link)
        self._datagrams = Datagrams(link, self._on_datagram, self._settle)
        self._sweeper = asyncio.create_task(self._sweep(), name="quic deadlines")

    def renew(self) -> bytes:
        """Reads the certificate again and says which it is."""
        pair = certificates.for_quic(self._config.certificate, self._data_folder)
        self.use(pair)
        return pair.certificate

    def use(self, pair: Pair) -> None:
        """The certificate of those who come from now on."""
        config = self._config
        rules = quic_engine.configuration(
            config.max_idle_timeout or quic_engine.FOR_EVER, config.receive_window, config.stream_receive_window
        )
        pair.put_on(rules)
        self._rules = Rules(
            configuration=rules,
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

    def _on_datagram(self, datagram: bytes, peer: PeerAddress) -> None:
        if len(datagram) < 1 + CONNECTION_ID_BYTES:
            return
        if datagram[0] & 0x80:
            connection = self._long(datagram, peer)
        else:
            connection = self._by_id.get(datagram[1 : 1 + CONNECTION_ID_BYTES])
            if connection is None:
                self._reset(datagram, peer)
        if connection is not None:
            now = time.monotonic()
            connection.receive(datagram, peer, now)
            if connection.has_answers:
                # While the rest of the turn is read, they are on their way.
                connection.settle(now)
            else:
                self._touched.add(connection)

    def _long(self, datagram: bytes, peer: PeerAddress) -> Connection | None:
        """Before a handshake is done packets have headers that say more."""
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
            if header.version and self._may_answer():
                versions = [int(QuicProtocolVersion.VERSION_1)]
                said = encode_quic_version_negotiation(header.destination_cid, header.source_cid, versions)
                self.send([said], peer)
            return None
        if header.packet_type != QuicPacketType.INITIAL or len(header.destination_cid) < CONNECTION_ID_BYTES:
            # So short a name is none that somebody has made up for us: others would have the same.
            return None
        return self._meet(header, peer)

    def _meet(self, header: QuicHeader, peer: PeerAddress) -> Connection | None:
        shaking = len(self._connections) - self._established
        if shaking >= HANDSHAKES_MAX or not self._limit.allows_one_more(self._established):
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
                # Somebody else's, or an old one: as if there were none.
                retried = None
        if retried is None and shaking >= RETRY_ABOVE:
            self._prove(header, peer, now)
            return None
        assert self._rules is not None
        connection = Connection(self, Engine(self._rules, original, retried), peer)
        self._connections.add(connection)
        self.know(connection, header.destination_cid)
        self.know(connection, connection.engine.host_cid)
        return connection

    def _prove(self, header: QuicHeader, peer: PeerAddress, now: float) -> None:
        connection_id = os.urandom(CONNECTION_ID_BYTES)
        token = self._retry.create_token(
            address=peer,
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=connection_id,
            now=now,
        )
        said = encode_quic_retry(
            version=QuicProtocolVersion.VERSION_1,
            source_cid=connection_id,
            destination_cid=header.source_cid,
            original_destination_cid=header.destination_cid,
            retry_token=token,
        )
        self.send([said], peer)

    def _reset(self, datagram: bytes, peer: PeerAddress) -> None:
        """A client of the process before this one learns at once that it has to begin anew."""
        assert self._rules is not None
        said = quic_engine.stateless_reset(
            self._rules, datagram[1 : 1 + CONNECTION_ID_BYTES], len(datagram), os.urandom
        )
        if said and self._may_answer():
            self.send([said], peer)

    def _may_answer(self) -> bool:
        self._resets_left -= 1
        return self._resets_left >= 0

    def touch(self, connection: Connection) -> None:
        self._touched.add(connection)
        if not self._is_settling_soon:
            self._is_settling_soon = True
            asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self) -> None:
        self._is_settling_soon = False
        touched, self._touched = self._touched, set()
        now = time.monotonic()
        for connection in touched:
            connection.settle(now)

    # ------------------------------------------------------------------------------------------------ who is there

    def know(self, connection: Connection, connection_id: bytes) -> None:
        self._by_id[connection_id] = connection
        connection.ids.add(connection_id)

    def unknow(self, connection: Connection, connection_id: bytes) -> None:
        connection.ids.discard(connection_id)
        self._by_id.pop(connection_id, None)

    def welcome(self, connection: Connection) -> bool:
        if not self._limit.allows_one_more(self._established):
            return False
        if connection.is_http and self._door is not None:
            if not self._door.has_room():
                return False
            self._door.over_quic += 1
        self._established += 1
        connection.is_counted = True
        return True

    def count_connections(self) -> int:
        return self._established

    def farewell(self, connection: Connection) -> None:
        for connection_id in connection.ids:
            self._by_id.pop(connection_id, None)
        self._connections.discard(connection)
        if connection.is_counted:
            connection.is_counted = False
            self._established -= 1
            if connection.is_http and self._door is not None:
                self._door.over_quic -= 1
        if self._empty is not None and not self._connections and not self._empty.done():
            self._empty.set_result(None)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._resets_left = RESETS_A_SECOND
            self.close_overdue(time.monotonic())

    def close_overdue(self, now: float) -> None:
        for connection in list(self._connections):
            connection.look(now, self._config.keep_alive_interval)
        self.budgets.reclaim(now)

    async def stop(self, seconds_max: float) -> None:
        """Meets nobody any more, lets the commands in hand finish, closes all connections."""
        self._stopping = True
        for connection in list(self._connections):
            connection.end()
        if self._connections:
            self._empty = asyncio.get_running_loop().create_future()
            done, _ = await asyncio.wait([self._empty], timeout=seconds_max)
            if not done:
                _log.warning("%d connections did not end in time and are cut", len(self._connections))
                for connection in list(self._connections):
                    connection.cut("it did not end in time")
                self._settle()
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._datagrams is not None:
            await self._datagrams.flush(FLUSH_SECONDS)
            self._datagrams.close()
            self._datagrams = None
