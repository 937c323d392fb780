"""One QUIC connection: datagrams, events, the timer and the end of one engine.

The application protocol of the connection, agreed on in the handshake, turns events into requests: quic_requests.py for
the binary protocols, http3.py for HTTP/3.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from aioquic.quic import events
from aioquic.quic.packet import QuicErrorCode, QuicFrameType

from whippet.app.model.sessions import Session, Transport
from whippet.transports.admission.budget import FREE_BYTES, RECLAIMED
from whippet.transports.admission.stall_detector import StallDetector
from whippet.transports.connections import peer_address
from whippet.transports.datagrams import PeerAddress
from whippet.transports.http3 import Http3
from whippet.transports.quic_configuration import HTTP3
from whippet.transports.quic_engine import Engine
from whippet.transports.quic_requests import NO_ERROR, OVERDUE, BinaryProtocol
from whippet.transports.reservations import Reservation

if TYPE_CHECKING:
    from whippet.transports.quic import QuicListener

_log = logging.getLogger(__name__)

LINGER_SECONDS = 2.0
"""How long the last responses may stay unacknowledged; a client that reads its socket only when it sends a request
never acknowledges them."""


class ApplicationProtocol(Protocol):
    """The protocol of a connection: one of the binary protocols, or HTTP/3."""

    DONE_CODE: int
    """The error code that closes a connection after everything was sent."""
    OVERDUE_CODE: int
    """The error code that closes a connection that missed a deadline."""

    def on_event(self, event: events.QuicEvent) -> None: ...

    def on_acknowledged(self) -> None:
        """The client may have acknowledged something."""

    def overdue(self, now: float) -> str | None: ...

    def drain(self) -> None:
        """Accepts no more requests; those in progress are answered."""

    @property
    def is_idle(self) -> bool:
        """No request is in progress."""

    def close(self) -> None:
        """The connection is gone."""


class Connection:
    """All methods run on the event loop."""

    def __init__(self, listener: QuicListener, engine: Engine, peer: PeerAddress) -> None:
        self.listener = listener
        self.engine = engine
        clock = listener.gateway.clock()
        self.session = Session(Transport.QUIC, peer_address(peer), clock, self.drain, listener.address.host)
        self.ids: set[bytes] = set()
        """The connection ids that its datagrams may carry."""
        self.is_established = False
        self.is_http = False
        self.is_counted = False
        """The listener counts it as a connection that has completed its handshake."""
        self.is_draining = False
        self.has_responses = False
        """There are responses that can be sent now."""
        self._expects_response = False
        self._drain_stall = StallDetector()
        self._unacknowledged: Reservation | None = None
        """Holds the bytes that the engine keeps until the client acknowledges them, as of the last check."""
        self._protocol: ApplicationProtocol | None = None
        self._opened_at = self._sent_at = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._is_closed = False

    @property
    def address(self) -> str:
        return self.session.address

    # -------------------------------------------------------------------------------------------------- datagrams, time

    def receive(self, datagrams: Sequence[bytes], peer: PeerAddress, now: float) -> None:
        engine = self.engine
        try:
            engine.receive_datagrams(datagrams, peer, now)
            while (event := engine.next_event()) is not None:
                self._on_event(event)
        except Exception:  # noqa: BLE001 -- a datagram may end its own connection, but no other
            _log.exception("%s: a datagram failed with an unexpected error", self.session.address)
            self.discard()

    def flush(self, now: float) -> None:
        """Handles pending events, sends everything that is ready, and sets the timer."""
        if self._is_closed:
            return
        try:
            self._flush(now)
        except Exception:  # noqa: BLE001 -- as above
            _log.exception("%s: the connection failed with an unexpected error", self.session.address)
            self.discard()

    def _flush(self, now: float) -> None:
        engine = self.engine
        while (event := engine.next_event()) is not None:
            self._on_event(event)
        if self._expects_response:
            self._expects_response = False
            if not self.has_responses:
                # What could be sent now goes out together with the response.
                self.schedule_flush()
                return
        protocol = self._protocol
        if protocol is not None and not self._is_closed:
            protocol.on_acknowledged()
            if self.is_draining and protocol.is_idle and not engine.unacknowledged_bytes:
                # What is still to be sent goes first.
                self._transmit(now)
                engine.close(protocol.DONE_CODE)
        self._transmit(now)
        if engine.is_over:
            self.discard()
            return
        if not self._is_closed:
            self._set_timer(now)

    def _transmit(self, now: float) -> None:
        self.has_responses = False
        datagrams: list[bytes] = []
        to: PeerAddress | None = None
        send = self.listener.send
        for datagram, peer in self.engine.datagrams_to_send(now):
            if peer != to and datagrams:
                assert to is not None
                send(datagrams, to)
                datagrams = []
            to = peer
            datagrams.append(datagram)
        if datagrams and to is not None:
            send(datagrams, to)
            self._sent_at = now

    def _set_timer(self, now: float) -> None:
        """Keeps a timer that is too early, which is noticed when it fires: most deadlines are postponed again and
        again."""
        at = self.engine.get_timer()
        if self._timer is not None:
            if at is not None and self._timer_at <= at:
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer_at = at
            self._timer = asyncio.get_running_loop().call_later(max(at - now, 0.001), self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now = time.monotonic()
        at = self.engine.get_timer()
        if at is not None and at <= now:
            try:
                self.engine.handle_timer(now)
            except Exception:  # noqa: BLE001 -- as above
                _log.exception("%s: a timer failed with an unexpected error", self.session.address)
                self.discard()
                return
            self.flush(now)
        elif not self._is_closed:
            self._set_timer(now)

    def check_deadlines(self, now: float, silence_max: float) -> None:
        """Called at intervals: closes a connection that missed a deadline, and pings one that was sent nothing for
        `silence_max` seconds (0: never)."""
        try:
            self._count_unacknowledged()
            reason = self.overdue(now)
        except Exception:  # noqa: BLE001 -- as above
            _log.exception("%s: checking its deadlines failed with an unexpected error", self.session.address)
            self.discard()
            return
        if reason is not None:
            _log.info("%s: closed, because %s", self.session.address, reason)
            self.give_up(reason)
        elif self.is_established and silence_max and now - self._sent_at > silence_max:
            self.engine.send_ping(0)
            self.schedule_flush()

    def _count_unacknowledged(self) -> None:
        """Bytes that the client has not acknowledged count against the budget of responses."""
        unacknowledged, account = self.engine.unacknowledged_bytes, self.listener.budgets.responses_to(self.session)
        if self._unacknowledged is None:
            if unacknowledged <= FREE_BYTES:
                return
            self._unacknowledged = Reservation(account, partial(self.give_up, RECLAIMED))
        self._unacknowledged.claim.move(account)
        self._unacknowledged.hold(unacknowledged)

    # ------------------------------------------------------------------------------------------------------- events

    def _on_event(self, event: events.QuicEvent) -> None:
        if type(event) is events.StreamDataReceived and self._protocol is not None:
            self._protocol.on_event(event)
        elif isinstance(event, events.ConnectionIdIssued):
            self.listener.add_id(self, event.connection_id)
        elif isinstance(event, events.ConnectionIdRetired):
            self.listener.remove_id(self, event.connection_id)
        elif isinstance(event, events.HandshakeCompleted):
            self.is_established = True
            self.is_http = event.alpn_protocol == HTTP3
            if self.listener.admit(self):
                self._start_protocol()
            else:
                reason = "too many connections"
                self.engine.close(QuicErrorCode.CONNECTION_REFUSED, QuicFrameType.PADDING, reason)
        elif self._protocol is not None:
            self._protocol.on_event(event)

    def _start_protocol(self) -> None:
        application = self.listener.application
        if self.is_http and application is not None:
            self._protocol = Http3(self, application)
        else:
            self._protocol = BinaryProtocol(self)
        if self.is_draining:
            self.drain()

    def expect_response(self) -> None:
        """A request is in progress that may finish in the next iteration of the event loop."""
        self._expects_response = True

    def schedule_flush(self) -> None:
        self.listener.schedule_flush(self)

    # --------------------------------------------------------------------------------------------------------- the end

    def overdue(self, now: float) -> str | None:
        """Returns the reason to close the connection, or None."""
        protocol, engine = self._protocol, self.engine
        if protocol is not None and self.is_draining and protocol.is_idle:
            unacknowledged, acknowledged = engine.unacknowledged_bytes, engine.acknowledged_bytes
            is_gone = self._drain_stall.has_stalled(
                now, unacknowledged, LINGER_SECONDS, delivered=acknowledged, enough=1
            )
            return "it does not receive the last responses" if is_gone else None
        if protocol is not None:
            return protocol.overdue(now)
        if now - self._opened_at > self.listener.limits.silence_before_login:
            return "its handshake takes too long"
        return None

    def drain(self) -> None:
        """Accepts no more requests; the connection closes when those in progress are answered."""
        self.is_draining = True
        if self._protocol is not None:
            self._protocol.drain()
        else:
            self.close_with(NO_ERROR, "")
        self.schedule_flush()

    def give_up(self, reason: str) -> None:
        """Closes a connection that missed a deadline, or whose memory others need."""
        self.close_with(OVERDUE if self._protocol is None else self._protocol.OVERDUE_CODE, reason)

    def abort(self) -> None:
        self.give_up("it did not end in time")

    def close_with(self, code: int, reason: str) -> None:
        if not self._is_closed:
            self.engine.close(code, reason_phrase=reason)
            self.schedule_flush()

    def discard(self) -> None:
        """Forgets a connection that is over, or that has failed, without sending anything."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unacknowledged is not None:
            self._unacknowledged.close()
        self.listener.remove(self)
        if self._protocol is not None:
            self._protocol.close()
            self._protocol = None
