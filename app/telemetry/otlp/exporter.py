"""Exports what it is given, on a thread: the event loop only appends to bounded queues.

Spans and lines go every second, metrics whenever they are sampled. While a collector cannot be reached, the newest wait
and are sent again, and older ones are dropped and counted; nothing else of the server notices.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from whippet.app.config.error import ConfigError
from whippet.app.telemetry.otlp.failure import SendFailed
from whippet.app.telemetry.otlp.records import Attributes, LogLine, Span

if TYPE_CHECKING:
    from whippet.app.config.schema import Telemetry
    from whippet.app.telemetry.metrics import Sampled

_log = logging.getLogger(__name__)

WAITING_MAX = 10_000
AT_ONCE_MAX = 2_000
PERIOD_S = 1.0
PACKAGES = ("opentelemetry.proto", "grpc")
METHODS = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}


class Sender(Protocol):
    def send(self, content: bytes) -> None: ...
    def close(self) -> None: ...


def require_packages(config: Telemetry) -> None:
    try:
        missing = config.enabled and not all(map(importlib.util.find_spec, PACKAGES))
    except ModuleNotFoundError:
        missing = True
    if missing:
        raise ConfigError(
            "telemetry.enabled needs the extra telemetry: install it with pip install 'whippet-gateway[telemetry]'"
        )


class Signal:
    """One kind of what is exported, and where it goes. Only the thread sends."""

    def __init__(
        self, name: str, endpoint: str, sender: Sender, encode: Callable[[list[Any]], bytes], waiting_max: int
    ) -> None:
        self.lost = 0
        self.waiting: deque[Any] = deque(maxlen=waiting_max)
        self._waiting_max = waiting_max
        self._name = name
        self._endpoint = endpoint
        self._sender = sender
        self._encode = encode
        self._is_failing = False

    def add(self, record: Any) -> None:
        if len(self.waiting) == self._waiting_max:
            self.lost += 1
        self.waiting.append(record)

    def export(self) -> bool:
        """Sends all that waits; returns False if the collector does not take it now."""
        while self.waiting:
            records = [self.waiting.popleft() for _ in range(min(len(self.waiting), AT_ONCE_MAX))]
            try:
                self._sender.send(self._encode(records))
            except SendFailed as failure:
                self._report(failure)
                if not failure.is_repeatable:
                    self.lost += len(records)
                    continue
                room = self._waiting_max - len(self.waiting)
                kept = records[-room:] if room else []
                self.lost += len(records) - len(kept)
                self.waiting.extendleft(reversed(kept))
                return False
            if self._is_failing:
                self._is_failing = False
                _log.info("telemetry: %s takes %s again", self._endpoint, self._name)
        return True

    def _report(self, failure: SendFailed) -> None:
        """Once, until it works again."""
        if not self._is_failing:
            self._is_failing = True
            _log.warning("telemetry: %s does not take %s: %s", self._endpoint, self._name, failure)

    def close(self) -> None:
        self._sender.close()


class Exporter:
    """For the event loop, except `Lines`, which every thread may call. `stop` blocks."""

    def __init__(self, config: Telemetry, about: Attributes) -> None:
        # Only servers that export pay for these imports.
        from whippet.app.telemetry.otlp.messages import Messages  # noqa: PLC0415

        messages = Messages({"service.name": config.service_name, **about}, time.time_ns())
        self.traces = _signal("traces", config.traces.transport, config.traces.endpoint, messages.of_spans)
        self.logs = _signal("logs", config.logs.transport, config.logs.endpoint, messages.of_lines)
        # Only the latest sample is worth sending.
        self.metrics = _signal(
            "metrics",
            config.metrics.transport,
            config.metrics.endpoint,
            lambda found: messages.of_metrics(*found[-1]),
            waiting_max=1,
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._handler = Lines(self.logs)

    def start(self) -> None:
        logging.getLogger().addHandler(self._handler)
        self._thread.start()

    def stop(self) -> None:
        """Sends what waits, once more."""
        logging.getLogger().removeHandler(self._handler)
        self._stopping.set()
        self._thread.join()

    @property
    def lost(self) -> dict[str, int]:
        return {"traces": self.traces.lost, "logs": self.logs.lost, "metrics": self.metrics.lost}

    def add_span(self, span: Span) -> None:
        self.traces.add(span)

    def add_metrics(self, sampled: Sampled) -> None:
        self.metrics.add((sampled, time.time_ns()))

    def _run(self) -> None:
        signals = self.traces, self.logs, self.metrics
        while not self._stopping.wait(PERIOD_S):
            self._export(signals)
        self._export(signals)
        for signal in signals:
            signal.close()

    def _export(self, signals: tuple[Signal, ...]) -> None:
        for signal in signals:
            try:
                signal.export()
            except Exception:  # noqa: BLE001 -- a defect; the others and the next round go on
                _log.exception("telemetry failed because of a defect")


def _signal(
    name: str,
    transport: str,
    endpoint: str,
    encode: Callable[[list[Any]], bytes],
    waiting_max: int = WAITING_MAX,
) -> Signal:
    sender: Sender
    if transport == "grpc":
        from whippet.app.telemetry.otlp.grpc_sender import GrpcSender  # noqa: PLC0415

        sender = GrpcSender(endpoint, METHODS[name])
    else:
        from whippet.app.telemetry.otlp.http_sender import HttpSender  # noqa: PLC0415

        sender = HttpSender(endpoint)
    return Signal(name, endpoint, sender, encode, waiting_max)


class Lines(logging.Handler):
    """Takes the lines of the log."""

    def __init__(self, signal: Signal) -> None:
        super().__init__()
        self._signal = signal

    def emit(self, record: logging.LogRecord) -> None:
        attributes = {key: value for key, value in getattr(record, "fields", {}).items() if value is not None}
        if record.exc_info:
            attributes["exception.stacktrace"] = logging.Formatter().formatException(record.exc_info)
        time_ns = int(record.created * 1e9)
        self._signal.add(LogLine(time_ns, record.levelno, record.name, record.getMessage(), attributes))
