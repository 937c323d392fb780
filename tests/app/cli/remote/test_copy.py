"""`whippet copy` copies each message once, whenever it is killed."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.cli.remote.support.commands import PASSWORD, USER, Whippet
from tests.app.support.process import starting
from tests.support.running import run
from tests.support.sizes import sized
from whippet.app.cli.remote import copying, topic_copy
from whippet.app.cli.remote.failures import Failure, UsageFailure
from whippet.app.cli.remote.topic_copy import Copy, End
from whippet.app.client import Client
from whippet.app.client.commands import FIRST, Commands, to_partition
from whippet.app.client.consumer import received
from whippet.app.commands.requests import Consumer, ConsumerKind, Request
from whippet.storage.batch import Message

PROGRAM = [sys.executable, "-m", "whippet.app.cli.main"]
NAMES = itertools.count()


@pytest.fixture
def stream(whippet: Whippet) -> Iterator[str]:
    name = f"copy{next(NAMES)}"
    whippet("stream", "create", name)
    yield name
    whippet("stream", "delete", name, "--yes")


async def contents(client: Commands, stream: str, topic: str, partition: int) -> list[tuple[int, bytes, bytes, int]]:
    consumer = Consumer(ConsumerKind.CONSUMER, "test")
    polled = await client.poll_messages(stream, topic, consumer, partition_id=partition, strategy=FIRST, count=100_000)
    return [(each.id, each.payload, each.user_headers, each.origin_timestamp) for each in received(polled)]


class Killed(Exception):
    pass


class Dying(Commands):
    """A client of a process that is killed at one of its requests: just before it, or just after it was sent."""

    def __init__(self, client: Client, at: list[int], *, executes: bool) -> None:
        self._client = client
        self._left = at
        self._executes = executes

    def call(self, request: Request) -> asyncio.Future[Any]:
        self._left[0] -= 1
        if self._left[0] > 0:
            return self._client.call(request)
        if self._left[0] == 0 and self._executes:
            self._client.call(request).add_done_callback(lambda done: done.cancelled() or done.exception())
        dead: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        dead.set_exception(Killed())
        return dead

    async def drained(self) -> None:
        await self._client.drained()


async def copied_until_killed(
    address: str, places: tuple[tuple[str, str], tuple[str, str]], at: int, *, executes: bool
) -> bool:
    """Returns True if the copy ended before it was killed."""
    left = [at]
    clients = [await Client.connect(address), await Client.connect(address)]
    source, target = (
        End(Dying(client, left, executes=executes), place, "/".join(place))
        for client, place in zip(clients, places, strict=True)
    )
    copy = Copy(source, target)
    try:
        await copy.open([0, 1])
        while await copy.round():
            pass
        await copy.mark()
        await copy.close()
    except Killed:
        copy._forget_ahead()
        for send in copy._sends:
            send.cancel()
        await asyncio.gather(*copy._sends, return_exceptions=True)
        return False
    else:
        return True
    finally:
        for client in clients:
            await client.close()


@sized("step", 13, long=1)
@pytest.mark.parametrize("executes", [False, True], ids=["before", "after"])
def test_a_copy_that_is_killed_at_any_request_is_continued(
    executes: bool, step: int, stream: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_copy, "POLLED", 2)
    monkeypatch.setattr(topic_copy, "MARK_S", 0)
    monkeypatch.setattr(topic_copy, "RETRY_S", 0.001)
    url = f"iggy://{USER}:{PASSWORD}@{address}?heartbeat_interval=0"

    async def all_of_it() -> None:
        async with await Client.connect(url) as client:
            await client.create_topic(stream, "from", 2)
            # Some of them are the same: a producer has repeated them.
            wanted = [Message(b"%d" % (i // 2), i // 2 + 1, origin_timestamp=i // 2) for i in range(9)]
            for partition in (0, 1):
                await client.send_messages(stream, "from", wanted[partition:], to_partition(partition))
            for at in itertools.count(1, step):
                target = f"to{at}"
                await client.create_topic(stream, target, 2)
                foreign = [Message(b"of somebody else", 77)]
                # What was there before is not ours, even if it is the same.
                for others in (foreign, wanted[1:2]):
                    await client.send_messages(stream, target, others, to_partition(1))
                places = (stream, "from"), (stream, target)
                is_over = await copied_until_killed(url, places, at, executes=executes)
                await client.send_messages(stream, target, foreign, to_partition(0))
                assert await copied_until_killed(url, places, 10**9, executes=False)
                # Nothing is left to copy.
                assert await copied_until_killed(url, places, 10**9, executes=False)
                for partition in (0, 1):
                    found = [each for each in await contents(client, stream, target, partition) if each[0] != 77]
                    expected = await contents(client, stream, "from", partition)
                    assert found == expected[:1] * partition + expected, (at, partition)
                assert await client.get_consumer_groups(stream, target) == ()
                if is_over:
                    break

    run(all_of_it())


@pytest.fixture
def there(tmp_path: Path) -> Iterator[str]:
    """The address of another server."""
    with starting(tmp_path / "other" / "data") as start:
        (tmp_path / "other").mkdir()
        gateway = start(IGGY_ROOT_USERNAME=USER, IGGY_ROOT_PASSWORD=PASSWORD)
        yield "iggy://" + gateway.line(r"tcp://(\S+)").group(1)


@sized("kills", 2, long=40)
def test_kill_9_at_any_time_loses_and_repeats_nothing(
    kills: int, whippet: Whippet, stream: str, there: str, address: str
) -> None:
    whippet("topic", "create", stream, "from", "3")
    Path("lines").write_text("".join(f"line {i}\n" for i in range(20_000)))
    for partition in ("0", "2"):
        whippet("send", f"{stream}/from", "lines", "-p", partition)
    words = ["copy", f"{stream}/from", f"{there}/target/to", "--create", "--output", "json"]
    url = there.replace("iggy://", f"iggy://{USER}:{PASSWORD}@")

    async def count() -> int:
        async with await Client.connect(url) as client:
            topic = await client.get_topic("target", "to")
            return 0 if topic is None else topic.info.messages_count

    for kill in range(kills):
        copying = subprocess.Popen([*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        goal = min(39_000, run(count()) + 1 + kill * 997)
        while copying.poll() is None and run(count()) < goal:
            pass
        copying.send_signal(signal.SIGKILL)
        copying.communicate()
    last = whippet(*words).json
    assert last["messages_count"] <= 40_000
    assert whippet(*words).json == {"messages_count": 0, "size_bytes": 0, "found_count": 0}

    async def both(place: tuple[str, str], server: str) -> list[Any]:
        async with await Client.connect(server) as client:
            return [await contents(client, *place, partition) for partition in range(3)]

    ours = run(both((stream, "from"), f"iggy://{USER}:{PASSWORD}@{address}"))
    assert run(both(("target", "to"), url)) == ours


def until(holds: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    while not holds():
        assert process.poll() is None, process.communicate()


def test_a_copy_follows_until_ctrl_c_and_outlives_a_restart(
    whippet: Whippet, stream: str, tmp_path: Path, address: str
) -> None:
    whippet("topic", "create", stream, "from", "1")
    (tmp_path / "other").mkdir()
    root = {"IGGY_ROOT_USERNAME": USER, "IGGY_ROOT_PASSWORD": PASSWORD}
    with starting(tmp_path / "other" / "data") as start:
        first = start(**root)
        other = first.line(r"tcp://(\S+)").group(1)

        def arrived() -> list[str]:
            return whippet("cat", "s/t", "--server", f"iggy://{other}").out.splitlines()

        def stream_exists(name: str) -> bool:
            listed = whippet("stream", "list", "--server", f"iggy://{other}", "--output", "quiet").out
            return name in listed.splitlines() and bool(
                whippet("topic", "list", name, "--server", f"iggy://{other}", "--output", "quiet").out
            )

        words = ["copy", f"{stream}/from", f"iggy://{other}/s/t", "--create", "--follow"]
        following = subprocess.Popen([*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            whippet("message", "send", stream, "from", "one", "two")
            until(lambda: stream_exists("s"), following)
            until(lambda: arrived() == ["one", "two"], following)
            first.process.kill()
            first.end()
            start(**root, IGGY_TCP_ADDRESS=other).line(r"tcp://(\S+)")
            whippet("message", "send", stream, "from", "three")
            until(lambda: arrived() == ["one", "two", "three"], following)
            following.send_signal(signal.SIGINT)
            _, err = following.communicate(timeout=60)
        finally:
            following.kill()
            following.communicate()
        assert following.returncode == 130
        assert err.count(b"trying again") >= 1
        assert b"Traceback" not in err
        assert whippet("consumer-group", "list", "s", "t", "--server", f"iggy://{other}", "--output", "json").json == []


def test_chosen_partitions_are_copied_and_what_came_since_is_added(whippet: Whippet, stream: str) -> None:
    whippet("topic", "create", stream, "from", "3")
    for partition in ("0", "1", "2"):
        whippet("message", "send", stream, "from", f"in {partition}", "-p", partition, "-H", "n:uint8:7")
    whippet("topic", "create", stream, "to", "3")
    words = ("copy", f"{stream}/from", f"{stream}/to")
    assert whippet(*words, "--partitions", "0,2", "--output", "json").json["messages_count"] == 2
    assert whippet("cat", f"{stream}/to").out == "in 0\nin 2\n"
    assert whippet(*words, "--output", "json").json["messages_count"] == 1
    whippet("message", "send", stream, "from", "later", "-p", "1")
    whippet(*words)
    rows = [json.loads(line) for line in whippet("cat", f"{stream}/to", "--output", "ndjson").out.splitlines()]
    assert sorted((row["partition_id"], row["payload"]) for row in rows) == [
        (0, "in 0"),
        (1, "in 1"),
        (1, "later"),
        (2, "in 2"),
    ]
    assert [row["headers"] for row in rows if row["payload"] != "later"] == [{"n": 7}] * 3
    assert whippet(*words, "--restart", "--output", "json").json["messages_count"] == 4


def test_a_purged_source_begins_again_and_a_purged_destination_is_noticed(whippet: Whippet, stream: str) -> None:
    for name in ("from", "to"):
        whippet("topic", "create", stream, name)
    words = ("copy", f"{stream}/from", f"{stream}/to")
    whippet("message", "send", stream, "from", "one", "two", "-p", "0")
    whippet(*words)
    whippet("topic", "purge", stream, "from", "--yes")
    whippet("message", "send", stream, "from", "three", "-p", "0")
    whippet(*words)
    assert whippet("cat", f"{stream}/to").out == "one\ntwo\nthree\n"
    whippet("topic", "purge", stream, "to", "--yes")
    assert f"{stream}/to has been purged" in whippet(*words, code=1).err
    whippet(*words, "--restart")
    assert whippet("cat", f"{stream}/to").out == "three\n"


def test_two_copies_of_the_same_are_not_made_at_once(
    stream: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_copy, "ALONE_S", 0.1)
    monkeypatch.setattr(topic_copy, "RETRY_S", 0.01)

    async def both() -> None:
        url = f"iggy://{USER}:{PASSWORD}@{address}"
        async with await Client.connect(url) as one, await Client.connect(url) as other:
            for name in ("from", "to"):
                await one.create_topic(stream, name)

            def copy(client: Client) -> Copy:
                return Copy(End(client, (stream, "from"), "from"), End(client, (stream, "to"), "to"))

            first, second = copy(one), copy(other)
            await first.open([0])
            with pytest.raises(Failure, match="another `whippet copy` from from to to is running"):
                await second.open([0])
            await first.close()
            await second.open([0])
            await second.close()

    run(both())


def test_places_and_lists_that_make_no_sense_are_refused(whippet: Whippet, stream: str) -> None:
    whippet("topic", "create", stream, "a", "2")
    whippet("topic", "create", stream, "b", "1")
    for words, code, reason in (
        (("a", f"{stream}/b"), 2, "examples are orders/eu"),
        ((f"{stream}/a", f"{stream}/a"), 2, "the same topic"),
        ((f"{stream}/a", "iggy://host/x"), 2, "no topic of a server"),
        ((f"{stream}/a", "iggy://u:secret@host/s/t"), 2, "must not have a password"),
        ((f"{stream}/a", f"nobody/{stream}/b"), 3, "no context 'nobody'"),
        ((f"{stream}/a", f"{stream}/b"), 1, "partition create"),
        ((f"{stream}/a", f"{stream}/b", "--partitions", "0,x"), 2, "no list of partitions"),
        ((f"{stream}/a", f"{stream}/b", "--partitions", "7"), 3, "partition 7 of"),
        ((f"{stream}/a", f"{stream}/c"), 3, "--create"),
        ((f"{stream}/a", f"{stream}/7", "--create"), 2, "only names can be created"),
        ((f"{stream}/a", "iggy://127.0.0.1:1/s/t"), 5, "no connection"),
    ):
        said = whippet("copy", *words, code=code).err
        assert reason in said
        assert "secret" not in said.replace("secrets", "")


@pytest.mark.parametrize(("text", "found"), [("0", [0]), ("2,0", [0, 2]), ("5-7,6", [5, 6, 7])])
def test_lists_of_partitions_have_numbers_and_ranges(text: str, found: list[int]) -> None:
    assert copying.numbers(text) == found
    for wrong in ("", "7-5", "-1", "1-", "0-999999999"):
        with pytest.raises(UsageFailure):
            copying.numbers(wrong)
