"""The audit log in its file: who did what, complete, bounded, without secrets, and never in the way of others."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.app.access.support.world import ROOT, SECOND, Person, refusal
from tests.app.audit.support.audited import audited_world
from tests.storage.support.world import texts
from tests.support.running import HANGS_S
from whippet.app.access.permissions import GlobalPermissions, Permissions
from whippet.app.audit import audit_file, repetitions
from whippet.app.audit.audit_file import AuditFile
from whippet.app.audit.entry import ENTRY_BYTES_MAX, Entry, encode
from whippet.app.audit.trail import Trail
from whippet.app.commands import audited, registry, requests
from whippet.app.commands.requests import Consumer, ConsumerKind, Partitioning, PartitioningKind
from whippet.app.config.schema import Audit
from whippet.app.errors import Code
from whippet.app.model.identity import UserStatus
from whippet.app.model.options import Option, ValueKind
from whippet.app.telemetry.rotating_file import Bounds, RotatingFile

GROUP = Consumer(ConsumerKind.GROUP, "g")
SOMEBODY = Consumer(ConsumerKind.CONSUMER, "c")


async def topic(root: Person) -> None:
    await root.execute(requests.CreateStream("s"))
    await root.execute(requests.CreateTopic("s", "t", 1))


async def test_every_change_says_who_from_where_what_before_and_after(tmp_path: Path) -> None:
    async with audited_world(tmp_path) as log:
        root = await log.here.root()
        await topic(root)
        await root.execute(requests.UpdateTopic("s", "t", "u", message_expiry=5_000_000))
        await root.execute(requests.CreatePartitions("s", "u", 2))
        await root.execute(requests.CreateConsumerGroup("s", "u", "g"))
        await root.execute(requests.PurgeTopic("s", "u"))
        await root.execute(requests.DeleteStream("s"))
        found = await log.entries()
        who = {(entry["user"], entry["user_id"], entry["address"], entry["transport"]) for entry in found}
        assert who == {("root", 0, root.session.address, "tcp")}
        assert all(entry["outcome"] == "done" for entry in found)
        changes = [(entry["command"], each) for entry in found for each in entry.get("changes", [])]
        assert [(command, each["kind"], each["name"]) for command, each in changes] == [
            ("create_stream", "stream", "s"),
            ("create_topic", "topic", "s/t"),
            ("update_topic", "topic", "s/t"),
            ("create_partitions", "partitions", "s/u"),
            ("create_consumer_group", "consumer_group", "s/u/g"),
            ("purge_topic", "topic", "s/u"),
            ("delete_stream", "stream", "s"),
        ]
        assert changes[0][1]["before"] is None
        assert changes[2][1]["before"] == {"message_expiry": 2**64 - 1, "name": "t", "options": {}}
        assert changes[2][1]["after"] == {
            "message_expiry": 5_000_000,
            "name": "u",
            "options": {"message_expiry": 5_000_000},
        }
        assert (changes[3][1]["before"], changes[3][1]["after"]) == ({"partitions_count": 1}, {"partitions_count": 3})
        assert changes[5][1]["before"].keys() == {"epochs"}
        assert changes[6][1]["after"] is None
        numbers = [entry["number"] for entry in await log.all_entries()]
        assert numbers == list(range(1, len(numbers) + 1))


async def test_every_command_that_changes_something_is_recorded() -> None:
    """A new one has to be added to one of these."""
    reading = ("get_", "poll_", "fetch_", "await_", "follow_", "locate_", "describe_", "ping", "sync_")
    of_connections = {"join_consumer_group", "leave_consumer_group", "attach_session"}
    of_messages = {"send_messages", "flush_unsaved_buffer", "store_consumer_offset"}
    rest = {
        command.name
        for command in registry.BY_REQUEST.values()
        if command.request not in audited.KINDS and not command.name.startswith(reading)
    }
    assert rest == of_connections | of_messages


async def test_changes_of_users_and_tokens_are_recorded_without_secrets(tmp_path: Path) -> None:
    secrets = ["alice's first password", "alice's second password", ROOT["IGGY_ROOT_PASSWORD"]]
    async with audited_world(tmp_path) as log:
        root = await log.here.root()
        await root.execute(requests.CreateUser("alice", secrets[0], UserStatus.ACTIVE, None))
        may = Permissions(GlobalPermissions(read_streams=True))
        await root.execute(requests.UpdatePermissions("alice", may))
        await root.execute(requests.ChangePassword("alice", secrets[0], secrets[1]))
        alice = log.here.person()
        await alice.log_in("alice", secrets[1])
        secrets.append((await alice.execute(requests.CreatePersonalAccessToken("mine", 0))).token)
        await log.here.person().execute(requests.LoginWithPersonalAccessToken(secrets[-1]))
        await alice.execute(requests.DeletePersonalAccessToken("mine"))
        await root.execute(requests.UpdateUser("alice", "alicia", None))
        await root.execute(requests.DeleteUser("alicia"))
        found = {entry["command"]: entry for entry in await log.entries()}
        assert found["update_permissions"]["changes"][0]["before"] == {"permissions": None}
        assert found["update_permissions"]["changes"][0]["after"]["permissions"]["everywhere"]["read_streams"] is True
        assert found["change_password"]["changes"][0]["after"] == {"session_epoch": 1}
        assert found["create_personal_access_token"]["request"]["name"] == "mine"
        assert found["login_with_personal_access_token"]["user"] == "alice"
        assert found["update_user"]["changes"][0]["after"] == {"username": "alicia"}
        assert found["delete_user"]["changes"][0]["after"] is None
        document = log.here.store.users[0]
        secrets.append(json.loads(document)["password_hash"])
        text = (tmp_path / "audit" / "audit.log").read_text()
        assert not [secret for secret in secrets if secret in text or json.dumps(secret)[1:-1] in text]
        assert "hash" not in text


async def test_failed_logins_are_recorded_with_names_of_users_only(tmp_path: Path) -> None:
    async with audited_world(tmp_path) as log:
        await log.here.user("alice")
        stranger = log.here.person("10.6.6.6")
        for name, password in (("alice", "wrong"), ("my password by mistake", "wrong")):
            code = await refusal(stranger.execute(requests.LoginUser(name, password)))
            assert code == Code.INVALID_CREDENTIALS
        failed = [entry for entry in await log.all_entries() if entry["outcome"] != "done"]
        assert [(entry["user"], entry["address"], entry["outcome"]) for entry in failed] == [
            ("alice", stranger.session.address, "invalid_credentials"),
            (None, stranger.session.address, "invalid_credentials"),
        ]
        assert "by mistake" not in (tmp_path / "audit" / "audit.log").read_text()


async def test_refused_changes_are_recorded_with_what_was_attempted(tmp_path: Path) -> None:
    async with audited_world(tmp_path) as log:
        await log.here.user("alice")
        alice = await log.here.logged_in("alice")
        everything = Permissions(GlobalPermissions(manage_users=True))
        assert await refusal(alice.execute(requests.UpdatePermissions("alice", everything))) == Code.UNAUTHORIZED
        (entry,) = [entry for entry in await log.entries() if entry["outcome"] == "unauthorized"]
        assert entry["user"] == "alice"
        assert entry["request"]["user"] == "alice"
        assert entry["request"]["permissions"]["everywhere"]["manage_users"] is True


async def test_offsets_are_recorded_if_they_are_deleted_moved_back_or_set_from_outside(tmp_path: Path) -> None:
    async with audited_world(tmp_path) as log:
        root = await log.here.root()
        await topic(root)
        await send(root, 5)
        for offset in (1, 4):
            await root.execute(requests.StoreConsumerOffset(SOMEBODY, "s", "t", 0, offset))
        assert not [entry for entry in await log.entries() if "offset" in entry["command"]]
        await root.execute(requests.StoreConsumerOffset(SOMEBODY, "s", "t", 0, 2))
        await root.execute(requests.DeleteConsumerOffset(SOMEBODY, "s", "t", 0))
        moved, deleted = [entry["changes"][0] for entry in await log.entries() if "offset" in entry["command"]]
        assert (moved["name"], moved["before"], moved["after"]) == ("c, partition 0", {"offset": 4}, {"offset": 2})
        assert (deleted["before"], deleted["after"]) == ({"offset": 2}, None)


async def test_every_stored_offset_is_recorded_if_that_is_wanted(tmp_path: Path) -> None:
    async with audited_world(tmp_path, Audit(commits=True)) as log:
        root = await log.here.root()
        await topic(root)
        await send(root, 5)
        for offset in (1, 4):
            await root.execute(requests.StoreConsumerOffset(SOMEBODY, "s", "t", 0, offset))
        stored = [entry["changes"][0]["after"] for entry in await log.entries() if "offset" in entry["command"]]
        assert stored == [{"offset": 1}, {"offset": 4}]


async def send(root: Person, count: int) -> None:
    where = Partitioning(PartitioningKind.PARTITION_ID, 0)
    await root.execute(requests.SendMessages("s", "t", where, (texts(*map(str, range(count))),)))


async def test_what_repeats_itself_cannot_push_out_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetitions, "KINDS_MAX", 5)
    async with audited_world(tmp_path) as log:
        first = log.here.person("10.6.6.6")
        for _ in range(20):
            await refusal(first.execute(requests.LoginUser("nobody", "wrong")))
        for number in range(20):
            await refusal(log.here.person(f"10.6.7.{number}").execute(requests.LoginUser("nobody", "wrong")))
        log.here.clock.now += 61 * SECOND
        await log.here.root()
        failed = [entry for entry in await log.all_entries() if entry["outcome"] == "invalid_credentials"]
        assert [entry.get("repeated") for entry in failed if entry.get("address", "").startswith("10.6.6.6:")] == [
            None,
            19,
        ]
        assert len(failed) <= 8
        assert sum(entry.get("repeated", 1) for entry in failed) == 40
        assert not any(entry["user"] for entry in failed)


async def test_what_json_cannot_express_or_is_too_long_is_recorded_without_details(tmp_path: Path) -> None:
    async with audited_world(tmp_path) as log:
        root = await log.here.root()
        odd = Option("o" * 10, ValueKind.RAW, b"\xff" * 10), Option("huge", ValueKind.UINT128, b"\xff" * 16)
        with pytest.raises(UnicodeEncodeError):
            await root.execute(requests.CreateStream("half \ud800 character"))
        await refusal(root.execute(requests.CreateStream("odd", odd)))
        assert [entry["command"] for entry in await log.entries()] == ["create_stream", "create_stream"]
    entry = Entry(time="", number=1, command="c", outcome="done", user="u", request={"x": "y" * ENTRY_BYTES_MAX})
    assert json.loads(encode(entry))["is_shortened"] is True


async def test_while_the_file_cannot_be_written_entries_wait_and_everybody_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_file, "RETRY_S", 0.01)
    async with audited_world(tmp_path) as log:
        root = await log.here.root()
        await log.trail.flush()
        with full_disk(monkeypatch):
            await root.execute(requests.CreateStream("during"))
            failing = log.trail._file
            await until(failing, lambda: failing.problem is not None)
            assert log.here.gateway.readiness.problems() == ["the audit log cannot be written"]
        assert [entry["request"]["name"] for entry in await log.entries()] == ["during"]
        await until(failing, lambda: failing.problem is None)
        assert log.trail.lost == 0


async def test_changes_are_refused_while_a_required_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_file, "RETRY_S", 0.01)
    async with audited_world(tmp_path, Audit(required=True)) as log:
        root = await log.here.root()
        await log.trail.flush()
        file = log.trail._file
        with full_disk(monkeypatch):
            await root.execute(requests.CreateStream("last"))
            await until(file, lambda: file.problem is not None)
            assert await refusal(root.execute(requests.CreateStream("unrecorded"))) == Code.AUDIT_UNAVAILABLE
            assert await refusal(log.here.root()) == Code.AUDIT_UNAVAILABLE
            assert [stream.name for stream in await root.execute(requests.GetStreams())] == ["last"]
        await until(file, lambda: file.problem is None)
        await root.execute(requests.CreateStream("again"))


def test_a_disk_that_is_too_slow_stops_nobody_and_the_file_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_file, "WAITING_MAX", 3)
    going, reached = threading.Event(), threading.Event()
    write = RotatingFile.write

    def slow(file: RotatingFile, line: bytes) -> None:
        reached.set()
        assert going.wait(HANGS_S)
        write(file, line)

    monkeypatch.setattr(RotatingFile, "write", slow)
    file = AuditFile(str(tmp_path), Bounds(0, 0, 1e9), lambda count: b"lost %d" % count)
    file.start()
    file.add(b"first")
    assert reached.wait(HANGS_S)
    for number in range(5):
        file.add(b"%d" % number)
    going.set()
    assert file.flush(HANGS_S)
    file.add(b"after")
    file.stop()
    assert (tmp_path / "audit.log").read_text().split("\n") == ["first", "0", "1", "2", "lost 2", "after", ""]
    assert file.lost == 2


def test_the_file_is_replaced_at_its_size_and_the_oldest_are_removed(tmp_path: Path) -> None:
    file = AuditFile(str(tmp_path), Bounds(100, 300, 1e9), lambda count: b"")
    file.start()
    for number in range(30):
        file.add(b"%050d" % number)
    file.stop()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 300
    assert b"%050d" % 29 in (tmp_path / "audit.log").read_bytes()


def test_the_sizes_and_the_age_come_from_the_configuration(tmp_path: Path) -> None:
    config = Audit(path="elsewhere", max_file_size=1000, max_total_size=2000, retention=3600.0)
    trail = Trail(config, str(tmp_path), lambda: 0)
    assert trail._file._bounds == Bounds(1000, 2000, 3600.0)
    assert trail._file._folder == str(tmp_path / "elsewhere")


async def test_nothing_is_kept_if_it_is_disabled(tmp_path: Path) -> None:
    async with audited_world(tmp_path, Audit(enabled=False)) as log:
        await (await log.here.root()).execute(requests.CreateStream("s"))
        assert log.here.gateway.audit is None
        assert not (tmp_path / "audit").exists()


@contextlib.contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(file: RotatingFile, line: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.path)

    with monkeypatch.context() as patched:
        patched.setattr(RotatingFile, "write", refuse)
        yield


async def until(file: AuditFile, condition: Callable[[], bool]) -> None:
    """The thread notifies about each of its steps."""

    def wait() -> bool:
        with file._changed:
            return file._changed.wait_for(condition, HANGS_S)

    assert await asyncio.to_thread(wait)
