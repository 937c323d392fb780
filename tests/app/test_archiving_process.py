"""The archive of a whole server: it is filled while clients send, and a new machine continues from it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import itertools
import random
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.support.process import DEADLINE_S, Gateway, starting
from tests.support.forked import Forked
from tests.support.sizes import sized
from whippet.app.client import Client as TcpClient
from whippet.app.client import Disconnected
from whippet.app.client.commands import to_partition

FROM_ARCHIVE = (
    sys.executable,
    "-c",
    "import sys; from whippet.app.cli.main import main; sys.exit(main(['serve', '--from-archive']))",
)
ROOT = {"IGGY_ROOT_USERNAME": "root", "IGGY_ROOT_PASSWORD": "a long password"}


def settings(folder: Path, **more: str) -> dict[str, str]:
    return {
        **ROOT,
        "IGGY_DATA_MAINTENANCE_ARCHIVER_ENABLED": "true",
        "IGGY_DATA_MAINTENANCE_ARCHIVER_DISK_PATH": str(folder / "archive"),
        "IGGY_DATA_MAINTENANCE_ARCHIVER_INTERVAL": "20 ms",
        **more,
    }


def numbered(number: int) -> str:
    """A payload of one message, as JSON has it."""
    return base64.b64encode(f"message {number}".encode()).decode()


class Client:
    """A signed-in client over HTTP."""

    def __init__(self, gateway: Gateway) -> None:
        self._http = httpx.Client(base_url=f"http://{gateway.address()}", trust_env=False, timeout=DEADLINE_S)
        login = self._http.post("/users/login", json={"username": "root", "password": "a long password"})
        self._http.headers["authorization"] = f"Bearer {login.raise_for_status().json()['access_token']['token']}"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def create_topic(self, options: dict[str, str] | None = None, *, partitions: int = 1) -> httpx.Response:
        self._http.post("/streams", json={"name": "s"})
        body = {"name": "t", "partitions_count": partitions, "message_expiry": 0, "options": options or {}}
        return self._http.post("/streams/s/topics", json=body)

    def send(self, *payloads: str) -> None:
        body = {
            "partitioning": {"kind": "partition_id", "value": "AAAAAA=="},
            "messages": [{"id": 0, "payload": payload} for payload in payloads],
        }
        self._http.post("/streams/s/topics/t/messages", json=body).raise_for_status()

    def poll(self, offset: int = 0, partition: int = 0) -> list[dict[str, Any]]:
        query: dict[str, str | int] = {
            "consumer_id": 1,
            "partition_id": partition,
            "kind": "offset",
            "value": offset,
            "count": 100,
        }
        found = self._http.get("/streams/s/topics/t/messages", params=query).raise_for_status().json()["messages"]
        return [{"offset": each["header"]["offset"], "payload": each["payload"]} for each in found]

    def everything(self, partition: int) -> tuple[list[str], list[int]]:
        """Returns the payloads and the offsets of a partition."""
        found: list[str] = []
        offsets: list[int] = []
        while page := self.poll(offsets[-1] + 1 if offsets else 0, partition):
            found += [each["payload"] for each in page]
            offsets += [each["offset"] for each in page]
        return found, offsets

    def store_offset(self, offset: int) -> None:
        body = {"consumer_id": "reader", "partition_id": 0, "offset": offset}
        self._http.put("/streams/s/topics/t/consumer-offsets", json=body).raise_for_status()

    def stored_offset(self) -> int:
        query: dict[str, str | int] = {"consumer_id": "reader", "partition_id": 0}
        answer = self._http.get("/streams/s/topics/t/consumer-offsets", params=query).raise_for_status()
        return int(answer.json()["stored_offset"])

    def metric(self, name: str) -> float:
        text = self._http.get("/metrics").raise_for_status().text
        found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
        assert found is not None, f"{name} is not in\n{text}"
        return float(found[1])

    def until_archived(self) -> None:
        """Asks the server again and again until it has archived everything."""
        while self.metric("whippet_archive_waiting_messages") or not self.metric("whippet_archive_healthy"):
            pass

    def problems(self) -> list[str]:
        found: list[str] = self._http.get("/health/ready").raise_for_status().json()["problems"]
        return found


def whippet(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """Runs a command line tool to its end."""
    code = f"import sys; from whippet.app.cli.main import main; sys.exit(main({list(arguments)!r}))"
    process = Forked(code, env={"IGGY_SYSTEM_PATH": str(folder / "data"), **variables}, cwd=folder)
    assert process.stderr is not None
    with process.stdin, process.stdout, process.stderr:
        output = process.stdout.read() + process.stderr.read()
    return process.wait(DEADLINE_S), output


def test_a_lost_machine_is_replaced_from_the_archive(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    with starting(tmp_path / "data") as start:
        with Client(old := start(**chosen)) as client:
            client.create_topic().raise_for_status()
            client.send("YQ==", "Yg==")
            client.until_archived()
            assert client.problems() == []
            assert client.metric("whippet_archive_uploaded_bytes_total") > 0
        old.signal(signal.SIGKILL)
        old.end()
    shutil.rmtree(tmp_path / "data")
    with starting(tmp_path / "data", FROM_ARCHIVE) as start:
        new = start(**chosen)
        new.line("restored 2 messages in 1 partitions.*seconds ago")
        with Client(new) as client:
            assert [each["payload"] for each in client.poll()] == ["YQ==", "Yg=="]
            client.send("Yw==")
            later = client.poll(2)
            assert [each["payload"] for each in later] == ["Yw=="]
            assert later[0]["offset"] > 1_000_000
            assert client.metric("messages") == 3
            client.until_archived()
        new.signal(signal.SIGTERM)
        assert new.end() == 0
        again = start(**chosen)
        again.line("is a data folder already")
        with Client(again) as client:
            assert len(client.poll()) == 3


class Producers:
    """A client over HTTP and one over TCP, each of which sends numbered messages to a partition of its own."""

    def __init__(self, gateway: Gateway, first: int) -> None:
        """Partition 0 has so many messages already."""
        self.acknowledged = [first * [time.time()], []]
        """When each message of a partition was acknowledged."""
        self._gateway = gateway
        self._threads = [threading.Thread(target=self._over_http), threading.Thread(target=self._over_tcp)]
        for thread in self._threads:
            thread.start()

    def _over_http(self) -> None:
        with contextlib.suppress(httpx.TransportError), Client(self._gateway) as client:
            for number in itertools.count(len(self.acknowledged[0])):
                client.send(numbered(number))
                self.acknowledged[0].append(time.time())

    def _over_tcp(self) -> None:
        async def send() -> None:
            address = self._gateway.line(r"tcp://(\S+)").group(1)
            client = await TcpClient.connect(f"iggy://root:{ROOT['IGGY_ROOT_PASSWORD']}@{address}")
            for number in itertools.count():
                await client.send_messages("s", "t", [f"message {number}".encode()], to_partition(1))
                self.acknowledged[1].append(time.time())

        with contextlib.suppress(Disconnected):
            asyncio.run(send())

    @property
    def are_alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(DEADLINE_S)


@sized("runs", 1, long=10)
def test_a_machine_that_is_lost_while_clients_send_loses_what_was_not_archived_and_no_more(
    tmp_path: Path, runs: int
) -> None:
    chosen = settings(tmp_path, IGGY_SYSTEM_SEGMENT_SIZE="4 KiB")
    moments = random.Random(runs)
    for run in range(runs):
        folder = tmp_path / str(run)
        folder.mkdir()
        chosen["IGGY_DATA_MAINTENANCE_ARCHIVER_DISK_PATH"] = str(folder / "archive")
        with starting(folder / "data") as start, Client(server := start(**chosen)) as client:
            client.create_topic(partitions=2).raise_for_status()
            client.send(numbered(0), numbered(1))
            client.store_offset(1)
            client.until_archived()
            producers = Producers(server, first=2)
            enough = moments.randrange(10, 300)
            while min(map(len, producers.acknowledged)) < enough:
                assert producers.are_alive
            server.signal(signal.SIGKILL)
            server.end()
            producers.join()
        shutil.rmtree(folder / "data")
        with starting(folder / "data", FROM_ARCHIVE) as start, Client(server := start(**chosen)) as client:
            said = server.line(r"restored ([\d,]+) messages in 2 partitions.*complete at (\S+ \S+) UTC")
            complete_at = datetime.datetime.fromisoformat(f"{said[2]}+00:00").timestamp()
            restored = 0
            for partition, times in enumerate(producers.acknowledged):
                found, offsets = client.everything(partition)
                assert found == [numbered(number) for number in range(len(found))]
                assert offsets == list(range(len(found)))
                assert sum(at < complete_at for at in times) <= len(found) <= len(times) + 1
                restored += len(found)
            # What was archived after the last complete round is not in its list.
            assert restored >= int(said[1].replace(",", ""))
            assert client.stored_offset() == 1
            client.send("YQ==")
            assert client.everything(0)[1][-1] > len(producers.acknowledged[0])


def test_a_topic_keeps_hours_here_and_years_in_the_archive(tmp_path: Path) -> None:
    chosen = settings(tmp_path, IGGY_SYSTEM_SEGMENT_SIZE="4 KiB", IGGY_DATA_MAINTENANCE_MESSAGES_INTERVAL="20 ms")
    with starting(tmp_path / "data") as start, Client(start(**chosen)) as client:
        client.create_topic({"local_retention_time": "1"}).raise_for_status()
        for number in range(60):
            client.send(numbered(number))
        while client.metric("segments") > 1:
            pass
        found = client.poll()
        assert [each["payload"] for each in found] == [numbered(number) for number in range(60)]
        assert client.metric("messages") == 60
        assert len(list((tmp_path / "data/streams").rglob("*.log"))) == 1


def test_options_about_the_archive_need_one(tmp_path: Path) -> None:
    with starting(tmp_path / "data") as start, Client(start(**ROOT)) as client:
        for key in ("archive_retention", "local_retention_size", "local_retention_time"):
            refused = client.create_topic({key: "1000000000"})
            assert refused.status_code == 400
            assert f"{key}' needs an archive" in refused.text
        client.create_topic({"archive_retention": "never_expire"}).raise_for_status()


@sized("kills", 4, long=60)
def test_servers_that_are_killed_again_and_again_leave_an_archive_without_gaps(tmp_path: Path, kills: int) -> None:
    chosen = settings(tmp_path, IGGY_SYSTEM_SEGMENT_SIZE="4 KiB", IGGY_DATA_MAINTENANCE_ARCHIVER_INTERVAL="1 ms")
    sends, sent, archived = random.Random(kills), 0, 0
    for round_number in range(kills):
        with starting(tmp_path / "data") as start, Client(server := start(**chosen)) as client:
            if not round_number:
                client.create_topic().raise_for_status()
            for _ in range(sends.randrange(5, 60)):
                client.send(numbered(sent))
                sent += 1
            server.signal(signal.SIGKILL)
            server.end()
    with starting(tmp_path / "data") as start, Client(server := start(**chosen)) as client:
        client.until_archived()
        archived = sent
        for _ in range(30):
            client.send(numbered(sent))
            sent += 1
        server.signal(signal.SIGKILL)
        server.end()
    shutil.rmtree(tmp_path / "data")
    with starting(tmp_path / "data", FROM_ARCHIVE) as start, Client(start(**chosen)) as client:
        found, _ = client.everything(0)
        assert found == [numbered(number) for number in range(len(found))]
        assert archived <= len(found) <= sent
        client.send(numbered(sent))
        (last,) = client.poll(len(found))
        assert last["offset"] >= sent


def test_an_archive_of_another_server_is_refused_at_the_start(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    with starting(tmp_path / "one") as start:
        first = start(**chosen)
        first.address()
        first.signal(signal.SIGTERM)
        assert first.end() == 0
    with starting(tmp_path / "two") as start:
        refused = start(**chosen)
        assert refused.end() == 1
        assert "is the archive of another data folder" in refused.refusal()


def test_restore_makes_a_folder_that_check_finds_sound(tmp_path: Path) -> None:
    chosen = settings(tmp_path, IGGY_SYSTEM_SEGMENT_ARCHIVE_EXPIRED="true")
    with starting(tmp_path / "data") as start:
        with Client(server := start(**chosen)) as client:
            client.create_topic().raise_for_status()
            client.send("YQ==", "Yg==")
        server.signal(signal.SIGTERM)
        assert server.end() == 0
    code, output = whippet(tmp_path, "restore", str(tmp_path / "copy"), **chosen)
    assert (code, "nothing is missing" in output) == (0, True), output
    code, output = whippet(tmp_path, "check", str(tmp_path / "copy"), **chosen)
    assert (code, "2 messages" in output) == (0, True), output
    for arguments in (["--archive"], [str(tmp_path / "archive")]):
        code, output = whippet(tmp_path, "check", *arguments, **chosen)
        assert (code, "2 messages" in output) == (0, True), output
    code, output = whippet(tmp_path, "restore", str(tmp_path / "copy"), **chosen)
    assert (code, "is a data folder already" in output) == (2, True), output
    code, output = whippet(tmp_path, "restore", "--to", "1970-01-01", str(tmp_path / "empty"), **chosen)
    assert (code, "restored 0 messages" in output) == (0, True), output
    assert "the messages are those received until 1970-01-01 00:00:00 UTC; " in output
    assert "names, options, users and tokens are those of " in output


def test_a_folder_that_rots_after_a_kill_is_repaired_and_serves_everything(tmp_path: Path) -> None:
    chosen = settings(
        tmp_path,
        IGGY_SYSTEM_ENCRYPTION_ENABLED="true",
        IGGY_SYSTEM_ENCRYPTION_KEY=base64.b64encode(bytes(range(32))).decode(),
    )
    payloads = [numbered(number) for number in range(20)]
    with starting(tmp_path / "data") as start:
        with Client(server := start(**chosen)) as client:
            client.create_topic({"compression_algorithm": "zstd"}).raise_for_status()
            for payload in payloads:
                client.send(payload)
            client.until_archived()
        server.signal(signal.SIGKILL)
        server.end()
        for path in (tmp_path / "data/streams").rglob("*"):
            if path.suffix in (".log", ".json"):
                content = bytearray(path.read_bytes())
                for position in range(9, len(content), 611):
                    content[position] ^= 4
                path.write_bytes(content)
        code, output = whippet(tmp_path, "check", **chosen)
        assert (code, "stream.json" in output, ".log" in output) == (1, True, True), output
        code, output = whippet(tmp_path, "repair", **chosen)
        assert (code, ", 0 not" in output) == (0, True), output
        code, output = whippet(tmp_path, "check", **chosen)
        assert (code, "0 of them damaged" in output) == (0, True), output
        with Client(start(**chosen)) as client:
            assert [message["payload"] for message in client.poll()] == payloads
            assert client.problems() == []


def test_backup_copies_the_folder_of_a_running_server(tmp_path: Path) -> None:
    with starting(tmp_path / "data") as start, Client(start(**ROOT)) as client:
        client.create_topic().raise_for_status()
        client.send("YQ==", "Yg==")
        code, output = whippet(tmp_path, "backup", str(tmp_path / "copy"))
        assert (code, "copied 1 partitions" in output) == (0, True), output
        code, output = whippet(tmp_path, "backup", str(tmp_path / "copy"))
        assert (code, "is not empty" in output) == (2, True), output
        client.send("Yw==")
    code, output = whippet(tmp_path, "check", str(tmp_path / "copy"))
    assert (code, "2 messages" in output) == (0, True), output
    code, output = whippet(tmp_path, "backup", "--source", str(tmp_path / "none"), str(tmp_path / "other"))
    assert (code, "not a data folder" in output) == (2, True), output


def test_an_archive_that_fails_shows_in_health_and_metrics(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(b"a file in the place of the folder")
    with starting(tmp_path / "data") as start, Client(start(**settings(tmp_path))) as client:
        client.create_topic().raise_for_status()
        client.send("YQ==")
        assert client.metric("whippet_archive_healthy") == 0
        assert client.metric("whippet_archive_failures_total") > 0
        assert client.metric("whippet_archive_waiting_messages") == 1
        assert client.problems() == ["archive: not everything was archived since the start; the log has the reason"]
        assert len(client.poll()) == 1


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01"])
def test_restore_refuses_what_is_not_a_time(tmp_path: Path, text: str) -> None:
    code, output = whippet(tmp_path, "restore", "--to", text, str(tmp_path / "copy"))
    assert (code, "is not a time such as" in output) == (2, True), output


def test_from_archive_needs_an_archive(tmp_path: Path) -> None:
    code, output = whippet(tmp_path, "serve", "--from-archive", **ROOT)
    assert (code, "needs data_maintenance.archiver.enabled" in output) == (2, True), output
