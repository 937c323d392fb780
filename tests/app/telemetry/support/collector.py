"""A collector of OpenTelemetry: receives over gRPC or HTTP, with the official definitions, what a server exports."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.support.running import HANGS_S

REQUESTS: dict[str, Any] = {
    "/v1/traces": trace_service_pb2.ExportTraceServiceRequest,
    "/v1/logs": logs_service_pb2.ExportLogsServiceRequest,
    "/v1/metrics": metrics_service_pb2.ExportMetricsServiceRequest,
}


class Collector:
    def __init__(self, transport: Literal["grpc", "http"]) -> None:
        self.transport = transport
        self.requests: list[Any] = []
        self.refusals = 0
        """So many requests are refused as long as it cannot take them."""
        self._changed = threading.Condition()
        self.endpoint = ""

    def take(self, request: Any) -> bool:
        with self._changed:
            self._changed.notify_all()
            if self.refusals:
                self.refusals -= 1
                return False
            self.requests.append(request)
            return True

    def wait(self, holds: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(holds, HANGS_S)

    @property
    def spans(self) -> list[Any]:
        found = [each for request in self.requests for each in getattr(request, "resource_spans", ())]
        return [span for each in found for scope in each.scope_spans for span in scope.spans]

    @property
    def lines(self) -> list[Any]:
        found = [each for request in self.requests for each in getattr(request, "resource_logs", ())]
        return [line for each in found for scope in each.scope_logs for line in scope.log_records]

    @property
    def metrics(self) -> dict[str, Any]:
        found = [each for request in self.requests for each in getattr(request, "resource_metrics", ())]
        return {metric.name: metric for each in found for scope in each.scope_metrics for metric in scope.metrics}

    @property
    def services(self) -> set[str]:
        fields = ("resource_spans", "resource_logs", "resource_metrics")
        found = [each for request in self.requests for name in fields for each in getattr(request, name, ())]
        return {attributes_of(each.resource)["service.name"] for each in found}


def attributes_of(described: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in described.attributes}


@contextlib.contextmanager
def over_http() -> Iterator[Collector]:
    collector = Collector("http")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.headers["content-type"] == "application/x-protobuf"
            taken = collector.take(REQUESTS[self.path].FromString(body))
            self.send_response(200 if taken else 503)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def over_grpc() -> Iterator[Collector]:
    collector = Collector("grpc")

    def taking(response: Callable[[], Any]) -> Any:
        class Service:
            def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
                if not collector.take(request):
                    context.abort(grpc.StatusCode.UNAVAILABLE, "try again")
                return response()

        return Service()

    add_trace: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add_logs: Any = logs_service_pb2_grpc.add_LogsServiceServicer_to_server
    add_metrics: Any = metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server
    server = grpc.server(ThreadPoolExecutor(2))
    add_trace(taking(trace_service_pb2.ExportTraceServiceResponse), server)
    add_logs(taking(logs_service_pb2.ExportLogsServiceResponse), server)
    add_metrics(taking(metrics_service_pb2.ExportMetricsServiceResponse), server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()
