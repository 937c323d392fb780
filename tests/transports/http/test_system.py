"""The routes about the server itself, field by field; CORS; and allowed hosts."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.transports.http.support.calling import Calling, calling
from whippet.app.commands import requests
from whippet.app.config import Config
from whippet.app.config.formats import Address
from whippet.app.config.listeners import Http, HttpCors
from whippet.app.config.schema import Cluster, CurrentNode, Nodes

ORIGIN = "https://ui.example"


STATS = {
    "process_id": int,
    "cpu_usage": float,
    "total_cpu_usage": float,
    "memory_usage": str,
    "total_memory": str,
    "available_memory": str,
    "run_time": int,
    "start_time": int,
    "read_bytes": str,
    "written_bytes": str,
    "messages_size_bytes": str,
    "streams_count": int,
    "topics_count": int,
    "partitions_count": int,
    "segments_count": int,
    "messages_count": int,
    "clients_count": int,
    "consumer_groups_count": int,
    "hostname": str,
    "os_name": str,
    "os_version": str,
    "kernel_version": str,
    "iggy_server_version": str,
    "iggy_server_semver": int,
    "cache_metrics": dict,
    "threads_count": int,
    "free_disk_space": str,
    "total_disk_space": str,
    "open_files_count": int,
    "open_files_limit": int,
}


async def test_stats_have_every_field_of_the_reference_with_its_type(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        found = await world.root.get("/stats")
        assert {name: type(value) for name, value in found.items()} == STATS
        assert list(found) == list(STATS)
        for name in ("memory_usage", "total_memory", "free_disk_space", "messages_size_bytes"):
            number, unit = found[name].split(" ")
            assert float(number) >= 0
            assert unit in "EiB EB PiB PB TiB TB GiB GB MiB MB KiB KB B".split()  # noqa: SIM905


async def test_clients_of_other_transports_are_listed_and_http_callers_are_not(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        assert await root.get("/clients") == []
        await root.post("/streams", {"name": "s"})
        await root.post("/streams/s/topics", {"name": "t", "partitions_count": 1})
        await root.post("/streams/s/topics/t/consumer-groups", {"name": "g"})
        member = await world.world.root()
        await member.execute(requests.JoinConsumerGroup("s", "t", "g"))
        number = member.session.client_id
        client = {
            "client_id": number,
            "user_id": 0,
            "address": member.session.address,
            "transport": "tcp",
            "consumer_groups_count": 1,
        }
        assert await root.get("/clients") == [client]
        groups = [{"stream_id": 0, "topic_id": 0, "group_id": 0}]
        assert await root.get(f"/clients/{number}") == {**client, "consumer_groups": groups}
        for missing in (0, (number + 1) % 2**32):
            assert await root.refused("GET", f"/clients/{missing}") == (404, 404, None)
        for wrong in ("x", "-1", "4294967296"):
            assert await root.refused("GET", f"/clients/{wrong}") == (400, 400, "client")


async def test_the_cluster_is_this_node(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        world.gateway.addresses.http = 3000
        assert await world.root.get("/cluster/metadata") == {
            "name": "single-node",
            "nodes": [
                {
                    "name": "iggy-node",
                    "ip": "127.0.0.1",
                    "endpoints": {"tcp": 0, "quic": 0, "http": 3000, "websocket": 0},
                    "role": "leader",
                    "status": "healthy",
                    "replica_id": 0,
                }
            ],
        }


async def test_the_cluster_has_the_configured_names_and_address(tmp_path: Path) -> None:
    node = CurrentNode(name="node-7", ip="192.0.2.7")
    cluster = Cluster(enabled=True, name="my-cluster", node=Nodes(current=node))
    async with calling(tmp_path, settings=Config(cluster=cluster)) as world:
        metadata = await world.root.get("/cluster/metadata")
        assert metadata["name"] == "my-cluster"
        assert [(one["name"], one["ip"]) for one in metadata["nodes"]] == [("node-7", "192.0.2.7")]


async def test_a_snapshot_is_a_zip_of_the_requested_parts(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        response = await root.ask("POST", "/snapshot", {"compression": "Deflated", "snapshot_types": ["Test"]})
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/zip"
        disposition = response.headers["content-disposition"]
        assert disposition.startswith('attachment; filename="iggy_snapshot_')
        with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
            assert {name: archive.read(name) for name in archive.namelist()} == {"test.txt": b"test"}
        response = await root.ask("POST", "/snapshot", {"compression": "Stored", "snapshot_types": ["All"]})
        with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
            assert len(archive.namelist()) == 5
        both = {"compression": "Stored", "snapshot_types": ["All", "Test"]}
        assert await root.refused("POST", "/snapshot", both) == (400, 3, None)
        for wrong in (
            {},
            {"compression": "stored", "snapshot_types": []},
            {"compression": "Xz", "snapshot_types": [1]},
        ):
            assert (await root.refused("POST", "/snapshot", wrong))[:2] == (422, 422)


async def test_options_are_described_with_the_bytes_of_their_defaults(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        found = {each.pop("key"): each for each in await world.root.get("/options/topic")}
        assert list(found) == sorted(found)
        assert found["compression_algorithm"]["default_value"] == list(b"none")
        assert found["preallocate_segments"]["kind"] == "bool"
        assert found["message_expiry"]["default_value"] == [255] * 8
        for each in found.values():
            flags = ["updatable", "resettable", "secret", "read_only", "critical"]
            assert list(each) == ["kind", "default_value", "description", *flags]
        assert (found["message_expiry"]["resettable"], found["durability"]["updatable"]) == (True, False)
        for scope in ("stream", "user"):
            assert await world.root.get(f"/options/{scope}") == []
        assert await world.root.refused("GET", "/options/nope") == (400, 3, None)


# ------------------------------------------------------------------------------------------------- other origins


def cors(**settings: Any) -> Http:
    return msgspec.structs.replace(Http(), cors=HttpCors(**settings))


async def preflight(world: Calling, path: str = "/streams", **headers: str) -> Any:
    request_headers = {"origin": ORIGIN, "access-control-request-method": "POST"} | headers
    return await world.client.request("OPTIONS", path, headers=request_headers)


async def test_a_foreign_origin_gets_no_cors_response_unless_it_is_configured(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        for response in (await preflight(world), await world.client.get("/ping", headers={"origin": ORIGIN})):
            assert [name for name in response.headers if name.startswith("access-control-")] == []
            assert "origin" in response.headers["vary"]
        assert (await preflight(world)).status_code == 405


async def test_a_preflight_is_answered_without_a_token(tmp_path: Path) -> None:
    async with calling(tmp_path, cors(allowed_origins=("*",))) as world:
        for path in ("/streams", "/users/login", "/nothing"):
            response = await preflight(world, path)
            assert (response.status_code, response.content) == (200, b"")
            assert response.headers["access-control-allow-origin"] == "*"
            assert response.headers["access-control-allow-methods"] == "GET,POST,PUT,DELETE"
            assert response.headers["access-control-allow-headers"] == "content-type,authorization"
            assert "access-control-allow-credentials" not in response.headers
            assert "access-control-request-method" in response.headers["vary"]


async def test_every_response_to_another_origin_has_cors_headers(tmp_path: Path) -> None:
    async with calling(tmp_path, cors(allowed_origins=("*",))) as world:
        for path in ("/streams", "/nothing", "/ping"):
            response = await world.client.get(path, headers={"origin": ORIGIN})
            assert response.headers["access-control-allow-origin"] == "*"
            assert response.headers["access-control-expose-headers"] == "iggy-view"
            assert "access-control-allow-origin" not in (await world.client.get(path)).headers


@pytest.mark.parametrize(
    "origin", ["https://ui.example.evil.example", "https://UI.example", "null", "https://ui.example:8443"]
)
async def test_only_listed_origins_are_allowed(tmp_path: Path, origin: str) -> None:
    async with calling(
        tmp_path, cors(allowed_origins=("https://other.example", ORIGIN), allow_credentials=True)
    ) as world:
        response = await preflight(world)
        assert response.headers["access-control-allow-origin"] == ORIGIN
        assert response.headers["access-control-allow-credentials"] == "true"
        for refused in (await preflight(world, origin=origin), await world.client.get("/", headers={"origin": origin})):
            assert [name for name in refused.headers if name.startswith("access-control-")] == []
            assert "origin" in refused.headers["vary"]


async def test_private_network_access_must_be_enabled(tmp_path: Path) -> None:
    name = "access-control-allow-private-network"
    request_headers = {"access-control-request-private-network": "true"}

    async with calling(tmp_path / "closed", cors(allowed_origins=("*",))) as world:
        assert name not in (await preflight(world, **request_headers)).headers
    async with calling(tmp_path / "opened", cors(allowed_origins=("*",), allow_private_network=True)) as world:
        assert (await preflight(world, **request_headers)).headers[name] == "true"
        assert name not in (await preflight(world)).headers


async def test_cors_can_be_disabled(tmp_path: Path) -> None:
    async with calling(tmp_path, cors(enabled=False, allowed_origins=("*",))) as world:
        assert (await preflight(world)).status_code == 405
        response = await world.client.get("/ping", headers={"origin": ORIGIN})
        assert "access-control-allow-origin" not in response.headers


# ------------------------------------------------------------------------------------------------- allowed hosts


@pytest.mark.parametrize(
    ("host", "is_known"),
    [
        ("whippet.example", True),
        ("Whippet.Example:3000", True),
        ("a.b.inside.example:3000", True),
        ("[::1]:3000", True),
        ("inside.example", False),
        ("evilinside.example", False),
        ("whippet.example.evil.example", False),
        ("127.0.0.1", False),
        ("[::1", False),
        ("", False),
    ],
)
async def test_only_requests_for_allowed_hosts_are_served(tmp_path: Path, host: str, is_known: bool) -> None:
    allowed = ("whippet.example", "*.inside.example", "[::1]", "localhost")
    async with calling(tmp_path, msgspec.structs.replace(Http(), allowed_hosts=allowed)) as world:
        response = await world.client.get("/ping", headers={"host": host, "origin": ORIGIN})
        assert response.status_code == (200 if is_known else 421)
        if not is_known:
            assert (response.json()["code"], response.json()["field"]) == ("misdirected_request", "host")
            assert "http.allowed_hosts" in response.json()["reason"]
            assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(
    ("host", "is_known"),
    [
        ("localhost", True),
        ("LOCALHOST:3000", True),
        ("localhost.:3000", True),
        ("dev.localhost", True),
        ("127.0.0.1:3000", True),
        ("127.1.2.3", True),
        ("[::1]:3000", True),
        ("", True),
        ("evil.example:3000", False),
        ("localhost.evil.example", False),
        ("notlocalhost", False),
        ("127.0.0.1.evil.example", False),
        ("0.0.0.0:3000", False),
        ("10.0.0.1", False),
        ("[::1", False),
    ],
)
async def test_on_a_loopback_address_only_loopback_names_are_served_unless_configured(
    tmp_path: Path, host: str, is_known: bool
) -> None:
    """Like a page of evil.example whose name resolves to 127.0.0.1."""
    async with calling(tmp_path / "default") as world:
        response = await world.client.get("/ping", headers={"host": host})
        assert response.status_code == (200 if is_known else 421)
        assert is_known or "http.allowed_hosts" in response.json()["reason"]
    for number, config in enumerate((Http(address=Address("0.0.0.0", 0)), Http(allowed_hosts=("*",)))):
        async with calling(tmp_path / f"{number}", config) as world:
            assert (await world.client.get("/ping", headers={"host": host})).status_code == 200


async def test_an_allowed_host_does_not_admit_another_one(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        for host, status in (("localhost", 200), ("evil.example", 421), ("evil.example", 421), ("localhost", 200)):
            assert (await world.client.get("/ping", headers={"host": host})).status_code == status
