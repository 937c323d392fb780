"""A gateway whose messages are in Kafka, as its users reach it: over HTTP, and with the official SDK over TCP."""

from __future__ import annotations

import base64
import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.support.process import DEADLINE_S, Gateway, starting
from tests.sdk.support import environments
from tests.sdk.support.program import Sdk
from tests.sdk.support.server import Server
from tests.storage.kafka.support.broker import Broker, free_port
from tests.storage.kafka.support.gateway import on

MESSAGES = "/streams/shop/topics/orders/messages"
IT_WAITS = "The server is not ready; it is recovering: waiting for the brokers of Kafka"
OFFSETS = "/streams/shop/topics/orders/consumer-offsets"


@contextlib.contextmanager
def log_in(gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{gateway.address()}", trust_env=False, timeout=DEADLINE_S) as client:
        found = client.post("/users/login", json={"username": "root", "password": "secret"}).raise_for_status().json()
        client.headers["authorization"] = f"Bearer {found['access_token']['token']}"
        yield client


def send(client: httpx.Client, *texts: str) -> httpx.Response:
    messages = [{"payload": base64.b64encode(text.encode()).decode()} for text in texts]
    body = {"partitioning": {"kind": "partition_id", "value": "AAAAAA=="}, "messages": messages}
    return client.post(MESSAGES, json=body)


def poll(client: httpx.Client, kind: str = "offset", value: object = 0, count: int = 100, **more: object) -> list[str]:
    query: dict[str, Any] = {"consumer_id": 1, "partition_id": 0, "kind": kind, "value": value, "count": count, **more}
    found = client.get(MESSAGES, params=query).raise_for_status().json()
    return [base64.b64decode(message["payload"]).decode() for message in found["messages"]]


@pytest.fixture(scope="module")
def gateway(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with starting(tmp_path_factory.mktemp("gateway") / "data") as start:
        running = start(**on(broker.server, "process."))
        with log_in(running) as client:
            client.post("/streams", json={"name": "shop"}).raise_for_status()
            topic = {"name": "orders", "partitions_count": 2}
            client.post("/streams/shop/topics", json=topic).raise_for_status()
            send(client, *map(str, range(10))).raise_for_status()
        yield running
        assert "Traceback" not in str(running)


@pytest.fixture
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    with log_in(gateway) as client:
        yield client


def test_messages_are_polled_by_every_strategy(client: httpx.Client) -> None:
    everything = list(map(str, range(10)))
    assert poll(client) == poll(client, "first") == everything
    assert poll(client, value=7) == everything[7:]
    assert poll(client, "last", count=3) == everything[-3:]
    assert poll(client, "timestamp", 0, count=4) == everything[:4]
    assert poll(client, "timestamp", 2**53) == []
    assert poll(client, "next", count=3, auto_commit=True) == everything[:3]
    assert poll(client, "next", count=3) == everything[3:6]
    assert client.get(OFFSETS, params={"consumer_id": 1, "partition_id": 0}).json()["stored_offset"] == 2
    client.put(OFFSETS, json={"consumer_id": 1, "partition_id": 0, "offset": 8}).raise_for_status()
    assert poll(client, "next") == everything[9:]


def test_a_confirmation_says_that_the_message_is_replicated(client: httpx.Client) -> None:
    query = {"partition": 1}
    sent = client.post(MESSAGES, content=b"x", params=query, headers={"content-type": "text/plain"})
    assert sent.is_success, sent.text
    assert sent.headers["iggy-durability"] == "replicated"
    refused = client.post(
        MESSAGES, content=b"x", params=query | {"durability": "synced"}, headers={"content-type": "text/plain"}
    )
    assert refused.json()["code"] == "feature_unavailable"
    assert "engine.kind = kafka" in refused.json()["reason"]


def test_a_long_poll_is_answered_by_the_next_message(client: httpx.Client, gateway: Gateway) -> None:
    end = client.get("/streams/shop/topics/orders").json()["partitions"][0]["next_offset"]
    found: list[str] = []

    def wait() -> None:
        with log_in(gateway) as other:
            found.extend(poll(other, value=end, wait="20s"))

    waiting = threading.Thread(target=wait)
    waiting.start()
    send(client, "late").raise_for_status()
    waiting.join(DEADLINE_S)
    assert found == ["late"]
    assert poll(client, value=end + 1, wait="10ms") == []


def test_descriptions_have_the_numbers_of_kafka(client: httpx.Client) -> None:
    topic = client.get("/streams/shop/topics/orders").json()
    partition = topic["partitions"][0]
    assert partition["next_offset"] == partition["messages_count"] == partition["current_offset"] + 1 >= 10
    assert client.get("/streams").json()[0]["messages_count"] == topic["messages_count"]
    assert client.get("/stats").json()["messages_count"] == topic["messages_count"]
    assert "whippet_kafka_healthy 1" in client.get("/metrics").text
    assert client.get("/health/ready").json()["problems"] == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/streams/shop/topics/orders/consumer-groups", {"name": "g"}),
        ("POST", "/streams/shop/topics/orders/partitions", {"partitions_count": 1}),
        ("DELETE", "/streams/shop/topics/orders/purge", None),
        ("DELETE", "/streams/shop/purge", None),
        ("PUT", "/streams/shop", {"name": "other"}),
        ("PUT", "/streams/shop/topics/orders", {"name": "other", "message_expiry": 0, "max_topic_size": 0}),
        (
            "POST",
            "/streams/shop/topics",
            {"name": "d", "partitions_count": 1, "options": {"message_deduplication": True}},
        ),
    ],
)
def test_what_the_engine_cannot_do_is_refused_by_name(client: httpx.Client, method: str, path: str, body: Any) -> None:
    refused = client.request(method, path, json=body)
    assert (refused.status_code, refused.json()["code"]) == (400, "feature_unavailable"), refused.text
    assert "engine.kind = kafka" in refused.json()["reason"]


def test_a_killed_gateway_keeps_what_it_acknowledged(broker: Broker, tmp_path: Path) -> None:
    with starting(tmp_path / "data") as start:
        first = start(**on(broker.server, "killed."))
        with log_in(first) as client:
            client.post("/streams", json={"name": "shop"}).raise_for_status()
            client.post("/streams/shop/topics", json={"name": "orders", "partitions_count": 1}).raise_for_status()
            send(client, "a", "b").raise_for_status()
            poll(client, "next", count=1, auto_commit=True)
        first.signal(signal.SIGKILL)
        first.end()
        second = start(**on(broker.server, "killed."))
        with log_in(second) as client:
            assert (poll(client), poll(client, "next")) == (["a", "b"], ["b"])
        second.signal(signal.SIGTERM)
        assert second.end() == 0


def test_a_gateway_becomes_ready_when_brokers_appear(tmp_path: Path) -> None:
    own, port = Broker(tmp_path / "own"), free_port()
    with starting(tmp_path / "data") as start:
        waiting = start(**on(own.server, "waiting."), IGGY_HTTP_ADDRESS=f"127.0.0.1:{port}")
        waiting.line("none of the brokers .* can be reached")
        ready = httpx.get(f"http://127.0.0.1:{port}/health/ready", trust_env=False)
        assert (ready.status_code, ready.json()["reason"]) == (503, IT_WAITS)
        try:
            own.start()
            assert waiting.get("/health/ready").json()["status"] == "ready"
        finally:
            own.kill()


def test_a_gateway_that_waits_for_brokers_can_be_stopped(tmp_path: Path) -> None:
    with starting(tmp_path / "data") as start:
        waiting = start(**on(f"127.0.0.1:{free_port()}", "waiting."))
        waiting.line("none of the brokers .* can be reached")
        waiting.signal(signal.SIGTERM)
        assert waiting.end() == 0
        assert "Traceback" not in str(waiting)


def test_a_key_of_the_other_engine_is_refused(broker: Broker, tmp_path: Path) -> None:
    with starting(tmp_path / "data") as start:
        refused = start(**on(broker.server, "x."), IGGY_SYSTEM_PARTITION_ENFORCE_FSYNC="true")
        assert refused.end() == 2
        assert "system.partition.enforce_fsync = true is not supported while engine.kind is kafka" in refused.refusal()


def test_without_the_package_the_extra_is_named(tmp_path: Path) -> None:
    missing = (
        "import importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'aiokafka' else find(name, *more)\n"
    )
    with starting(tmp_path / "data") as start:
        refused = start(missing, IGGY_ENGINE_KIND="kafka")
        assert refused.end() == 2
        assert "pip install 'whippet-gateway[kafka]'" in refused.refusal()


@pytest.fixture(scope="module")
def server(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = on(broker.server, "sdk.")
    del settings["IGGY_ROOT_USERNAME"], settings["IGGY_ROOT_PASSWORD"]
    running = Server(tmp_path_factory.mktemp("server"), **settings).start()
    yield running
    running.stop()


@pytest.mark.parametrize("version", [environments.CLASSIC, environments.NEWEST])
def test_the_official_sdk_sends_and_polls_over_tcp(server: Server, version: str) -> None:
    polls = [(["First"], 5, False), (["Last"], 12, False), (["Offset", 13], 10, False), (["Next"], 3, True)]
    task = {"stream": f"orders {version} заказы", "topic": "t", "batches": (1, 10, 4, 15), "polls": polls * 2}
    found = Sdk(version).finished("polling", address=server.address, **task).all("polled")
    same = [list(range(5)), list(range(18, 30)), list(range(13, 23))]
    assert found == [*same, [0, 1, 2], *same, [3, 4, 5]]
