"""0.12 clients without a socket: refused requests, updates, numbered producers, and hostile clients."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.app.access.support.world import world
from tests.transports.support.modern import batch_of, checksum_of, sending
from tests.transports.support.newer import (
    CLIENT,
    ME,
    SECRET,
    Newer,
    frame,
    is_committed,
    root,
    with_topic,
)
from tests.transports.support.next_requests import fetch, poll, sent, stored, target, text
from whippet.app import long_poll
from whippet.app.access.permissions import GlobalPermissions, Permissions
from whippet.app.commands import requests
from whippet.app.commands.responses import OptionFlags
from whippet.app.errors import Code
from whippet.app.model.next_replay import (
    ALL_BYTES_MAX,
    BYTES_MAX,
    REQUESTS_MAX,
    SCARCE_REQUESTS_MAX,
    ReplayMemory,
    ReplayWindow,
)
from whippet.app.model.options import Option, OptionScope, ValueKind
from whippet.storage import batch as batches
from whippet.storage.partition import Partition
from whippet.transports import reservations
from whippet.transports.wire.modern import registration as modern_registration
from whippet.transports.wire.modern.frames import Reason
from whippet.transports.wire.modern.operations import READ
from whippet.transports.wire.next import registration
from whippet.transports.wire.next.operations import BIND_SESSION

OTHER = bytes(range(1, 17))

NEXT, FIRST = requests.Strategy(requests.StrategyKind.NEXT), requests.Strategy(requests.StrategyKind.FIRST)

MINUTE = 60_000_000


# -------------------------------------------------------------------------------------------------- numbered producers


PRODUCER = 15 << 20


def numbered(*texts: bytes, producer: int = PRODUCER, epoch: int = 0, sequence: int = 0) -> bytearray:
    """Builds a batch as a client does: its header names the producer, and its checksum covers that."""
    batch = batch_of(*texts)
    said = struct.pack("<QHI", producer, epoch, sequence)
    batch[52:72] = struct.pack("<B3xQHHI", 1, producer, epoch, 0, sequence)
    positions = [256]
    for _ in texts:
        positions.append(positions[-1] + 48 + sum(struct.unpack_from("<II", batch, positions[-1] + 32)))
    frames = b"".join(bytes(batch[at : at + 8]) for at in positions[:-1])
    struct.pack_into("<Q", batch, 40, checksum_of(bytes(batch[:40]) + bytes(batch[48:52]) + b"\1" + said + frames))
    return batch


async def test_numbered_messages_are_stored_once_and_in_order(tmp_path: Path) -> None:
    """Whatever the numbers of its requests."""
    async with world(tmp_path) as made:
        client = await with_topic(made)
        two, one = numbered(b"a", b"b"), numbered(b"c", sequence=2)
        first = await client.demand(sending(two))
        assert is_committed(first)
        assert is_committed(await client.demand(sending(one)))
        for batch, offset in ((two, 0), (one, 2)):
            again = await client.demand(sending(batch))
            assert is_committed(again)
            assert int.from_bytes(again.content[16:24], "little") == offset
        assert await stored(client) == [b"a", b"b", b"c"]
        # The log stores it like every batch, for clients of all generations.
        found = await client.get(poll())
        assert all(batches.check(batch) for batch in _whole(found.polled.batches))


def _whole(octets: Any) -> list[memoryview]:
    rest, found = memoryview(b"".join(octets)), []
    while rest:
        length = batches.header(rest).length
        found.append(rest[:length])
        rest = rest[length:]
    return found


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"sequence": 3}, Code.PRODUCER_OUT_OF_ORDER),
        ({"sequence": 1}, Code.PRODUCER_OUT_OF_ORDER),
        ({"sequence": 2**31 - 1}, Code.PRODUCER_OUT_OF_ORDER),
        ({"producer": 7, "sequence": 2}, Code.UNKNOWN_PRODUCER),
        ({"epoch": 2, "sequence": 2}, Code.UNKNOWN_PRODUCER),
        ({"epoch": 0, "sequence": 2}, Code.PRODUCER_EPOCH_FENCED),
        ({"producer": 2**63}, Code.INVALID_RESERVED_FIELD),
        ({"epoch": 2**15}, Code.INVALID_RESERVED_FIELD),
        ({"sequence": 2**31}, Code.INVALID_RESERVED_FIELD),
    ],
)
async def test_a_gap_in_the_numbers_is_refused_and_not_stored(
    tmp_path: Path, wrong: dict[str, int], code: Code
) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        await client.demand(sending(numbered(b"a", b"b", epoch=1)))
        reply = await client.demand(sending(numbered(b"x", **({"epoch": 1} | wrong))))
        assert (reply.refused, is_committed(reply)) == (code, False)
        assert not await client.refused(sending(numbered(b"c", epoch=1, sequence=2)))
        assert await stored(client) == [b"a", b"b", b"c"]


async def test_numbers_wrap_around_after_the_highest(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        stream = made.gateway.streams.find("s")
        assert stream is not None
        partition = stream.topics.find("t").partition(0)  # type: ignore[union-attr]
        await client.demand(sending(numbered(b"a")))
        (known,) = partition._producers._known.values()  # type: ignore[union-attr]
        # As if all numbers up to the last one had been sent.
        record = known.answers.pop(0)
        highest = msgspec.structs.replace(record.producer, sequence=2**31 - 1)
        known.answers[2**31 - 1] = msgspec.structs.replace(record, producer=highest)
        for _ in range(2):
            assert not await client.refused(sending(numbered(b"b", sequence=0)))
        assert not await client.refused(sending(numbered(b"c", sequence=1)))
        assert await stored(client) == [b"a", b"b", b"c"]


async def test_a_numbered_batch_that_is_damaged_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        good = numbered(b"a", b"b")
        for at in (*range(52, 80), 24, 40, 260, 300, 330):
            bad = bytearray(good)
            bad[at] ^= 1
            assert await client.refused(sending(bad)), at
        short = bytearray(good[:290])
        struct.pack_into("<Q", short, 32, len(short))
        assert await client.refused(sending(short))
        plainly_summed = batch_of(b"a")
        plainly_summed[52:72] = good[52:72]
        assert await client.refused(sending(plainly_summed)) == Code.INVALID_BATCH_CHECKSUM
        assert await stored(client) == []


async def test_a_numbered_send_has_to_name_its_partition(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        for partitioning in (
            requests.Partitioning(requests.PartitioningKind.BALANCED),
            requests.Partitioning(requests.PartitioningKind.MESSAGES_KEY, key=b"k"),
        ):
            request = requests.SendMessages(0, 0, partitioning, (memoryview(numbered(b"a")),))
            assert await client.refused(request) == Code.PRODUCER_WITHOUT_PARTITION


async def test_a_producer_id_belongs_to_one_user(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        await made.user("alice", permissions=Permissions(GlobalPermissions(send_messages=True)))
        alice = Newer(made, OTHER)
        await alice.register(requests.LoginUser("alice", "alicealice", "1"))
        alice.incarnation = client.incarnation
        assert not await client.refused(sending(numbered(b"roots")))
        assert not await alice.refused(sending(numbered(b"alices")))
        assert await stored(client) == [b"roots", b"alices"]


# ------------------------------------------------------------------------------------------------------------ updates


async def test_an_update_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        await made.user("alice")
        hour, size = text("message_expiry", "1 hour"), text("max_topic_size", "10 GiB")
        assert not await client.refused(requests.PatchTopic("s", "t", (hour, size)))
        assert not await client.refused(requests.PatchTopic("s", "t", (text("name", "t9"),)))
        assert not await client.refused(requests.PatchTopic("s", "t9", (hour,), ("max_topic_size",)))
        info = (await client.get(requests.GetTopic("s", "t9"))).info
        assert (info.message_expiry, info.max_topic_size) == (3_600_000_000, 2**64 - 1)
        assert [option.key for option in info.explicit] == ["message_expiry"]
        assert not await client.refused(requests.PatchStream("s", (text("name", "s9"),)))
        assert (await client.get(requests.GetStream("s9"))).info.name == "s9"
        changes = (text("username", "alicia"), text("status", "inactive"))
        assert not await client.refused(requests.PatchUser("alice", changes))
        user = (await client.get(requests.GetUser("alicia"))).info
        assert user.status is requests.UserStatus.INACTIVE


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        (requests.PatchTopic("s", "t"), Code.INVALID_COMMAND),
        (requests.PatchTopic("s", "t", (text("nonsense", "1"),)), Code.UNSUPPORTED_OPTION_KEY),
        (requests.PatchTopic("s", "t", reset=("nonsense",)), Code.UNSUPPORTED_OPTION_KEY),
        (requests.PatchTopic("s", "t", (text("durability", "persisted"),)), Code.OPTION_NOT_UPDATABLE),
        (requests.PatchTopic("s", "t", (text("compression_algorithm", "lz4"),)), Code.INVALID_OPTION_VALUE),
        (requests.PatchTopic("s", "t", reset=("name",)), Code.OPTION_NOT_RESETTABLE),
        (requests.PatchTopic("s", "t", reset=("message_expiry", "message_expiry")), Code.INVALID_OPTION_VALUE),
        (
            requests.PatchTopic("s", "t", (text("message_expiry", "1 h"),), ("message_expiry",)),
            Code.INVALID_OPTION_VALUE,
        ),
        (requests.PatchTopic("s", "t", (text("message_expiry", "soon"),)), Code.INVALID_OPTION_VALUE),
        (requests.PatchTopic("s", "t", (text("name", "x"),)), Code.TOPIC_NAME_ALREADY_EXISTS),
        (requests.PatchTopic("s", "t", (Option("name", ValueKind.UINT32, bytes(4)),)), Code.INVALID_OPTION_VALUE),
        (requests.PatchStream("s", (text("encryption_key_source", "none"),)), Code.OPTION_READ_ONLY),
        (requests.PatchStream("s", (text("name", "s2"),)), Code.STREAM_NAME_ALREADY_EXISTS),
        (requests.PatchUser("root", (text("username", "boss"),)), Code.ROOT_USER_UNCHANGEABLE),
        (requests.PatchUser(0, (text("status", "inactive"),)), Code.ROOT_USER_UNCHANGEABLE),
        (requests.PatchUser("alice", (text("status", "asleep"),)), Code.INVALID_OPTION_VALUE),
        (requests.CreateStream("new", (text("encryption_key", "secret"),)), Code.ENCRYPTION_UNAVAILABLE),
    ],
    ids=str,
)
async def test_an_invalid_update_is_explained_and_changes_nothing(
    tmp_path: Path, patch: requests.Request, code: Code
) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        await made.user("alice")
        await client.demand(requests.CreateTopic("s", "x", 1))
        await client.demand(requests.CreateStream("s2"))
        before = [
            await client.get(request)
            for request in (requests.GetTopics("s"), requests.GetStreams(), requests.GetUsers())
        ]
        reply = await client.demand(patch)
        assert (reply.refused, is_committed(reply)) == (code, True)
        assert before == [
            await client.get(request)
            for request in (requests.GetTopics("s"), requests.GetStreams(), requests.GetUsers())
        ]


async def test_an_update_needs_the_right_to_manage_what_it_changes(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        boss = await with_topic(made)
        await made.user("alice", permissions=Permissions(GlobalPermissions(read_streams=True, read_topics=True)))
        alice = Newer(made, OTHER)
        await alice.register(requests.LoginUser("alice", "alicealice", "1"))
        for patch in (
            requests.PatchTopic("s", "t", (text("name", "mine"),)),
            requests.PatchStream("s", (text("name", "mine"),)),
            requests.PatchUser("alice", (text("username", "root2"),)),
        ):
            assert await alice.refused(patch) == Code.UNAUTHORIZED
        assert (await boss.get(requests.GetTopic("s", "t"))).info.name == "t"


@pytest.mark.parametrize("scope", OptionScope)
async def test_option_descriptions_tell_what_may_be_done_with_each(tmp_path: Path, scope: OptionScope) -> None:
    async with world(tmp_path) as made:
        client = await root(made)
        found = {
            option.key: option.flags for option in await client.get(requests.DescribeOptions(scope, with_columns=True))
        }
        both = OptionFlags.UPDATABLE | OptionFlags.RESETTABLE
        match scope:
            case OptionScope.TOPIC:
                assert (found["name"], found["message_expiry"], found["durability"]) == (OptionFlags.UPDATABLE, both, 0)
            case OptionScope.STREAM:
                assert found == {"name": OptionFlags.UPDATABLE}
            case OptionScope.USER:
                assert found.keys() == {"username", "status"}


# --------------------------------------------------------------------------------------------------- refused requests


async def test_requests_without_meaning_are_refused_and_the_connection_continues(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await root(made)
        for code in (0, 2, 14, 35, 102, 103, 104, 123, 204, 205, 304, 305, 999):
            octets = frame(READ, b"body", number=5, session=client.session, code=code)
            assert (await client.reply(octets)).refused == Code.INVALID_COMMAND, code
        changes = frame(READ, bytes(60), number=5, session=client.session, code=17)
        assert (await client.reply(changes)).refused == Code.FEATURE_UNAVAILABLE
        for operation in (0, 4, 64, 72, 129, 131, 133, 135, 142, 151, 163, 255):
            octets = frame(operation, b"body", number=5, session=client.session)
            assert (await client.reply(octets)).refused == Code.INVALID_COMMAND, operation
        assert not await client.refused(requests.GetMe())


async def test_a_request_for_another_session_is_evicted(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await root(made)
        octets = client.asked(requests.CreateStream("s"), session=client.session + 1)
        assert (await client.reply(octets)).evicted == Reason.NO_SESSION
        assert client.talk.is_over


async def test_unique_numbers_are_reserved_on_disk_before_use(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await root(made)
        assert made.store.numbers_reserved > client.session


async def test_sessions_of_different_protocol_versions_share_the_catalogue(tmp_path: Path) -> None:
    """A 0.12 client and a 0.9 client in the same group."""
    async with world(tmp_path) as made:
        newer = await with_topic(made, 2)
        await newer.demand(requests.CreateConsumerGroup("s", "t", "g"))
        await newer.demand(requests.JoinConsumerGroup("s", "t", "g"))
        older = await made.root()
        await older.execute(requests.JoinConsumerGroup("s", "t", "g"))
        await sent(newer, b"m", partition=0)
        polled = await older.execute(requests.PollMessages(ME, "s", "t", 0, FIRST, 10, False))
        assert polled.messages_count == 1
        group = await newer.get(requests.GetConsumerGroup("s", "t", "g"))
        assert sorted(len(member.partitions) for member in group.members) == [1, 1]


# ------------------------------------------------------------------------------------------------------ hostile clients


@pytest.mark.parametrize("is_quick", [True, False])
async def test_a_session_whose_connection_is_lost_during_the_login_does_not_stay_for_ever(
    tmp_path: Path, is_quick: bool
) -> None:
    """`is_quick`: before the listener has noticed that the login is done."""
    async with world(tmp_path) as made:
        client = Newer(made)
        before = client.talk
        login_in_hand = asyncio.create_task(client.register())
        if is_quick:
            await login_in_hand
            before.close()
        else:
            await asyncio.sleep(0)
            client.close()
            await login_in_hand
        assert made.gateway.resumable_sessions.away_count == len(made.gateway.resumable_sessions) == 1
        made.clock.now += MINUTE
        made.gateway.resumable_sessions.expire()
        assert len(made.gateway.resumable_sessions) == len(made.gateway.sessions) == 0


@pytest.mark.parametrize("is_first", [True, False])
async def test_two_logins_at_the_same_time_leave_no_session_behind(tmp_path: Path, is_first: bool) -> None:
    """`is_first`: the first use of this protocol on the connection."""
    async with world(tmp_path) as made:
        client = Newer(made)
        if not is_first:
            await client.register(secret=bytes(32))
        await asyncio.gather(client.register(), client.register(secret=bytes(range(32, 64))))
        client.close()
        assert made.gateway.resumable_sessions.away_count == len(made.gateway.resumable_sessions)
        made.clock.now += MINUTE
        made.gateway.resumable_sessions.expire()
        assert len(made.gateway.resumable_sessions) == len(made.gateway.sessions) == 0


async def test_a_session_cannot_be_resumed_with_a_version_without_resumable_sessions(tmp_path: Path) -> None:
    """Its polls would not be limited by the available memory."""
    async with world(tmp_path) as made:
        first = await root(made)
        older = registration.encode_binding(
            modern_registration.packed(0, 11, 0), CLIENT, first.session, SECRET, "test", "1"
        )
        for client in (Newer(made), first):
            octets = frame(READ, older, number=1, session=first.session, code=BIND_SESSION)
            assert (await client.reply(octets)).evicted == Reason.MALFORMED_LOGIN
        assert not first.ended


async def test_a_wait_for_a_missing_partition_is_refused_at_once(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        absent = [target(number, client.incarnation) for number in range(1, 1000)]
        found = await client.get(fetch(target(0, client.incarnation), *absent, wait=MINUTE))
        statuses = {section.partition_id: section.status for section in found.sections}
        assert statuses == dict.fromkeys(range(1000), Code.PARTITION_NOT_FOUND) | {0: 0}
        wanted = msgspec.structs.replace(poll(wait=MINUTE), partition_id=1)
        assert await client.refused(wanted) == Code.PARTITION_NOT_FOUND


async def test_a_fetch_of_an_old_incarnation_is_refused_without_waiting(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made, 2)
        old = client.incarnation
        await client.demand(requests.DeletePartitions("s", "t", 1))
        await client.demand(requests.CreatePartitions("s", "t", 1))
        found = await client.get(fetch(target(0, old), target(1, old), wait=MINUTE))
        assert {section.partition_id: section.status for section in found.sections} == {
            0: 0,
            1: Code.PARTITION_RECREATED,
        }


@pytest.mark.parametrize("how", ["logged out", "logged in anew", "bound elsewhere"])
async def test_waiting_polls_end_with_their_session_and_commit_nothing(tmp_path: Path, how: str) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        assert await client.say(client.asked(poll(wait=MINUTE, strategy=NEXT, commit=True))) is None
        later, session = client.late[0], client.session
        other = Newer(made, port=5001)
        match how:
            case "logged out":
                await client.demand(requests.LogoutUser())
            case "logged in anew":
                await client.register(secret=bytes(32))
            case "bound elsewhere":
                await other.bind(session, number=client.number)
        await asyncio.wait([later], timeout=30)
        assert later.done()
        assert len(made.gateway.waiting_polls) == 0
        if how != "bound elsewhere":
            await other.register()
        other.incarnation = client.incarnation
        assert await other.get(requests.GetConsumerOffset(ME, "s", "t", 0)) is None


async def test_a_partition_recreated_while_a_poll_waits_for_memory_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        scarce = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(reservations, "reserve_response", lambda reservation, most: None)
        monkeypatch.setattr(reservations.Reservation, "wait", lambda reservation: scarce)
        polled = asyncio.create_task(client.reply(client.asked(poll(strategy=NEXT, commit=True))))
        await asyncio.sleep(0)
        await client.demand(requests.DeletePartitions("s", "t", 1))
        await client.demand(requests.CreatePartitions("s", "t", 1))
        scarce.set_result(1 << 20)
        assert (await polled).refused == Code.PARTITION_RECREATED


async def test_a_slow_request_is_remembered_although_others_finished_meanwhile() -> None:
    requests = ReplayWindow(ReplayMemory())
    slow = requests.start(1, 132, 1)
    for number in range(2, REQUESTS_MAX + 2):
        requests.start(number, 132, number).set_result(number)
        requests.finish(number, 8)
    slow.set_result(1)
    requests.finish(1, BYTES_MAX + 1)
    assert requests.find(1, 132, 1) is slow


async def test_a_request_that_finishes_after_its_session_is_not_remembered() -> None:
    memory = ReplayMemory()
    requests = ReplayWindow(memory)
    requests.start(1, 132, 1)
    requests.clear()
    requests.finish(1, 8)
    assert memory.size == 0


async def test_the_remembered_responses_of_all_sessions_are_limited(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        remembered = made.gateway.resumable_sessions.replay_memory
        before = remembered.size
        assert before > 0
        asked = [client.asked(requests.StoreConsumerOffset(ME, "s", "t", 0, 0)) for _ in range(SCARCE_REQUESTS_MAX + 2)]
        remembered.size += ALL_BYTES_MAX
        for octets in asked:
            await client.reply(octets)
        assert (await client.reply(asked[1])).refused == Code.REQUEST_TOO_OLD
        assert (await client.reply(asked[2])).refused != Code.REQUEST_TOO_OLD
        remembered.size -= ALL_BYTES_MAX
        await client.demand(requests.LogoutUser())
        assert remembered.size == 0


async def test_a_wait_for_many_messages_does_not_check_all_partitions_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made, 3)
        begun: list[int] = []
        awaited = Partition.readable_at

        def counted(partition: Partition, offset: int) -> asyncio.Future[None]:
            begun.append(partition.place.partition)
            return awaited(partition, offset)

        monkeypatch.setattr(Partition, "readable_at", counted)
        monkeypatch.setattr(long_poll, "PAUSE_SECONDS", 1000)
        targets = [target(number, client.incarnation) for number in range(3)]
        assert await client.say(client.asked(fetch(*targets, wait=MINUTE, min_count=50))) is None
        number = client.number
        for _ in range(5):
            await sent(client, b"x")
            await asyncio.sleep(0)
        await client.cancel(number)
        assert await client.come_late() is not None
        assert begun == [0, 1, 2]


async def test_other_callbacks_run_while_many_partitions_are_fetched(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made, 500)
        octets = client.asked(fetch(*[target(number, client.incarnation) for number in range(500)]))
        loop, turns_of_others = asyncio.get_running_loop(), [0]
        fetched = loop.create_task(client.reply(octets))

        def turn() -> None:
            turns_of_others[0] += 1
            if not fetched.done():
                loop.call_soon(turn)

        loop.call_soon(turn)
        assert not (await fetched).refused
        assert turns_of_others[0] >= 5


async def test_stats_report_open_files(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        stats = await (await root(made)).get(requests.GetStats())
        assert 0 < stats.open_files_count < stats.open_files_limit
