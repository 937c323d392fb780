"""Sends requests of OTLP over HTTP, with the library of Python: clients with a log would log what they export."""

from __future__ import annotations

import http.client
import ssl
from http import HTTPStatus
from urllib.parse import urlsplit

from whippet.app.telemetry.otlp.failure import SendFailed

TIMEOUT_S = 10.0
REPEATABLE = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)


class HttpSender:
    def __init__(self, endpoint: str) -> None:
        found = urlsplit(endpoint)
        self._host, self._port, self._path = found.hostname or "", found.port, found.path or "/"
        self._is_secure = found.scheme == "https"

    def send(self, content: bytes) -> None:
        """Raises SendFailed."""
        connection = self._connection()
        try:
            connection.request("POST", self._path, content, {"content-type": "application/x-protobuf"})
            response = connection.getresponse()
            response.read(1 << 20)
        except (OSError, http.client.HTTPException) as error:
            raise SendFailed(str(error) or type(error).__name__, is_repeatable=True) from error
        finally:
            connection.close()
        if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            raise SendFailed(f"status {response.status}", is_repeatable=response.status in REPEATABLE)

    def _connection(self) -> http.client.HTTPConnection:
        if self._is_secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_S, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)

    def close(self) -> None:
        """There is nothing open between two requests."""
