"""`whippet bench run` on a live server: every kind, what it leaves behind, and what it says when something is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.app.cli.remote.support.commands import PASSWORD, USER, Whippet
from tests.app.support.process import Gateway, starting
from tests.support.sizes import mostly_long
from whippet.app.cli.main import SUBCOMMANDS, command_of
from whippet.app.client import Client
from whippet.app.client.commands import to_partition
from whippet.bench.run import conductor, schemas
from whippet.bench.run import result as results
from whippet.bench.run.messages import Maker
from whippet.bench.run.settings import Range, settings_of

ROOT = Path(__file__).parents[3]
SCHEMAS = json.loads((ROOT / "docs" / "bench.schema.json").read_text())
DEADLINE_S = 60
SMALL = ("-m", "100", "-P", "10", "-b", "20", "--output", "json")
READ = ("-P", "10", "--output", "json")
KINDS = [
    ("pinned-producer", ("-p", "2"), 400, 0),
    ("ppc", ("-p", "2", "-c", "3", "-w", "50ms"), 400, 600),
    ("balanced-producer", ("-p", "2", "-a", "3"), 400, 0),
    ("bpcg", ("-p", "3", "-c", "4", "-a", "5", "-g", "2", "--processes", "2"), 600, 1200),
    ("e2e", ("-p", "3", "-s", "2"), 600, 1000),
    ("e2ecg", ("-p", "2", "-c", "3", "-a", "4"), 400, 400),
    ("ppc", ("-p", "1", "-c", "1", "-H"), 200, 200),
    ("bpcg", ("-p", "2", "-c", "2", "-a", "2", "-H"), 400, 400),
    ("e2e", ("-p", "2", "-r", "1MB"), 400, 400),
    ("ppc", ("-p", "2", "-c", "2", "-r", "500KB", "-R", "2"), 400, 400),
]
USUAL = (KINDS[1], KINDS[3], KINDS[4], KINDS[5], KINDS[7])


def totals(shown: Any) -> dict[str, Any]:
    return {role["role"]: role["total"] for role in shown["roles"]}


def streams(whippet: Whippet) -> list[str]:
    return whippet("stream", "list", "--output", "quiet").out.split()


def has_messages(whippet: Whippet, *options: str) -> bool:
    return any(stream["messages_count"] for stream in whippet("stream", "list", "--output", "json", *options).json)


@pytest.mark.parametrize("case", mostly_long(KINDS, USUAL), ids=lambda case: " ".join((case[0], *case[1])))
def test_every_kind_sends_and_reads_all_and_leaves_nothing(
    whippet: Whippet, case: tuple[str, tuple[str, ...], int, int]
) -> None:
    kind, options, sent, read = case
    shown = whippet("bench", "run", kind, *SMALL, *options).json
    found = totals(shown)
    # The warm-up sends as much as there is time for, and not all of it is read before its end.
    assert found["producers"]["messages"] == sent
    assert found["producers"]["latency"]["p50"] > 0
    if read:
        assert found["consumers"]["messages"] >= read
        assert found["consumers"]["messages"] == read or "-w" in options
        assert found["consumers"]["end_to_end"]["p99"] > 0
        assert shown["verification"]["is_good"]
        assert shown["verification"]["read"] == shown["verification"]["expected"] >= read
    else:
        assert shown["verification"] is None
    assert streams(whippet) == []


def test_what_was_kept_is_read_by_consumers_and_never_deleted(whippet: Whippet) -> None:
    whippet("bench", "run", "bp", *SMALL, "-p", "2", "-a", "2", "--keep", "-e", "1h", "--max-topic-size", "3GB")
    (topic,) = whippet("topic", "list", "bench-stream-1", "--output", "json").json
    assert (topic["message_expiry"], topic["max_topic_size"]) == (3600 * 10**6, 3 * 10**9)
    assert streams(whippet) == ["bench-stream-1"]
    assert "the stream bench-stream-1 exists" in whippet("bench", "run", "bp", *SMALL, code=2).err
    shown = whippet("bench", "run", "bcg", *READ, "-c", "2", "-b", "10").json
    assert totals(shown)["consumers"]["messages"] >= 200
    assert shown["verification"]["is_good"]
    refused = whippet("bench", "run", "bcg", *READ, "-c", "2", "-b", "21", code=2).err
    assert "bench-stream-1/topic-1 has 400 messages, and 420 are to be read" in refused
    again = whippet("bench", "run", "bpcg", *SMALL, "-p", "2", "-c", "2", "-a", "2", "--reuse-streams").json
    assert totals(again)["consumers"]["messages"] == 400
    assert (
        "has 2 partitions, not --partitions 3"
        in whippet("bench", "run", "bp", *SMALL, "-a", "3", "--reuse-streams", code=2).err
    )
    assert "exists" in whippet("bench", "run", "bp", *SMALL, "-a", "2", "-e", "1h", "--reuse-streams", code=2).err
    assert whippet("consumer-group", "list", "bench-stream-1", "topic-1", "--output", "quiet").out == ""
    (topic,) = whippet("topic", "list", "bench-stream-1", "--output", "json").json
    assert topic["messages_count"] == 800
    whippet("stream", "delete", "bench-stream-1", "--yes")


def test_a_topic_is_removed_from_a_stream_that_was_there(whippet: Whippet) -> None:
    whippet("stream", "create", "bench-stream-1")
    whippet("bench", "run", "pp", *SMALL, "-p", "1", "--reuse-streams")
    assert whippet("topic", "list", "bench-stream-1", "--output", "quiet").out == ""
    whippet("stream", "delete", "bench-stream-1", "--yes")


def test_sizes_amounts_and_rates_are_as_they_were_asked_for(whippet: Whippet) -> None:
    options = ("-m", "50..150", "-P", "5..15", "-T", "100KB", "-r", "400KB", "--output", "json")
    shown = whippet("bench", "run", "ppc", "-p", "2", "-c", "2", *options).json
    found = totals(shown)["producers"]
    assert 100_000 <= found["bytes"] < 106_000
    assert 50 < found["bytes"] / found["messages"] < 150
    # A quarter of a second: nobody is faster than the limit.
    assert found["seconds"] > 0.2
    assert shown["settings"]["read_amplification"] == 1.05
    assert shown["verification"]["is_good"]


def test_consumers_stop_after_an_amount_of_data_and_begin_again_after_the_warm_up(whippet: Whippet) -> None:
    whippet("bench", "run", "pp", *SMALL, "-p", "2", "--keep")
    shown = whippet("bench", "run", "pc", "-c", "2", "-P", "10", "-T", "30KB", "-w", "50ms", "--output", "json").json
    assert totals(shown)["consumers"]["bytes"] == 30_000
    assert totals(shown)["consumers"]["end_to_end"] is None
    assert shown["verification"]["is_good"]
    for stream in ("bench-stream-1", "bench-stream-2"):
        whippet("stream", "delete", stream, "--yes")


def test_a_message_that_was_stored_twice_is_noticed_and_the_command_fails(whippet: Whippet, gateway: Gateway) -> None:
    place = gateway.line(r"tcp://(\S+)").group(1)
    address = f"iggy://{USER}:{PASSWORD}@{place}"

    async def fill() -> None:
        maker = Maker(5, 0, Range(10, 10), Range(20, 20))
        first, second = maker.make(0).batch, maker.make(0).batch
        async with await Client.connect(address) as client:
            await client.create_stream("bench-stream-1")
            await client.create_topic("bench-stream-1", "topic-1")
            for batch in (first, second, first):
                await client.send_messages("bench-stream-1", "topic-1", bytearray(batch), to_partition(0))

    asyncio.run(fill())
    ran = whippet("bench", "run", "pc", "-c", "1", "-P", "20", "-b", "3", code=1)
    assert "FAILED: 20 messages came again, or after a later one of their producer" in ran.err
    assert "FAILED" in ran.out
    whippet("stream", "delete", "bench-stream-1", "--yes")


def test_results_and_pages_are_written_where_they_were_asked_for(whippet: Whippet, tmp_path: Path) -> None:
    options = ("-m", "100", "-P", "10", "-b", "5", "-p", "1")
    ran = whippet(
        "bench", "run", "pp", *options, "--result", "r.json", "--report", "r.html", "-o", "out", "--remark", "a b"
    )
    assert ran.out.startswith("  ")
    assert "all producers" in ran.out
    (folder,) = (tmp_path / "out").iterdir()
    assert folder.name.startswith("pinned_producer_1_100_10_5_tcp_a-b_")
    (page,) = folder.glob("report-*.html")
    (file,) = folder.glob("result-*.json")
    assert file.read_bytes() == (tmp_path / "r.json").read_bytes()
    assert page.read_text() == (tmp_path / "r.html").read_text()
    found = results.read(file.read_bytes())
    assert (found.remark, found.settings.kind) == ("a b", "pinned-producer")
    assert PASSWORD not in file.read_text()
    jsonschema_rs.validate(SCHEMAS["bench run"], json.loads(file.read_text()))
    line = whippet("bench", "run", "pp", *options, "--output", "ndjson", "--identifier", "me", "-o", "out").out
    assert json.loads(line)["format"] == results.FORMAT
    assert (tmp_path / "out" / "pinned_producer_1_100_10_5_tcp_me").is_dir()
    assert whippet("bench", "run", "pp", *options, "--output", "quiet").out == ""


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("nonsense",), "there is no kind 'nonsense'"),
        (("pp", "-c", "2"), "--consumers does not apply to pinned-producer"),
        (("pp", "-T", "much"), "--total-data is a size"),
        (("pp", "-r", "0"), "--rate-limit is a size"),
        (("pp", "-w", "soon"), "--warmup-time is a duration"),
        (("pp", "-t", "10us"), "--sampling-time is a duration such as 10ms, 5s or 2m, at least 1ms"),
        (("pp", "--identifier", "x"), "--identifier is for the folder"),
        (("pc",), "the stream bench-stream-1 does not exist; `whippet bench run pinned-producer --keep`"),
    ],
)
def test_a_wrong_option_is_named_and_nothing_is_created(
    whippet: Whippet, options: tuple[str, ...], sentence: str
) -> None:
    assert sentence in whippet("bench", "run", *options, code=2).err
    assert streams(whippet) == []


def test_the_examples_are_commands_that_exist(whippet: Whippet) -> None:
    shown = whippet("bench", "run", "examples").out.splitlines()
    lines = [line.split() for line in shown if line.startswith("whippet ")]
    assert len(lines) == 9
    for _, _, verb, *words in lines:
        command = command_of(next(each for each in SUBCOMMANDS if each.words == ("bench", verb)))
        parsed = command.make_context("whippet", list(words)).params
        if verb == "run":
            settings_of(parsed["kind"], {name: parsed[name] for name in ("producers", "consumers", "partitions")}, 2)


def test_an_option_is_checked_before_the_server_is_asked(whippet: Whippet) -> None:
    server = ("--server", "iggy://127.0.0.1:1")
    assert "does not apply" in whippet("bench", "run", "pp", "-c", "2", *server, code=2).err
    assert "is the server running" in whippet("bench", "run", "pp", *server, code=5).err


def test_messages_that_are_gone_before_they_are_read_are_reported(
    whippet: Whippet, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = gateway.line(r"tcp://(\S+)").group(1)
    monkeypatch.setattr(conductor, "STALLED_S", 0.3)

    async def purge_when_there_are_some() -> None:
        async with await Client.connect(f"iggy://{USER}:{PASSWORD}@{place}") as client:
            while True:
                stream = await client.get_stream("bench-stream-1")
                if stream is not None and stream.info.messages_count > 100:
                    await client.purge_stream("bench-stream-1")
                    return

    # Consumers that may read no faster than this are far behind.
    options = ("-p", "1", "-c", "1", "-m", "1000", "-P", "10", "-b", "40", "-r", "1MB", "-R", "1")
    purging = threading.Thread(target=asyncio.run, args=(purge_when_there_are_some(),))
    purging.start()
    try:
        ran = whippet("bench", "run", "bpcg", *options, "-a", "1", code=1)
    finally:
        purging.join()
    assert "messages did not arrive" in ran.err


def test_a_process_of_the_load_that_dies_ends_the_run(whippet: Whippet) -> None:
    program = [sys.executable, "-m", "whippet.app.cli.main", "bench", "run", "pp", "-p", "1", "-r", "10KB", "-P", "1"]
    running = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not streams(whippet):
            assert running.poll() is None
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        while not (found := children.read_text().split()):
            assert running.poll() is None
        os.kill(int(found[0]), signal.SIGKILL)
        _, err = running.communicate(timeout=DEADLINE_S)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 1
    assert err == "whippet: a process of the load ended early, with exit code -9\n"
    assert streams(whippet) == []


def test_a_server_that_ends_during_the_run_is_reported_in_one_line(whippet: Whippet, tmp_path: Path) -> None:
    with starting(tmp_path / "data") as start:
        mortal = start(IGGY_ROOT_USERNAME=USER, IGGY_ROOT_PASSWORD=PASSWORD)
        place = mortal.line(r"tcp://(\S+)").group(1)
        program = [sys.executable, "-m", "whippet.app.cli.main", "bench", "run", "ppc", "-p", "1", "-c", "1"]
        rest = ["-r", "10KB", "-P", "1", "--server", f"iggy://{place}"]
        running = subprocess.Popen([*program, *rest], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            while not has_messages(whippet, "--server", f"iggy://{place}"):
                assert running.poll() is None
            mortal.process.kill()
            out, err = running.communicate(timeout=DEADLINE_S)
        finally:
            running.kill()
            running.wait()
    assert (running.returncode, out) == (5, "")
    assert err.count("\n") == 1
    assert "is closed" in err
    assert "the stream bench-stream-1 could not be removed" in err


def test_progress_is_shown_on_a_terminal_and_nowhere_else(whippet: Whippet) -> None:
    program = [sys.executable, "-m", "whippet.app.cli.main", "bench", "run", "pp", "-p", "1", "-r", "100KB", "-b", "30"]
    mine, theirs = pty.openpty()
    running = subprocess.Popen([*program, "-P", "1"], stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):
        while octets := os.read(mine, 4096):
            seen += octets
    os.close(mine)
    out, _ = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 0
    assert re.search(rb"\[#*\.+\] +\d+%  .* sent", seen)
    assert b"sent" not in out
    assert seen.endswith(b"\r\x1b[K")


def test_what_the_server_refuses_is_reported_and_nothing_remains(whippet: Whippet) -> None:
    ran = whippet("bench", "run", "pp", "-p", "2", "-m", "100000000", "-P", "1", "-b", "1", code=4)
    assert "payload" in ran.err
    assert streams(whippet) == []


def test_ctrl_c_removes_what_the_run_created(whippet: Whippet) -> None:
    program = [sys.executable, "-m", "whippet.app.cli.main", "bench", "run", "ppc", "-p", "1", "-c", "1"]
    running = subprocess.Popen([*program, "-r", "10KB", "-P", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        while not streams(whippet):
            assert running.poll() is None
        os.kill(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=DEADLINE_S)
    finally:
        running.kill()
        running.wait()
    assert (running.returncode, out, err) == (130, b"", b"")
    assert streams(whippet) == []


@pytest.mark.parametrize("transport", mostly_long(["modern", "ws", "http", "quic"], ["modern", "http"]))
def test_each_transport_and_both_protocols_are_measured(transport: str, whippet: Whippet, gateway: Gateway) -> None:
    scheme = "tcp" if transport == "modern" else transport
    place = gateway.line(rf"\b{scheme}://(\S+)").group(1)
    server = f"iggy+{scheme}://{place}{'?wire=modern' if transport == 'modern' else ''}"
    shown = whippet("bench", "run", "ppc", *SMALL, "-p", "1", "-c", "1", "--server", server).json
    assert shown["verification"]["is_good"]
    assert totals(shown)["consumers"]["messages"] == 200
    assert shown["server"]["address"] == server


def test_the_schemas_in_the_documentation_are_those_of_the_code() -> None:
    assert (ROOT / "docs" / "bench.schema.json").read_text() == schemas.schemas(), "run `make docs`"


@pytest.mark.long
def test_the_commands_on_the_page_about_benchmarks_work_as_described(gateway: Gateway, tmp_path: Path) -> None:
    shown = re.findall(r"^```bash\n(.*?)^```", (ROOT / "docs" / "benchmarks.md").read_text(), re.MULTILINE | re.DOTALL)
    script = "".join(block for block in shown if ".venv/bin/whippet" not in block)
    assert script.count("whippet bench run ") == 7
    # Less data, so that it takes seconds. The noise of such short runs hides everything.
    script = script.replace("100MB", "1MB").replace("--message-batches 100", "--message-batches 2")
    script = script.replace("--fail-if-slower 50", "--fail-if-slower 100000").replace("in 1 2 3 4 5;", "in 1 2;")
    whippet = f'whippet() {{ {sys.executable} -m whippet.app.cli.main "$@"; }}\n'
    server = gateway.line(r"tcp://(\S+)").group(1)
    own = {"WHIPPET_SERVER": f"iggy://{server}", "WHIPPET_USERNAME": USER, "WHIPPET_PASSWORD": PASSWORD}
    others = {name: value for name, value in os.environ.items() if not name.startswith(("IGGY_", "WHIPPET_"))}
    ran = subprocess.run(
        ["bash", "-euc", whippet + script],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        cwd=tmp_path,
        env=others | own | {"WHIPPET_CONFIG": str(tmp_path / "contexts.json")},
    )
    assert ran.returncode == 0, ran.stderr
    assert "All 1,000 messages were read once and in order." in ran.stdout
    assert "producers: throughput" in ran.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "result.json", "before", "after"}
