"""aioquic without its pacing, for the load generator and the yardstick for QUIC.

aioquic's pacer lets fewer and fewer datagrams through per timer the longer a fast connection lasts. With it, the
figures would measure timers instead of the receiver.
"""

from __future__ import annotations

from aioquic.quic.connection import QuicConnection
from aioquic.quic.recovery import QuicPacketPacer


class Unpaced(QuicPacketPacer):
    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        """Sets no rate: whatever fits into the congestion window is sent at once."""


def unpace(quic: QuicConnection) -> None:
    """Must be called before anything is sent."""
    quic._loss._pacer = Unpaced(max_datagram_size=quic._max_datagram_size)
