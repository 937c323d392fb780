"""Settings that all connections of a QUIC listener share: transport parameters, ALPN, and stateless resets.

aioquic insists on ALPN once it is given any protocol, but official clients offer none; `Handshake` serves both.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass

from aioquic import tls
from aioquic._buffer import Buffer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import QuicProtocolVersion

from whippet.transports.quic_path import DATAGRAM_BYTES_MIN

HTTP3 = "h3"
NO_IDLE_TIMEOUT = 10 * 365 * 86_400.0
"""An idle timeout in seconds that no connection reaches."""
CONNECTION_ID_BYTES = 8
UNAUTHENTICATED_STREAMS = 8
"""How many streams a client may have open before its login. Official clients have one."""
UNIDIRECTIONAL_STREAMS = 8
"""HTTP/3 needs three; the binary protocols none."""
RESET_TOKEN_BYTES = 16
RESET_BYTES_MIN, RESET_BYTES_MAX = 5 + RESET_TOKEN_BYTES, 43
HANDSHAKE_BYTES_MAX = 32 << 10
"""The largest message of a handshake; aioquic collects all of it before it looks at it."""


@dataclass(frozen=True)
class Rules:
    """What all connections of a listener have in common."""

    configuration: QuicConfiguration
    initial_datagram_bytes: int
    datagram_bytes_max: int
    receive_window: int
    stream_receive_window: int
    reset_key: bytes
    protocols: tuple[str, ...]
    """The protocols that clients which use ALPN may choose from."""

    def reset_token(self, connection_id: bytes) -> bytes:
        return hmac.digest(self.reset_key, connection_id, hashlib.sha256)[:RESET_TOKEN_BYTES]


def configuration(idle_seconds: float, receive_window: int, stream_receive_window: int) -> QuicConfiguration:
    """Returns aioquic's configuration without a certificate, which `certificates.put_on` adds."""
    return QuicConfiguration(
        is_client=False,
        connection_id_length=CONNECTION_ID_BYTES,
        idle_timeout=idle_seconds,
        max_data=receive_window,
        max_stream_data=stream_receive_window,
        max_datagram_size=DATAGRAM_BYTES_MIN,
        supported_versions=[QuicProtocolVersion.VERSION_1],
    )


class Handshake(tls.Context):
    """Accepts clients that offer no ALPN, as official clients do; a client that offers some must offer one of ours."""

    protocols: tuple[str, ...]

    def handle_message(self, input_data: bytes, output_buf: dict[tls.Epoch, Buffer]) -> None:
        if len(self._receive_buffer) + len(input_data) > HANDSHAKE_BYTES_MAX:
            raise tls.AlertDecodeError("a message of the handshake is too large")
        super().handle_message(input_data, output_buf)

    def _server_handle_hello(self, input_buf: Buffer, initial_buf: Buffer, handshake_buf: Buffer) -> None:
        start = input_buf.tell()
        hello = tls.pull_client_hello(input_buf)
        input_buf.seek(start)
        self._alpn_protocols = None if hello.alpn_protocols is None else list(self.protocols)
        super()._server_handle_hello(input_buf, initial_buf, handshake_buf)


def stateless_reset(rules: Rules, connection_id: bytes, received_bytes: int, random: Callable[[int], bytes]) -> bytes:
    """Returns the reset for a datagram of an unknown connection; b"" if the datagram is so small that it may be a reset
    itself."""
    size = min(received_bytes - 1, RESET_BYTES_MAX)
    if size < RESET_BYTES_MIN:
        return b""
    noise = bytearray(random(size - RESET_TOKEN_BYTES))
    noise[0] = 0x40 | noise[0] & 0x3F
    return bytes(noise) + rules.reset_token(connection_id)
