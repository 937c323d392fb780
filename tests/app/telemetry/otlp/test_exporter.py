"""What is exported arrives, over both transports; a collector that cannot take it costs no time and little memory."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator

import pytest

from tests.app.telemetry.support.collector import Collector, attributes_of, over_grpc, over_http
from whippet.app.config import ConfigError
from whippet.app.config.schema import Telemetry, TelemetryLogs, TelemetryMetrics, TelemetryTraces
from whippet.app.telemetry.metrics import Series, Timings
from whippet.app.telemetry.otlp import exporter
from whippet.app.telemetry.otlp.exporter import Exporter
from whippet.app.telemetry.otlp.records import Span


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "PERIOD_S", 0.01)


@pytest.fixture(params=[over_http, over_grpc])
def collector(request: pytest.FixtureRequest) -> Iterator[Collector]:
    with request.param() as made:
        yield made


def exporter_to(collector: Collector) -> Exporter:
    base, transport = collector.endpoint, collector.transport
    config = Telemetry(
        enabled=True,
        service_name="mine",
        logs=TelemetryLogs(transport=transport, endpoint=f"{base}/v1/logs"),
        traces=TelemetryTraces(transport=transport, endpoint=f"{base}/v1/traces"),
        metrics=TelemetryMetrics(transport=transport, endpoint=f"{base}/v1/metrics"),
    )
    return Exporter(config, {"service.version": "1"})


def span(number: int) -> Span:
    return Span(f"span {number}", b"t" * 16, b"s" * 8, b"", 1, 2, {"a": "b", "n": 1, "f": 0.5, "x": True}, None)


def test_spans_lines_and_metrics_arrive(collector: Collector) -> None:
    made = exporter_to(collector)
    made.start()
    made.add_span(span(1)._replace(error="why", parent_id=b"p" * 8))
    record = logging.LogRecord("storage", logging.WARNING, "", 0, "slow %s", ("\ud800",), None)
    record.fields = {"user": "a", "nothing": None}
    # Not by a logger: pytest cannot report what is half a character.
    made._handler.handle(record)
    made.add_metrics(
        [
            Series("counts", "what", [(("x",), 3.0)], ("label",), counts=True),
            Series("gauge", "what", [((), 4.0)]),
            Timings("seconds", "what", [(("y",), [1] * 9, 2.5)], ("label",)),
        ]
    )
    made.stop()
    (found,) = collector.spans
    assert (found.name, found.status.message, found.parent_span_id) == ("span 1", "why", b"p" * 8)
    assert attributes_of(found) == {"a": "b", "n": 1, "f": 0.5, "x": True}
    line = next(each for each in collector.lines if attributes_of(each)["logger"] == "storage")
    assert (line.body.string_value, line.severity_text) == ("slow \\ud800", "warning")
    assert attributes_of(line)["user"] == "a"
    metrics = collector.metrics
    assert metrics["counts"].sum.data_points[0].as_double == 3
    assert attributes_of(metrics["counts"].sum.data_points[0]) == {"label": "x"}
    assert metrics["gauge"].gauge.data_points[0].as_double == 4
    assert (metrics["seconds"].histogram.data_points[0].count, metrics["seconds"].unit) == (9, "s")
    assert collector.services == {"mine"}


def test_what_is_refused_for_now_is_sent_again(collector: Collector) -> None:
    collector.refusals = 2
    made = exporter_to(collector)
    made.start()
    made.add_span(span(1))
    collector.wait(lambda: bool(collector.spans))
    made.stop()
    assert [each.name for each in collector.spans] == ["span 1"]
    assert made.lost["traces"] == 0


def test_without_a_collector_the_newest_wait_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(exporter, "WAITING_MAX", 5)
    with over_http() as gone:
        pass
    made = exporter_to(gone)
    made.traces = exporter._signal("traces", "http", gone.endpoint, lambda _: b"", 5)
    made.start()
    for number in range(8):
        made.add_span(span(number))
    made.stop()
    assert [each.name for each in made.traces.waiting] == [f"span {number}" for number in range(3, 8)]
    assert made.lost["traces"] == 3
    said = [record.getMessage() for record in caplog.records if "does not take traces" in record.getMessage()]
    assert len(said) == 1


def test_without_the_extra_the_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter.require_packages(Telemetry(enabled=True))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    exporter.require_packages(Telemetry())
    with pytest.raises(ConfigError, match="needs the extra telemetry"):
        exporter.require_packages(Telemetry(enabled=True))
