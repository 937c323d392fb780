"""Sends requests of OTLP over gRPC. The path of the endpoint has no meaning here: the method says what is sent."""

from __future__ import annotations

from urllib.parse import urlsplit

import grpc

from whippet.app.telemetry.otlp.failure import SendFailed

TIMEOUT_S = 10.0
REFUSED = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)


class GrpcSender:
    def __init__(self, endpoint: str, method: str) -> None:
        found = urlsplit(endpoint)
        address = f"{found.hostname}:{found.port or 4317}" if ":" not in (found.hostname or "") else found.netloc
        is_secure = found.scheme == "https"
        self._channel = (
            grpc.secure_channel(address, grpc.ssl_channel_credentials())
            if is_secure
            else grpc.insecure_channel(address)
        )
        self._call = self._channel.unary_unary(method)

    def send(self, content: bytes) -> None:
        """Raises SendFailed."""
        try:
            self._call(content, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            code = error.code()
            reason = f"{code.name.lower()}: {error.details()}"
            raise SendFailed(reason, is_repeatable=code not in REFUSED) from error

    def close(self) -> None:
        self._channel.close()
