"""`whippet send --producer`: repeated after an interruption, it sends what is missing, exactly once."""

from __future__ import annotations

import io
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.cli.remote.support.commands import Whippet
from tests.support.forked import Forked
from tests.support.sizes import sized
from whippet.app.cli.remote import messages
from whippet.app.cli.remote.send_journal import Journal
from whippet.app.client import Client

DEADLINE_S = 60
ARGUMENTS = ["send", "once/t", "--producer", "p", "input"]
MAIN = f"import sys; from whippet.app.cli.main import main; sys.exit(main({ARGUMENTS}))"


class Killed(BaseException):
    """The process ends here."""


class Kill:
    """Ends the process at a step, which is a write of the journal or a request: just before it, or just after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: int | None = None
        self._step = 0
        for owner, name in ((Journal, "write"), (Client, "send_messages")):
            monkeypatch.setattr(owner, name, self._around(getattr(owner, name)))

    def _around(self, step: Any) -> Any:
        def around(*arguments: Any, **options: Any) -> Any:
            self._pass()
            result = step(*arguments, **options)
            self._pass()
            return result

        return around

    def _pass(self) -> None:
        self._step += 1
        if self._step == self.at:
            raise Killed

    def at_step(self, number: int | None) -> None:
        self.at, self._step = number, 0


@pytest.fixture
def topic(whippet: Whippet) -> Iterator[str]:
    whippet("stream", "create", "once")
    whippet("topic", "create", "once", "t", "2")
    yield "once/t"
    whippet("stream", "delete", "once", "--yes")


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "BATCH_MESSAGES", 10)


def lines(count: int) -> list[str]:
    return [json.dumps({"n": n, "k": n % 3}) for n in range(count)]


@pytest.mark.parametrize("key", [(), ("--key", "$.k")], ids=["lines", "keys"])
@sized("stride", 5, long=1)
def test_a_send_that_is_killed_at_any_step_is_continued(
    key: tuple[str, ...], stride: int, whippet: Whippet, topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = lines(15)
    (tmp_path / "input").write_text("\n".join(expected))
    kill = Kill(monkeypatch)
    for step in itertools.count(1, stride):
        words = ("send", topic, "input", "--producer", f"killed {step}", *key)
        kill.at_step(step)
        try:
            whippet(*words)
        except Killed:
            kill.at_step(None)
            whippet(*words)
        else:
            break
        found = whippet("cat", topic).out.splitlines()
        assert sorted(found) == sorted(expected), f"killed at step {step}"
        if not key:
            assert found == expected, f"killed at step {step}"
        whippet("topic", "purge", "once", "t", "--yes")
    assert step > 12


def test_what_was_sent_is_not_sent_again_and_what_was_added_is(whippet: Whippet, topic: str, tmp_path: Path) -> None:
    words = ("send", topic, "input", "--producer", "p", "--output", "json")
    for count, new in ((12, 12), (12, 0), (31, 19)):
        (tmp_path / "input").write_text("\n".join(lines(count)))
        assert whippet(*words).json["messages_count"] == new
        assert whippet("cat", topic).out.splitlines() == lines(count)
    for other in (["other", *lines(40)], lines(30)):
        (tmp_path / "input").write_text("\n".join(other))
        assert "use another name for another input" in whippet(*words, code=2).err
    assert len(whippet("cat", topic).out.splitlines()) == 31


def test_a_name_that_another_machine_uses_is_refused(
    whippet: Whippet, topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "input").write_text("\n".join(lines(5)))
    whippet("send", topic, "input", "--producer", "p")
    monkeypatch.setenv("WHIPPET_CONFIG", str(tmp_path / "elsewhere" / "contexts.json"))
    assert "use another name" in whippet("send", topic, "input", "--producer", "p", code=1).err
    for name, problem in (("", "is empty"), ("x" * 65, "1 to 64 bytes")):
        assert problem in whippet("send", topic, "input", "--producer", name, code=2).err


def test_two_sends_of_one_name_do_not_run_at_the_same_time(whippet: Whippet, topic: str, address: str) -> None:
    journal = Journal("p", f"iggy://{address}", "once", "t")
    try:
        assert "is running" in whippet("send", topic, "--producer", "p", code=1).err
    finally:
        journal.close()


@pytest.mark.parametrize("transport", ["quic", "ws", "http"])
def test_other_transports_resume_as_well(
    transport: str,
    whippet: Whippet,
    topic: str,
    addresses: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("WHIPPET_SERVER", addresses[transport])
    (tmp_path / "input").write_text("\n".join(lines(25)))
    kill = Kill(monkeypatch)
    for step in (3, 4, 8):
        kill.at_step(step)
        with pytest.raises(Killed):
            whippet("send", topic, "input", "--producer", "p")
    kill.at_step(None)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((tmp_path / "input").read_bytes())))
    whippet("send", topic, "--producer", "p")
    assert whippet("cat", topic).out.splitlines() == lines(25)


@sized("kills", 2, long=40)
def test_kill_9_at_any_time_loses_and_repeats_nothing(kills: int, whippet: Whippet, topic: str, tmp_path: Path) -> None:
    expected = lines(30_000)
    (tmp_path / "input").write_text("\n".join(expected))
    for number in range(kills):
        program = Forked(MAIN, env=os.environ, cwd=tmp_path)
        try:
            program.wait(0.15 + 0.02 * (number % 8))
        except subprocess.TimeoutExpired:
            program.send_signal(signal.SIGKILL)
        program.wait(DEADLINE_S)
        for pipe in (program.stdin, program.stdout, program.stderr):
            assert pipe
            pipe.close()
    whippet("send", topic, "input", "--producer", "p")
    assert whippet("cat", topic).out.splitlines() == expected
