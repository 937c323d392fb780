"""aioquic without its pacing, for the load and the yardstick of the benchmark over QUIC.

aioquic's pacer lets through fewer and fewer datagrams a timer the longer a fast connection lasts. With it a yardstick
says how long somebody has waited for timers, and a load how busy it was with them: neither is about a receiver.
"""

from __future__ import annotations

from aioquic.quic.connection import QuicConnection
from aioquic.quic.recovery import QuicPacketPacer


class Unpaced(QuicPacketPacer):
    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        """None: what the window has room for goes out at once."""


def unpace(quic: QuicConnection) -> None:
    """Before it sends anything."""
    quic._loss._pacer = Unpaced(max_datagram_size=quic._max_datagram_size)
