"""Both ends of a QUIC connection without a network: a path that loses, repeats and delays datagrams, and its clock."""

from __future__ import annotations

import heapq
import random
import ssl
from collections.abc import Callable
from typing import Any

from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from whippet.bench.quic_unpaced import unpace
from whippet.transports.certificates import self_signed
from whippet.transports.datagrams import PeerAddress
from whippet.transports.quic_configuration import Rules, configuration
from whippet.transports.quic_engine import Engine
from whippet.transports.quic_receiving import ReceivingConnection

SIZE = 1452
CLIENT, SERVER = ("127.0.0.1", 40_000), ("127.0.0.1", 3_000)


def made_up_rules() -> Rules:
    settings = configuration(60.0, 1 << 20, 1 << 16)
    self_signed().put_on(settings)
    return Rules(settings, SIZE, SIZE, 1 << 20, 1 << 16, b"key", ())


class Path:
    """Datagrams of both ends, of which some are lost, some arrive twice, and some late."""

    def __init__(self, rules: Rules, seed: int, loss: float, client: type[QuicConnection] = QuicConnection) -> None:
        self.random, self.loss, self.now = random.Random(seed), loss, 1.0
        settings = QuicConfiguration(verify_mode=ssl.CERT_NONE, server_name="localhost", max_datagram_size=SIZE)
        self.client: Any = client(configuration=settings)
        self.client_address = CLIENT
        unpace(self.client)
        self.server = Engine(rules, self.client.original_destination_connection_id, None)
        self.client.connect(SERVER, now=self.now)
        self.under_way: list[tuple[float, int, QuicConnection, bytes, PeerAddress]] = []
        self.sent = 0

    def carry(self, end: QuicConnection, other: QuicConnection, back: PeerAddress) -> None:
        if not end._network_paths:
            # No client has connected yet.
            return
        for datagram, _ in end.datagrams_to_send(self.now):
            for _ in range(2 if self.random.random() < self.loss / 4 else 1):
                self.sent += 1
                if self.random.random() >= self.loss:
                    arrives = self.now + self.random.choice((0.001, 0.001, 0.004))
                    heapq.heappush(self.under_way, (arrives, self.sent, other, datagram, back))

    def arrive(self) -> None:
        """Delivers what is due; what arrives together at one end, and from one address, is one run."""
        while self.under_way and self.under_way[0][0] <= self.now:
            _, _, end, datagram, back = heapq.heappop(self.under_way)
            run = [datagram]
            while self.under_way and self.under_way[0][0] <= self.now and self.under_way[0][2::2] == (end, back):
                run.append(heapq.heappop(self.under_way)[3])
            if isinstance(end, ReceivingConnection):
                end.receive_datagrams(run, back, self.now)
            else:
                for each in run:
                    end.receive_datagram(each, back, self.now)

    def step(self, hear: Callable[[QuicConnection, events.QuicEvent], None]) -> None:
        """Advances to the next event on either side."""
        self.carry(self.client, self.server, self.client_address)
        self.carry(self.server, self.client, SERVER)
        timers = [at for end in (self.client, self.server) if (at := end.get_timer()) is not None]
        # Timers are always slightly late.
        self.now = max(min([*timers, *(each[0] for each in self.under_way[:1])]), self.now) + 1e-6
        self.arrive()
        for end in (self.client, self.server):
            if (at := end.get_timer()) is not None and at <= self.now:
                end.handle_timer(self.now)
            while (event := end.next_event()) is not None:
                hear(end, event)

    # ------------------------------------------------------------------------------------------- without loss or delay

    def settle(self) -> None:
        """Advances until both ends have connected and have nothing more to send."""
        ends = self.client, self.server
        while True:
            self.step(lambda end, event: None)
            if all(end._handshake_confirmed for end in ends) and not self.under_way:
                at = min(end.get_timer() or self.now for end in ends)
                if at > self.now + 1.0:
                    return

    def deliver_to_server(self) -> None:
        self._deliver(self.client, self.server, self.client_address)

    def deliver_to_client(self) -> None:
        self._deliver(self.server, self.client, SERVER)

    def _deliver(self, end: QuicConnection, other: Any, back: PeerAddress) -> None:
        datagrams = [datagram for datagram, _ in end.datagrams_to_send(self.now)]
        if datagrams:
            other.receive_datagrams(datagrams, back, self.now)
