"""`whippet top`, on real terminals and without one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.cli.remote.support.commands import PASSWORD, USER, Whippet
from tests.app.cli.remote.support.terminal import END_SIGNALS, INTERRUPT, terminal
from tests.app.support.process import Gateway, starting
from whippet.app.cli.remote import activity
from whippet.app.cli.remote.activity import Group, Reading, Topic
from whippet.app.cli.remote.terminal import split

QUICK = ("--interval", "100ms")


@pytest.fixture
def topic(whippet: Whippet) -> Iterator[str]:
    whippet("stream", "create", "busy")
    whippet("topic", "create", "busy", "day", "2")
    whippet("message", "send", "busy", "day", *(["one"] * 6), "-p", "1")
    whippet("consumer-group", "create", "busy", "day", "billing")
    whippet("consumer-offset", "set", "billing", "busy", "day", "1", "1", "-k", "consumer-group")
    yield "busy/day"
    whippet("stream", "delete", "busy", "--yes")


def test_a_snapshot_has_topics_groups_and_connections(whippet: Whippet, topic: str, gateway: Gateway) -> None:
    metrics = f"http://{gateway.address()}/metrics"
    found = whippet("top", *QUICK, "--metrics", metrics, "--output", "json").json
    assert found["topics"] == [
        {
            "topic": topic,
            "partitions_count": 2,
            "messages_count": 6,
            "size_bytes": found["topics"][0]["size_bytes"],
            "in_per_second": 0.0,
            "in_size": 0,
            "out_per_second": 0.0,
            "lag": 4,
        }
    ]
    assert found["groups"] == [
        {"topic": topic, "group": "billing", "members_count": 0, "lag": 4, "out_per_second": 0.0}
    ]
    assert (found["connections"], found["lag"], found["topics_count"]) == ({"tcp": 1}, 4, 1)
    assert [shard["shard"] for shard in found["shards"]]
    shown = whippet("top", *QUICK).out
    assert "busy/day" in shown
    assert "\x1b" not in shown


def test_ndjson_is_a_line_per_interval(whippet: Whippet, topic: str) -> None:
    lines = whippet("top", *QUICK, "--count", "3", "--output", "ndjson").out.splitlines()
    assert [json.loads(line)["lag"] for line in lines] == [4, 4, 4]
    times = [json.loads(line)["time"] for line in lines]
    assert times == sorted(set(times))


def test_wrong_options_are_refused(whippet: Whippet) -> None:
    assert "examples are 500ms" in whippet("top", "--interval", "soon", code=2).err
    assert "at least" in whippet("top", "--interval", "1ms", code=2).err
    assert "--metrics" in whippet("top", "--metrics", "http://127.0.0.1:1/metrics", code=2).err


def test_a_user_without_rights_sees_what_is_allowed(
    whippet: Whippet, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHIPPET_NEW_PASSWORD", "a password")
    whippet("user", "create", "ann", "-g", "read_streams")
    with monkeypatch.context() as as_ann:
        as_ann.setenv("WHIPPET_USERNAME", "ann")
        as_ann.setenv("WHIPPET_PASSWORD", "a password")
        found = whippet("top", *QUICK, "--output", "json").json
    assert (found["memory"], found["connections"]) == (None, None)
    assert [each["topic"] for each in found["topics"]] == [topic]


def test_keys_sort_and_scroll_and_q_ends_it(whippet: Whippet, topic: str) -> None:
    for name in "abcdefghijklmnopqrstuvw":
        whippet("topic", "create", "busy", name)
    with terminal("top", *QUICK, lines=14) as shown:
        at = shown.expect(r"in/s v")
        shown.type("\x1b[C")
        at = shown.expect(r"in bytes/s v", after=at)
        shown.type("\x1b[D\x1b[D")
        at = shown.expect(r"size v", after=at)
        shown.type("r")
        at = shown.expect(r"size \^", after=at)
        shown.type("g")
        at = shown.expect(r"billing +0 +0 +4", after=at)
        shown.type("gsssss")
        at = shown.expect(r"topic \^", after=at)
        at = shown.expect(r"busy/a\b", after=at)
        shown.type("\x1b[6~\x1b[B\x1b[6~")
        at = shown.expect(r"busy/w\b", after=at)
        shown.resize(40, 60)
        at = shown.expect(r"busy/a\b", after=at)
        shown.type("q")
        assert shown.end() == 0
        assert shown.is_restored
        assert shown.shown.count("\x1b[?1049h") == 1


def test_ctrl_c_and_signals_restore_the_terminal(whippet: Whippet, topic: str) -> None:
    with terminal("top", *QUICK) as shown:
        shown.expect("busy/day")
        shown.type(INTERRUPT)
        assert (shown.end(), shown.is_restored) == (130, True)
    for number in END_SIGNALS:
        with terminal("top", *QUICK) as shown:
            shown.expect("busy/day")
            shown.process.send_signal(number)
            assert (shown.end(), shown.is_restored) == (0, True)


def test_names_do_not_command_the_terminal(whippet: Whippet) -> None:
    whippet("stream", "create", "evil [red]\x1b]0;title\x07")
    whippet("topic", "create", "evil [red]\x1b]0;title\x07", "t")
    with terminal("top", *QUICK, "--count", "2") as shown:
        assert shown.end() == 0
        assert "\x1b]" not in shown.shown
        assert "evil [red]\\x1b" in shown.text
    whippet("stream", "delete", "evil [red]\x1b]0;title\x07", "--yes")


def test_a_server_that_is_gone_and_comes_back_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHIPPET_USERNAME", USER)
    monkeypatch.setenv("WHIPPET_PASSWORD", PASSWORD)
    root = {"IGGY_ROOT_USERNAME": USER, "IGGY_ROOT_PASSWORD": PASSWORD}
    with starting(tmp_path / "data") as start:
        first = start(**root)
        address = first.line(r"tcp://(\S+)").group(1)
        monkeypatch.setenv("WHIPPET_SERVER", f"iggy://{address}")
        with terminal("top", *QUICK) as shown:
            shown.expect("connections 1 tcp")
            first.process.kill()
            first.end()
            at = shown.expect("is not reachable: trying again")
            start(IGGY_TCP_ADDRESS=address)
            shown.expect("connections 1 tcp", after=at)
            shown.type("q")
            assert (shown.end(), shown.is_restored) == (0, True)


def reading(at: float, ends: dict[int, int], stored: dict[int, int], size: int = 0) -> Reading:
    held = dict(ends)
    topic = Topic(len(ends), sum(held.values()), size, ends, held, {"g": Group(1, stored)})
    return Reading(at, int(at * 1e6), None, None, {"s/t": topic}, 1, {"0": {"writes": at * 10}})


def test_rates_are_differences_by_time_and_never_negative() -> None:
    found = activity.between(reading(1, {0: 10, 1: 5}, {0: 3}, 100), reading(3, {0: 30, 1: 0}, {0: 13, 1: 2}, 50), "x")
    (topic,), (group,), (shard,) = found.topics, found.groups, found.shards
    assert (topic.in_per_second, topic.in_size, found.in_per_second) == (10.0, 0, 10.0)
    assert (group.out_per_second, group.lag, found.lag) == (5.0, 16, 16)
    assert shard.writes_per_second == 10.0


def test_keys_that_arrive_together_are_told_apart() -> None:
    assert list(split(b"q\x1b[A\x1b\x1b[6~g")) == ["q", "up", "escape", "page down", "g"]
