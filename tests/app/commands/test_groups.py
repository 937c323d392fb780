"""Groups as clients use them: created and deleted, joined and left, and consistent with changes of their topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.access.support.world import SECOND, refusal
from tests.app.commands.support.members import two_members_and_a_promise
from tests.app.commands.support.reading import payloads, reading
from whippet.app.commands import groups, requests, responses
from whippet.app.errors import Code
from whippet.storage.errors import WriteFailed
from whippet.storage.offsets import Kind

# ------------------------------------------------------------------------------------------------ creation and deletion


async def test_a_new_group_is_empty_and_counts_the_partitions_of_its_topic(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        details = await made.root.execute(requests.CreateConsumerGroup("s", "t", "second"))
        assert details == responses.GroupDetails(responses.GroupInfo(1, 3, 0, "second"), ())
        assert await made.root.execute(requests.GetConsumerGroup("s", "t", "second")) == details
        assert await made.root.execute(requests.GetConsumerGroup("s", "t", 1)) == details


async def test_groups_are_listed_by_number_with_their_members_counted(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.root.execute(requests.CreateConsumerGroup("s", "t", "a"))
        await made.root.join()
        assert await made.root.execute(requests.GetConsumerGroups("s", "t")) == (
            responses.GroupInfo(0, 3, 1, "g"),
            responses.GroupInfo(1, 3, 0, "a"),
        )


async def test_a_query_for_something_missing_gets_an_empty_response(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        for question in (
            requests.GetConsumerGroup("s", "t", "x"),
            requests.GetConsumerGroup("s", "t", 7),
            requests.GetConsumerGroup("s", "x", "g"),
            requests.GetConsumerGroup("x", "t", "g"),
            requests.GetConsumerGroups("s", "x"),
            requests.GetConsumerGroups("x", "t"),
        ):
            assert await made.root.execute(question) is None


@pytest.mark.parametrize("name", ["x", "7", " g ", "G", "ß" * 127, "y" * 255])
async def test_any_name_of_1_to_255_bytes_is_valid(tmp_path: Path, name: str) -> None:
    async with reading(tmp_path) as made:
        await made.root.execute(requests.CreateConsumerGroup("s", "t", name))
        assert (await made.root.execute(requests.GetConsumerGroup("s", "t", name))).info.name == name


@pytest.mark.parametrize(("name", "code"), [("", 4), ("y" * 256, 4), ("ß" * 128, 4), ("g", 5004)])
async def test_other_names_are_refused(tmp_path: Path, name: str, code: int) -> None:
    async with reading(tmp_path) as made:
        assert await refusal(made.root.execute(requests.CreateConsumerGroup("s", "t", name))) == code
        assert len(await made.root.execute(requests.GetConsumerGroups("s", "t"))) == 1


@pytest.mark.parametrize(
    ("stream", "topic", "group", "code"),
    [
        ("x", "t", "g", Code.STREAM_ID_NOT_FOUND),
        ("s", "x", "g", Code.TOPIC_ID_NOT_FOUND),
        ("s", "t", "x", Code.CONSUMER_GROUP_ID_NOT_FOUND),
        ("s", "t", 9, Code.CONSUMER_GROUP_ID_NOT_FOUND),
    ],
)
async def test_a_missing_group_cannot_be_deleted_joined_or_left(
    tmp_path: Path, stream: str, topic: str, group: str | int, code: Code
) -> None:
    async with reading(tmp_path) as made:
        for request in (requests.DeleteConsumerGroup, requests.JoinConsumerGroup, requests.LeaveConsumerGroup):
            assert await refusal(made.root.execute(request(stream, topic, group))) == code


def offset_files(folder: Path) -> int:
    return len(list(folder.rglob("offsets/groups/*")))


async def test_a_deleted_group_takes_its_offsets_and_memberships_with_it(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        anne, bert = await made.readers(2)
        await anne.join()
        await bert.join()
        for _ in range(3):
            await anne.poll(auto_commit=True)
            await bert.poll(auto_commit=True)
        assert [await made.root.stored(partition) for partition in range(3)] == [9, 9, 9]
        assert offset_files(tmp_path) == 3
        await made.root.execute(requests.DeleteConsumerGroup("s", "t", "g"))
        assert anne.session.groups == bert.session.groups == set()
        assert await refusal(anne.poll()) == Code.CONSUMER_GROUP_ID_NOT_FOUND
        assert await refusal(anne.join()) == Code.CONSUMER_GROUP_ID_NOT_FOUND
        assert offset_files(tmp_path) == 0
        # The next group has the same number and starts at the beginning.
        assert (await made.root.execute(requests.CreateConsumerGroup("s", "t", "g"))).info.id == 0
        assert [await made.root.stored(partition) for partition in range(3)] == [None, None, None]
        assert await refusal(anne.poll()) == Code.CONSUMER_GROUP_MEMBER_NOT_FOUND
        await anne.join()
        assert payloads(await anne.poll(0))[0] == "0/0"


async def test_offsets_left_by_an_interrupted_deletion_are_not_inherited(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        for partition in made.topic.served:
            await partition.store_offset(Kind.GROUP, 1, 5)
        await made.root.execute(requests.CreateConsumerGroup("s", "t", "second"))
        assert [partition.offset_of(Kind.GROUP, 1) for partition in made.topic.served] == [None] * 3


async def test_a_group_whose_deletion_fails_still_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reading(tmp_path) as made:
        await made.root.join()

        async def refuse(*args: object) -> None:
            raise WriteFailed("groups/0.json", OSError(28, "full"))

        with monkeypatch.context() as patched:
            patched.setattr(made.gateway.store, "remove_group", refuse)
            asked = made.root.execute(requests.DeleteConsumerGroup("s", "t", "g"))
            assert await refusal(asked) == Code.CANNOT_SAVE_MESSAGES_TO_SEGMENT
        assert await made.owned() == []
        await made.root.join()
        assert await made.owned() == [[0, 1, 2]]
        await made.root.execute(requests.DeleteConsumerGroup("s", "t", "g"))
        assert await made.root.execute(requests.GetConsumerGroups("s", "t")) == ()


async def test_after_a_restart_a_group_has_no_members_and_keeps_its_offsets(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        await made.root.join()
        await made.root.poll(1, count=4, auto_commit=True)
    async with reading(tmp_path) as made:
        assert await made.owned() == []
        assert await refusal(made.root.poll(1)) == Code.CONSUMER_GROUP_MEMBER_NOT_FOUND
        await made.root.join()
        assert payloads(await made.root.poll(1))[0] == "1/4"
        assert (await made.root.execute(requests.CreateConsumerGroup("s", "t", "second"))).info.id == 1


# ----------------------------------------------------------------------------------------------------------- membership


async def test_one_two_and_three_members_share_three_partitions(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        shares = []
        for reader in await made.readers(4):
            await reader.join()
            shares.append([len(partitions) for partitions in await made.owned()])
        assert shares == [[3], [2, 1], [1, 1, 1], [1, 1, 1, 0]]


async def test_every_message_is_delivered_to_one_member_once(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        members = await made.readers(4)
        await made.fill(20)
        got: list[str] = []

        async def everybody_polls(times: int) -> None:
            for _ in range(times):
                for member in members:
                    if member.session.groups:
                        got.extend(payloads(await member.poll(count=3, auto_commit=True)))

        for member in members:
            await member.join()
            await everybody_polls(2)
        await members[0].leave()
        await everybody_polls(30)
        assert sorted(got) == sorted(f"{partition}/{offset}" for partition in range(3) for offset in range(20))
        for partition in range(3):
            order = [int(payload[2:]) for payload in got if payload.startswith(f"{partition}/")]
            assert order == list(range(20))


async def test_joining_twice_changes_no_membership(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        for _ in range(2):
            await made.root.join()
            assert await made.owned() == [[0, 1, 2]]
            assert made.root.session.groups == {(0, 0, 0)}


async def test_only_members_can_leave(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        assert await refusal(made.root.leave()) == Code.CONSUMER_GROUP_MEMBER_NOT_FOUND
        await made.root.join()
        await made.root.leave()
        assert made.root.session.groups == set()
        assert await refusal(made.root.leave()) == Code.CONSUMER_GROUP_MEMBER_NOT_FOUND


async def test_a_session_that_was_removed_cannot_join(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        reader = await made.reader()
        made.gateway.sessions.remove(reader.session)
        assert await refusal(reader.join()) == Code.STALE_CLIENT
        assert await made.owned() == []


async def test_a_member_without_a_session_is_dropped_when_another_joins(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        gone, staying, newcomer = await made.readers(3)
        await gone.join()
        await staying.join()
        made.gateway.sessions.remove(gone.session)
        await newcomer.join()
        assert await made.owned() == [[0, 1], [2]]


async def test_a_session_that_ends_leaves_all_groups(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.root.execute(requests.CreateConsumerGroup("s", "t", "second"))
        anne, bert = await made.readers(2)
        for reader in (anne, bert):
            await reader.join()
            await reader.execute(requests.JoinConsumerGroup("s", "t", "second"))
        groups.leave_all(made.gateway, anne.session)
        assert anne.session.groups == set()
        assert await made.owned() == [[0, 1, 2]]
        infos = await made.root.execute(requests.GetConsumerGroups("s", "t"))
        assert [info.members_count for info in infos] == [1, 1]
        groups.leave_all(made.gateway, anne.session)


# ------------------------------------------------------------------------------------------------------------- handover


async def test_a_new_member_reads_after_the_commit_of_the_previous_owner(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        anne, bert = await made.readers(2)
        await two_members_and_a_promise(anne, bert)
        assert await made.owned() == [[0, 1, 2], []]
        assert payloads(await bert.poll()) == []
        assert [(await anne.poll()).partition_id for _ in range(4)] == [0, 1, 0, 1]
        await made.send(2, "2/10")
        await anne.store(8, 2)
        assert await made.owned() == [[0, 1, 2], []]
        await anne.store(9, 2)
        assert await made.owned() == [[0, 1], [2]]
        assert payloads(await bert.poll()) == ["2/10"]


async def test_an_auto_commit_is_a_commit(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        anne, bert = await made.readers(2)
        await anne.join()
        assert len(payloads(await anne.poll(2, auto_commit=True))) == 10
        await bert.join()
        assert await made.owned() == [[0, 1], [2]]


async def test_a_promised_partition_cannot_be_polled_by_its_owner(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        anne, bert = await made.readers(2)
        await two_members_and_a_promise(anne, bert)
        polled = await anne.poll(2)
        assert (payloads(polled), polled.owned) == ([], False)


async def test_after_the_timeout_a_new_member_gets_uncommitted_messages(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        anne, bert = await made.readers(2)
        await two_members_and_a_promise(anne, bert)
        made.clock.now += 30 * SECOND - 1
        groups.reassign_overdue(made.gateway, made.clock.now)
        assert await made.owned() == [[0, 1, 2], []]
        made.clock.now += 1
        groups.reassign_overdue(made.gateway, made.clock.now)
        assert await made.owned() == [[0, 1], [2]]
        assert payloads(await bert.poll())[0] == "2/0"
        assert await refusal(anne.store(9, 2)) == Code.NOT_RESOLVED_CONSUMER


# ------------------------------------------------------------------------------------------------- changes of the topic


async def test_groups_adapt_to_the_number_of_partitions(tmp_path: Path) -> None:
    async with reading(tmp_path, partitions=1) as made:
        for reader in await made.readers(2):
            await reader.join()
        assert await made.owned() == [[0], []]
        await made.root.execute(requests.CreatePartitions("s", "t", 3))
        assert await made.owned() == [[0, 2], [1, 3]]
        await made.root.execute(requests.DeletePartitions("s", "t", 2))
        assert await made.owned() == [[0], [1]]
        info, *_ = await made.root.execute(requests.GetConsumerGroups("s", "t"))
        assert info.partitions_count == 2


async def test_a_purge_keeps_members_and_drops_uncommitted_polls(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        anne, bert = await made.readers(2)
        await two_members_and_a_promise(anne, bert)
        await made.root.execute(requests.PurgeTopic("s", "t"))
        assert await made.owned() == [[0, 1], [2]]
        await made.send(2, "again")
        assert payloads(await bert.poll()) == ["again"]


@pytest.mark.parametrize("deletion", [requests.DeleteTopic("s", "t"), requests.DeleteStream("s")])
async def test_a_deleted_topic_ends_all_memberships(tmp_path: Path, deletion: requests.Request) -> None:
    async with reading(tmp_path) as made:
        reader = await made.reader()
        await reader.join()
        await made.root.execute(deletion)
        assert reader.session.groups == set()
