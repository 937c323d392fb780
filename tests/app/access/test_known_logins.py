"""Known logins survive a restart, and errors in their file never prevent a start."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec
import pytest

from tests.app.access.support.world import ROOT
from tests.storage.support.world import opened
from tests.support.clocks import Seconds
from whippet.app.access.known_logins import BYTES_MAX, NAME, KnownLogins
from whippet.app.access.throttle import USUAL
from whippet.app.config import Config
from whippet.app.errors import Code, CommandError
from whippet.app.gateway import Gateway

PAIRS = [("10.0.0.1", "alice"), ("2001:db8::/64", "bob")]


async def test_known_logins_are_read_back_in_order(tmp_path: Path) -> None:
    folder = str(tmp_path / "access")
    first = KnownLogins(folder)
    assert first.read() == []
    first.keep(lambda: PAIRS[:1])
    first.keep(lambda: PAIRS)
    await first.close()
    assert KnownLogins(folder).read() == PAIRS


async def test_changes_during_a_write_are_written_before_closing(tmp_path: Path) -> None:
    known = KnownLogins(str(tmp_path))
    current = PAIRS[:1]
    known.keep(lambda: current)
    await asyncio.sleep(0)
    current = PAIRS
    known.keep(lambda: current)
    await known.close()
    assert msgspec.json.decode((tmp_path / NAME).read_bytes()) == [list(pair) for pair in PAIRS]


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[[1,2]]", b'[["a"]]', b'[["a","\xff"]]', b"[" * 100_000, b" " * (BYTES_MAX + 1)]
)
async def test_a_damaged_file_is_reported_and_replaced(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / NAME).write_bytes(content)
    known = KnownLogins(str(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert known.read() == []
    assert NAME in caplog.text
    known.keep(lambda: PAIRS)
    await known.close()
    assert KnownLogins(str(tmp_path)).read() == PAIRS


def test_a_file_of_the_maximum_length_is_read(tmp_path: Path) -> None:
    content, four_mib = msgspec.json.encode(PAIRS), 4 << 20
    (tmp_path / NAME).write_bytes(content.ljust(four_mib))
    assert KnownLogins(str(tmp_path)).read() == PAIRS
    (tmp_path / NAME).write_bytes(content.ljust(four_mib + 1))
    assert KnownLogins(str(tmp_path)).read() == []


async def test_nothing_is_written_after_closing(tmp_path: Path) -> None:
    known = KnownLogins(str(tmp_path))
    known.keep(lambda: PAIRS[:1])
    await known.close()
    known.keep(lambda: PAIRS)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await known.close()
    assert known.read() == PAIRS[:1]


async def test_an_unwritable_folder_is_reported_and_does_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "access").write_text("a file")
    known = KnownLogins(str(tmp_path / "access"))
    with caplog.at_level(logging.WARNING):
        assert known.read() == []
        known.keep(lambda: PAIRS)
        await known.close()
    assert caplog.text.count("known_logins.json ") == 2


async def test_after_a_restart_a_bad_client_does_not_lock_out_good_ones_at_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses the real limits and hashes, on a gateway that is opened as the server opens it."""
    async with opened(tmp_path) as store:
        gateway = await Gateway.open(Config(), store, ROOT)
        await gateway.users.save_root()
        assert (await gateway.users.log_in("root", ROOT["IGGY_ROOT_PASSWORD"], "10.0.0.1:1")).id == 0
        await gateway.close()
    async with opened(tmp_path) as store:
        gateway = await Gateway.open(Config(), store, ROOT)
        throttle, time = gateway.users._throttle, Seconds()
        monkeypatch.setattr(throttle, "_clock", time)
        monkeypatch.setattr(throttle, "_sleep", time.sleep)
        refused = 0
        for port in range(USUAL.free_of_address + 20):
            try:
                await gateway.users.log_in("nobody", "a guess", f"10.0.0.1:{port + 2}")
            except CommandError as error:
                refused += error.code is Code.TOO_MANY_LOGINS
            if refused:
                break
        assert refused
        for port in range(5):
            logged_in = await gateway.users.log_in("root", ROOT["IGGY_ROOT_PASSWORD"], f"10.0.0.1:{port + 100}")
            assert logged_in.id == 0
        await gateway.close()
