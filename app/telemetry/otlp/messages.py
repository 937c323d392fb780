"""Encodes spans, lines and metrics as requests of OTLP, with the official definitions of the messages."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2

from whippet.app.telemetry.metrics import EXPORTED_BOUNDS, Sampled, Series, Timings
from whippet.app.telemetry.otlp.records import Attributes, LogLine, Span

SEVERITIES = {
    logging.DEBUG: logs_pb2.SEVERITY_NUMBER_DEBUG,
    logging.INFO: logs_pb2.SEVERITY_NUMBER_INFO,
    logging.WARNING: logs_pb2.SEVERITY_NUMBER_WARN,
    logging.ERROR: logs_pb2.SEVERITY_NUMBER_ERROR,
    logging.CRITICAL: logs_pb2.SEVERITY_NUMBER_FATAL,
}
_SCOPE = InstrumentationScope(name="whippet")


class Messages:
    """`about` are the attributes of the server, which every request has."""

    def __init__(self, about: Attributes, started_ns: int) -> None:
        self._resource = Resource(attributes=_pairs(about))
        self._started_ns = started_ns

    def of_spans(self, spans: Sequence[Span]) -> bytes:
        scoped = trace_pb2.ScopeSpans(scope=_SCOPE, spans=map(_span, spans))
        found = trace_pb2.ResourceSpans(resource=self._resource, scope_spans=[scoped])
        encoded: bytes = ExportTraceServiceRequest(resource_spans=[found]).SerializeToString()
        return encoded

    def of_lines(self, lines: Sequence[LogLine]) -> bytes:
        scoped = logs_pb2.ScopeLogs(scope=_SCOPE, log_records=map(_line, lines))
        found = logs_pb2.ResourceLogs(resource=self._resource, scope_logs=[scoped])
        encoded: bytes = ExportLogsServiceRequest(resource_logs=[found]).SerializeToString()
        return encoded

    def of_metrics(self, sampled: Sampled, now_ns: int) -> bytes:
        metrics = [self._metric(each, now_ns) for each in sampled]
        scoped = metrics_pb2.ScopeMetrics(scope=_SCOPE, metrics=metrics)
        found = metrics_pb2.ResourceMetrics(resource=self._resource, scope_metrics=[scoped])
        encoded: bytes = ExportMetricsServiceRequest(resource_metrics=[found]).SerializeToString()
        return encoded

    def _metric(self, each: Series | Timings, now_ns: int) -> metrics_pb2.Metric:
        metric = metrics_pb2.Metric(name=each.name, description=each.help)
        cumulative = metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
        if isinstance(each, Timings):
            metric.unit = "s"
            metric.histogram.aggregation_temporality = cumulative
            for labels, counts, seconds in each.values:
                metric.histogram.data_points.add(
                    attributes=_labels(each.labels, labels),
                    start_time_unix_nano=self._started_ns,
                    time_unix_nano=now_ns,
                    count=sum(counts),
                    sum=seconds,
                    bucket_counts=counts,
                    explicit_bounds=EXPORTED_BOUNDS,
                )
            return metric
        if each.counts:
            metric.sum.aggregation_temporality = cumulative
            metric.sum.is_monotonic = True
        points = metric.sum.data_points if each.counts else metric.gauge.data_points
        for labels, value in each.values:
            points.add(
                attributes=_labels(each.labels, labels),
                start_time_unix_nano=self._started_ns if each.counts else 0,
                time_unix_nano=now_ns,
                as_double=value,
            )
        return metric


def _span(span: Span) -> trace_pb2.Span:
    failed = trace_pb2.Status(code=trace_pb2.Status.STATUS_CODE_ERROR, message=span.error or "")
    return trace_pb2.Span(
        name=span.name,
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_id,
        kind=trace_pb2.Span.SPAN_KIND_SERVER,
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=_pairs(span.attributes),
        status=None if span.error is None else failed,
    )


def _line(line: LogLine) -> logs_pb2.LogRecord:
    return logs_pb2.LogRecord(
        time_unix_nano=line.time_ns,
        observed_time_unix_nano=line.time_ns,
        severity_number=SEVERITIES.get(line.level, logs_pb2.SEVERITY_NUMBER_INFO),
        severity_text=logging.getLevelName(line.level).lower(),
        body=_value(line.text),
        attributes=_pairs({"logger": line.logger, **line.attributes}),
    )


def _labels(names: Sequence[str], values: Sequence[str]) -> list[KeyValue]:
    return _pairs(dict(zip(names, values, strict=True)))


def _pairs(attributes: Attributes) -> list[KeyValue]:
    return [KeyValue(key=key, value=_value(value)) for key, value in attributes.items()]


def _value(value: str | int | float | bool) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    # Half a character cannot be sent.
    return AnyValue(string_value=value.encode(errors="backslashreplace").decode())
