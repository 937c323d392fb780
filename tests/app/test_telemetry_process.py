"""A server that exports: a trace leads from the producer through the server to the consumer, over HTTP and over TCP."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.support.process import Gateway, starting
from tests.app.telemetry.support.collector import Collector, attributes_of, over_grpc, over_http
from whippet.client import Message, connect

ROOT = {"IGGY_ROOT_USERNAME": "iggy", "IGGY_ROOT_PASSWORD": "a-long-password"}
LOGIN = {"username": "iggy", "password": ROOT["IGGY_ROOT_PASSWORD"]}
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
CONTEXT = f"00-{TRACE}-{SPAN}-01"
UNSAMPLED = f"00-{TRACE}-{SPAN}-00"
HEADERS = b"\2\x0b\0\0\0traceparent\2\x37\0\0\0" + CONTEXT.encode()


def settings(collector: Collector) -> dict[str, str]:
    return {
        "IGGY_TELEMETRY_ENABLED": "true",
        "IGGY_TELEMETRY_SERVICE_NAME": "orders",
        "IGGY_TELEMETRY_LOGS_TRANSPORT": collector.transport,
        "IGGY_TELEMETRY_LOGS_ENDPOINT": f"{collector.endpoint}/v1/logs",
        "IGGY_TELEMETRY_TRACES_TRANSPORT": collector.transport,
        "IGGY_TELEMETRY_TRACES_ENDPOINT": f"{collector.endpoint}/v1/traces",
        "IGGY_TELEMETRY_METRICS_TRANSPORT": collector.transport,
        "IGGY_TELEMETRY_METRICS_ENDPOINT": f"{collector.endpoint}/v1/metrics",
        "IGGY_TELEMETRY_METRICS_INTERVAL": "100 ms",
    }


@pytest.mark.parametrize("over", [over_http, over_grpc])
async def test_a_trace_goes_from_producers_through_the_server_to_consumers(
    over: Callable[[], AbstractContextManager[Collector]], tmp_path: Path
) -> None:
    with over() as collector, starting(tmp_path / "data") as start:
        gateway: Gateway = start(**ROOT, **settings(collector))
        body = {"partitioning": {"kind": "balanced", "value": ""}, "messages": [{"payload": "aGk="}]}
        place = "/streams/s/topics/t"
        async with httpx.AsyncClient(base_url=f"http://{gateway.address()}", trust_env=False) as http:
            token = (await http.post("/users/login", json=LOGIN)).json()["access_token"]["token"]
            http.headers["authorization"] = f"Bearer {token}"
            (await http.post("/streams", json={"name": "s"})).raise_for_status()
            (await http.post("/streams/s/topics", json={"name": "t", "partitions_count": 1})).raise_for_status()
            for headers in ({"traceparent": CONTEXT}, {"traceparent": UNSAMPLED}, {"traceparent": "nonsense"}, {}):
                (await http.post(f"{place}/messages", json=body, headers=headers)).raise_for_status()
            polled = (await http.get(f"{place}/messages?count=10")).raise_for_status().json()["messages"]
        values = [
            base64.b64decode(entry["value"]["value"]).decode()
            for message in polled
            for entry in message["user_headers"] or ()
        ]
        assert values == [CONTEXT, UNSAMPLED]
        tcp = gateway.line(r"tcp://(\S+:\d+)").group(1)
        async with await connect(f"iggy://iggy:{LOGIN['password']}@{tcp}") as client:
            await client.send_messages("s", "t", [Message(b"over tcp", user_headers=HEADERS)])
        collector.wait(lambda: "whippet_command_seconds" in collector.metrics and len(sends(collector)) == 4)
        gateway.signal(signal.SIGTERM)
        assert gateway.end() == 0
        traced = [span for span in sends(collector) if span.trace_id.hex() == TRACE]
        assert [span.parent_span_id.hex() for span in traced] == [SPAN, SPAN]
        about = attributes_of(traced[0])
        assert (about["messaging.destination.name"], about["user"], about["outcome"]) == ("s/t", "iggy", "done")
        assert [attributes_of(span)["transport"] for span in traced] == ["http", "tcp"]
        assert collector.services == {"orders"}
        assert any("create_stream" in line.body.string_value for line in collector.lines)
        assert LOGIN["password"] not in str(collector.requests)
        assert token not in str(collector.requests)


def sends(collector: Collector) -> list[Any]:
    return [span for span in collector.spans if span.name == "send_messages"]


def test_a_server_without_telemetry_imports_nothing_of_it(tmp_path: Path) -> None:
    probe = (
        "import atexit, sys; names = ('opentelemetry', 'grpc'); "
        "atexit.register(lambda: print([name for name in sys.modules if name.startswith(names)])); "
    )
    with starting(tmp_path / "data") as start:
        gateway = start(probe)
        gateway.ping()
        gateway.signal(signal.SIGTERM)
        assert gateway.end() == 0
        assert json.loads(gateway.out[-1]) == []
