"""Metrics for Prometheus: those of Iggy with true values, and more; and GET /limits."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
import xxhash
from prometheus_client.openmetrics.parser import text_string_to_metric_families as of_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.app.access.support.world import make_group
from tests.app.support.process import DEADLINE_S, Start, starting
from tests.transports.http.support.calling import Caller, Calling, calling
from whippet.app.commands import requests
from whippet.app.commands.requests import Consumer, ConsumerKind
from whippet.app.config import ConfigError
from whippet.app.config.keys import KEYS
from whippet.app.config.listeners import Http, HttpLimits, HttpMetrics
from whippet.app.model.sessions import Transport
from whippet.app.telemetry import metrics as telemetry
from whippet.app.version import IGGY_VERSION, version
from whippet.transports.http.handlers import metrics

IGGY = ("streams", "topics", "partitions", "segments", "messages", "users", "clients")
GROUP = Consumer(ConsumerKind.GROUP, "g")


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables the cache: on a busy machine a scrape takes so long that the next one would get the same text."""
    monkeypatch.setattr(metrics, "CHEAP_SECONDS", float("inf"))


async def scrape(caller: Caller, path: str = "/metrics") -> dict[str, float]:
    """Returns the samples by name and by label values, sorted by label name."""
    response = await caller.ask("GET", path)
    assert response.status_code == 200, response.text
    assert response.text.endswith("# EOF\n")
    samples = [sample for family in text_string_to_metric_families(response.text) for sample in family.samples]
    return {sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value for sample in samples}


async def send(world: Calling, *payloads: bytes) -> None:
    messages = [{"payload": base64.b64encode(payload).decode()} for payload in payloads]
    await world.root.post(
        "/streams/s/topics/t/messages", {"partitioning": {"kind": "balanced", "value": ""}, "messages": messages}
    )


async def test_iggys_metrics_are_exported_with_true_values_without_a_token(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        before = await scrape(world.stranger)
        assert [before[name] for name in IGGY] == [0, 0, 0, 0, 0, 1, 0]
        await make_group(await world.world.root())
        await send(world, b"a", b"b", b"c")
        await world.root.get("/streams/s/topics/t/messages?count=2")
        after = await scrape(world.stranger)
        assert [after[name] for name in IGGY] == [1, 1, 1, 1, 3, 1, 1]
        assert after["http_requests_total"] == before["http_requests_total"] + 3
        assert after["iggy_messages_sent_total"] == 3
        assert after["iggy_messages_received_total"] == 2
        assert after["iggy_bytes_sent_total"] > 3
        assert after["iggy_segments_count"] == 1
        assert after["iggy_disk_usage_bytes"] >= after["iggy_bytes_sent_total"]


async def test_the_metrics_have_the_same_lines_as_those_of_iggy(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        response = await world.stranger.ask("GET", "/metrics")
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "# HELP streams total count of streams.\n# TYPE streams gauge\nstreams 0\n" in response.text
        response = await world.stranger.ask("GET", "/metrics", accept="application/openmetrics-text;version=1.0.0")
        assert response.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert response.text.startswith(
            "# HELP http_requests total count of http_requests.\n# TYPE http_requests counter\nhttp_requests_total "
        )
        assert {family.name for family in of_openmetrics(response.text)} >= {"http_requests", *IGGY}


async def test_every_request_is_counted_whatever_its_outcome(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        before = (await scrape(world.stranger))["http_requests_total"]
        await world.stranger.ask("GET", "/nothing")
        await world.stranger.ask("GET", "/streams")
        await world.stranger.ask("OPTIONS", "/streams", origin="http://a.example", access_control_request_method="GET")
        assert (await scrape(world.stranger))["http_requests_total"] == before + 4


async def test_commands_are_timed_by_transport_and_refusals_counted_by_error(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        person = await world.world.root()
        await make_group(person)
        await send(world, b"a")
        await world.root.refused("DELETE", "/streams/none")
        found = await scrape(world.stranger)
        assert found["whippet_command_seconds_count send_messages http"] == 1
        assert found["whippet_command_seconds_bucket send_messages +Inf http"] == 1
        assert found["whippet_command_seconds_sum send_messages http"] > 0
        assert found["whippet_command_seconds_count create_topic tcp"] == 1
        assert "whippet_command_seconds_count create_topic http" not in found
        assert found["whippet_command_refusals_total delete_stream stream_id_not_found"] == 1


async def test_the_lag_of_a_group_is_what_it_has_not_committed(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        person = await world.world.root()
        await make_group(person)
        await send(world, b"a", b"b", b"c")
        assert (await scrape(world.stranger))["whippet_group_lag g 0 s t"] == 3
        await person.execute(requests.JoinConsumerGroup("s", "t", "g"))
        await person.execute(requests.StoreConsumerOffset(GROUP, "s", "t", 0, 1))
        found = await scrape(world.stranger)
        assert found["whippet_group_lag g 0 s t"] == 1
        assert found["whippet_group_members g s t"] == 1
        assert found["whippet_sessions tcp"] == found["whippet_sessions_logged_in tcp"] == 1


async def test_the_lag_of_a_consumer_is_what_it_has_not_stored_and_has_its_name(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        person = await world.world.root()
        await make_group(person)
        await send(world, b"a", b"b", b"c")
        for name, offset in (("spark", 0), (9, 1), ("77", 2)):
            consumer = requests.Consumer(requests.ConsumerKind.CONSUMER, name)
            await person.execute(requests.StoreConsumerOffset(consumer, "s", "t", 0, offset))
        found = await scrape(world.stranger)
        assert found["whippet_consumer_lag spark 0 s t"] == 2
        assert found["whippet_consumer_lag 9 0 s t"] == 1
        hashed = xxhash.xxh32_intdigest(b"77")
        assert found[f"whippet_consumer_lag {hashed} 0 s t"] == 0
        await person.execute(
            requests.DeleteConsumerOffset(requests.Consumer(requests.ConsumerKind.CONSUMER, "spark"), "s", "t", 0)
        )
        assert not any(" spark " in name for name in await scrape(world.stranger))


async def test_series_about_groups_are_limited_and_the_omitted_ones_counted(tmp_path: Path) -> None:
    config = Http(metrics=HttpMetrics(series=4))
    async with calling(tmp_path, config) as world:
        person = await world.world.root()
        await make_group(person)
        for number in range(5):
            await person.execute(requests.CreateConsumerGroup("s", "t", f"g{number}"))
        found = await scrape(world.stranger)
        assert sum(name.startswith("whippet_group_") for name in found) == 4
        assert found["whippet_series_left_out"] == 8


async def test_names_in_labels_may_contain_any_character(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        person = await world.world.root()
        await make_group(person)
        name = 'a"b\\c\nd\u00e9 # EOF'
        await person.execute(requests.CreateConsumerGroup("s", "t", name))
        assert f"whippet_group_lag {name} 0 s t" in await scrape(world.stranger)


async def test_the_path_of_the_metrics_and_the_need_for_a_token_are_configurable(tmp_path: Path) -> None:
    async with calling(tmp_path / "moved", Http(metrics=HttpMetrics(endpoint="/numbers"))) as world:
        await scrape(world.stranger, "/numbers")
        assert (await world.stranger.ask("GET", "/metrics")).status_code == 404
    async with calling(tmp_path / "closed", Http(metrics=HttpMetrics(require_token=True))) as world:
        assert await world.stranger.refused("GET", "/metrics") == (401, 77, None)
        await scrape(world.root)
        token = await world.root.post("/personal-access-tokens", {"name": "scraper", "expiry": 0})
        await scrape(Caller(world.client, token["token"]))
    async with calling(tmp_path / "off", Http(metrics=HttpMetrics(enabled=False))) as world:
        assert (await world.root.ask("GET", "/metrics")).status_code == 404
    for taken in ("/streams", "/{name}"):
        with pytest.raises(ConfigError, match=r"http\.metrics\.endpoint"):
            async with calling(tmp_path / "taken", Http(metrics=HttpMetrics(endpoint=taken))):
                pass


async def test_expensive_metrics_are_cached_between_scrapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    sample = telemetry.sample

    def counted(gateway: object) -> object:
        nonlocal made
        made += 1
        return sample(gateway)  # type: ignore[arg-type]

    monkeypatch.setattr(telemetry, "sample", counted)
    monkeypatch.setattr(metrics, "CHEAP_SECONDS", 1e9)
    async with calling(tmp_path) as world:
        await scrape(world.stranger)
        await scrape(world.stranger)
        assert made == 2
        monkeypatch.setattr(metrics, "CHEAP_SECONDS", -1.0)
        monkeypatch.setattr(metrics, "KEPT_FACTOR", 1e9)
        for _ in range(5):
            await scrape(world.stranger)
        assert made == 3


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path / "data") as start_one:
        yield start_one


def test_the_metrics_listener_reports_disk_shards_and_connections(start: Start) -> None:
    process = start(IGGY_METRICS_ENABLED="true", IGGY_METRICS_ENDPOINT="127.0.0.1:0")
    apart = process.line(r"metrics +http://(\S+)").group(1)
    port = int(process.line(r"tcp://\S+:(\d+)").group(1))
    with httpx.Client(trust_env=False, timeout=DEADLINE_S) as client, socket.create_connection(("127.0.0.1", port)):
        assert client.get(f"http://{apart}/ping").status_code == 404
        text = client.get(f"http://{apart}/metrics").text
        for line in (
            'whippet_connections{transport="http"} 0',
            'whippet_connections{transport="tcp"} 1',
            'whippet_shard_loop_writes_total{shard="0"} 0',
            'whippet_shard_queue_length{shard="0"} 0',
            "whippet_unflushed_bytes 0",
        ):
            assert f"\n{line}\n" in text, text
        samples = {
            (sample.name, sample.labels.get("kind")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        # A new data folder was created and synced.
        assert samples["whippet_fsync_seconds_count", "file"] > 0
        assert samples["whippet_fsync_seconds_sum", "folder"] > 0
        assert samples["process_resident_memory_bytes", None] > 0
        assert client.get(f"http://{process.address()}/metrics").status_code == 200


async def test_each_limit_is_returned_with_its_setting(tmp_path: Path) -> None:
    config = Http(max_request_size=12345, limits=HttpLimits(idle_time=1.5))
    async with calling(tmp_path, config) as world:
        assert await world.stranger.refused("GET", "/limits") == (401, 77, None)
        limits = {each["key"]: each for each in await world.root.get("/limits")}
        assert set(limits) <= set(KEYS)
        returned = [limits[f"http.{name}"] for name in ("max_request_size", "limits.idle_time", "leases.leases")]
        assert [(each["value"], each["unit"]) for each in returned] == [
            (12345, "bytes"),
            (1.5, "seconds"),
            (4096, "number"),
        ]
        assert limits["system.limits.payload_bytes"]["meaning"].endswith("(error 4022).")
        assert "system.limits.tail_bytes" not in limits


async def test_the_audit_log_is_measured_while_there_is_one(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        assert "whippet_audit_failing" not in await scrape(world.stranger)
        gateway = world.world.gateway
        system = msgspec.structs.replace(gateway.config.system, path=str(tmp_path))
        gateway.config = msgspec.structs.replace(gateway.config, system=system)
        gateway.open_audit()
        assert gateway.audit is not None
        try:
            await (await world.world.root()).execute(requests.CreateStream("s"))
            found = await scrape(world.stranger)
            names = ("whippet_audit_entries_total", "whippet_audit_lost_total", "whippet_audit_failing")
            assert [found[name] for name in names] == [3, 0, 0]
        finally:
            await gateway.audit.stop()


async def test_responses_are_counted_by_the_class_of_their_status(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        await make_group(await world.world.root())
        before = await scrape(world.stranger)
        await send(world, b"a")
        assert (await world.root.ask("GET", "/streams/none")).status_code == 404
        assert (await world.root.ask("GET", "/nowhere")).status_code == 404
        assert (await world.stranger.ask("GET", "/streams")).status_code == 401
        after = await scrape(world.stranger)
        name = "whippet_http_responses_total"
        # The first scrape counts after its own response was rendered.
        assert after[f"{name} 2xx"] == before[f"{name} 2xx"] + 2
        assert after[f"{name} 4xx"] == before[f"{name} 4xx"] + 3
        assert after[f"{name} 5xx"] == 0
        measured = world.world.gateway.measurements
        measured.http_sends_at_once, measured.http_sends_refused = 5, 2
        assert (await scrape(world.stranger))[f"{name} 2xx"] == after[f"{name} 2xx"] + 1 + 3


async def test_topics_have_their_rates_and_sizes_within_a_limit(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        await make_group(await world.world.root())
        await send(world, b"a", b"b")
        found = await scrape(world.stranger)
        assert found["whippet_topic_appended_messages_total s t"] == 2
        assert found["whippet_topic_messages s t"] == 2
        assert found["whippet_topic_bytes s t"] > 0
        assert found["whippet_topic_series_left_out"] == 0
    async with calling(tmp_path, Http(metrics=HttpMetrics(series=2))) as world:
        found = await scrape(world.stranger)
        assert found["whippet_topic_series_left_out"] == 3
        assert "whippet_topic_bytes s t" not in found


async def test_the_versions_are_visible_and_histograms_have_few_buckets(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        text = (await world.stranger.ask("GET", "/metrics")).text
        line = next(line for line in text.splitlines() if line.startswith("whippet_build_info{"))
        assert f'iggy_version="{IGGY_VERSION}"' in line
        assert f',version="{version()}"}} 1' in line
        world.world.gateway.measurements.commands[requests.Ping][Transport.TCP].add(0.002)
        found = await scrape(world.stranger)
        bucket = "whippet_command_seconds_bucket"
        counts = {name.split()[-2]: value for name, value in found.items() if name.startswith(f"{bucket} ping ")}
        assert len(counts) == 9
        assert (counts["0.001"], counts["0.005"], counts["+Inf"]) == (0, 1, 1)
        assert found["whippet_command_seconds_sum ping tcp"] == 0.002
