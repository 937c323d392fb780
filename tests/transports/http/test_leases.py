"""Leases: members of consumer groups over HTTP, alone, together, and with members on connections."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import msgspec

from tests.transports.http.support.leasing import GROUP, LEASES, Member, World, texts, world
from tests.transports.http.support.serving import serving
from whippet.app import housekeeping
from whippet.app.commands import requests
from whippet.app.commands.requests import Consumer, ConsumerKind, Strategy, StrategyKind
from whippet.app.model.sessions import Transport

GONE = (410, "lease_gone", "lease")
BRIEF = "50ms"
"""Lapses during a test."""


def refusal(response: httpx.Response) -> tuple[int, str, str | None]:
    body = response.json()
    assert list(body) == ["id", "code", "reason", "field"]
    assert body["id"] == response.status_code
    return response.status_code, body["code"], body["field"]


async def test_a_lease_has_its_partitions_and_its_expiry(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        member = await made.lease(expiry="20s")
        lease = member.lease
        assert (lease["partitions"], lease["finishing"], lease["expiry"]) == ([0, 1], [], 20_000_000)
        assert member.path == f"{LEASES}/{lease['lease_id']}"
        looked = await member.look()
        assert looked["generation"] == lease["generation"]
        assert 0 < looked["expires_at"] - made.gateway.clock() <= 20_000_000
        renewed = (await made.client.put(member.path)).json()
        assert renewed["expires_at"] >= looked["expires_at"]
        assert (await made.lease()).lease["expiry"] == 30_000_000


async def test_a_lease_is_listed_as_a_client_and_as_a_member_of_its_group(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        member = await made.lease()
        (client,) = [each for each in (await made.client.get("/clients")).json() if each["transport"] == "http"]
        assert client["client_id"] == member.lease["client_id"]
        assert client["consumer_groups_count"] == 1
        details = (await made.client.get(f"/clients/{client['client_id']}")).json()
        assert details["consumer_groups"] == [{"stream_id": 0, "topic_id": 0, "group_id": 0}]
        assert (await made.client.get("/stats")).json()["clients_count"] == 2
        assert [each["partitions"] for each in (await made.group())["members"]] == [[0, 1]]
        await member.give_back()
        assert (await made.group())["members"] == []
        assert (await made.client.get("/stats")).json()["clients_count"] == 1


async def test_polls_try_all_partitions_and_commits_advance_the_group(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        member = await made.lease()
        assert (await member.poll())["messages"] == []
        await made.send(1, "a", "b")
        for _ in range(2):
            # Not committed, so it is polled again.
            polled = await member.poll(count=1)
            assert (polled["partition_id"], texts(polled)) == (1, ["a"])
        response = await member.commit(polled)
        assert response.json()["generation"] == member.lease["generation"]
        assert texts(await member.poll(partition_id=1, auto_commit="true")) == ["b"]
        assert (await member.poll(partition_id=1))["messages"] == []
        assert texts(await member.poll(partition_id=1, kind="first")) == ["a", "b"]


async def test_a_lease_and_a_connection_share_the_messages_and_the_last_one_gets_all(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, partitions=4) as made:
        group = Consumer(ConsumerKind.GROUP, "g")
        await made.tcp.call(requests.JoinConsumerGroup("s", "t", "g"))
        member = await made.lease()
        shares = [each["partitions"] for each in (await made.group())["members"]]
        assert sorted(map(len, shares)) == [2, 2]
        assert member.lease["partitions"] in shares

        async def over_tcp() -> list[str]:
            found: list[str] = []
            for partition in range(4):
                poll = requests.PollMessages(group, "s", "t", partition, Strategy(StrategyKind.NEXT), 10, True)
                polled = await made.tcp.call(poll)
                found += ["tcp"] * polled.messages_count
            return found

        for partition in range(4):
            await made.send(partition, f"{partition} first", f"{partition} second")
        by_connection, by_lease = await asyncio.gather(over_tcp(), member.drain())
        assert len(by_connection) == 4
        mine = member.lease["partitions"]
        assert sorted(by_lease) == sorted(f"{each} {which}" for each in mine for which in ("first", "second"))

        await made.tcp.call(requests.LeaveConsumerGroup("s", "t", "g"))
        for partition in range(4):
            await made.send(partition, f"{partition} third")
        assert sorted(await member.drain()) == [f"{partition} third" for partition in range(4)]

        await made.tcp.call(requests.JoinConsumerGroup("s", "t", "g"))
        await member.give_back()
        for partition in range(4):
            await made.send(partition, f"{partition} fourth")
        assert len(await over_tcp()) == 4


async def test_an_unused_lease_lapses_and_the_others_get_its_partitions(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        lapsing = await made.lease(expiry=BRIEF)
        staying = await made.lease()
        group = await made.until(lambda group: group["members_count"] == 1)
        assert group["members"][0]["partitions"] == [0, 1]
        for method, path in (("GET", ""), ("PUT", ""), ("DELETE", ""), ("GET", "/messages")):
            assert refusal(await made.client.request(method, lapsing.path + path)) == GONE
        body = {"generation": lapsing.lease["generation"], "partition_id": 0, "offset": 0}
        assert refusal(await made.client.put(f"{lapsing.path}/offsets", json=body)) == GONE
        assert (await staying.look())["partitions"] == [0, 1]


async def test_a_lease_in_use_does_not_lapse(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        polling = await made.lease(expiry="400ms")
        other = await made.lease(expiry="1s")
        while (await made.client.get(other.path)).status_code == 200:
            await polling.poll()
        assert (await polling.look())["partitions"] == [0, 1]


async def test_a_lease_is_not_evicted_for_missing_heartbeats(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        member = await made.lease()
        made.served.world.clock.now += 3_600_000_000
        await housekeeping.evict_silent_clients(made.gateway)
        assert [one.transport for one in made.gateway.sessions].count(Transport.HTTP) == 1
        assert (await made.client.get(member.path, headers=made.fresh_token())).status_code == 200


async def test_a_commit_of_an_old_generation_is_refused_and_the_rest_can_be_finished(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        first = await made.lease()
        await made.send(0, "a")
        await made.send(1, "b")
        polled = {each["partition_id"]: each for each in [await first.poll(), await first.poll()]}
        assert sorted(polled) == [0, 1]
        before = first.lease["generation"]
        second = await made.lease()
        assert second.lease["generation"] > before
        assert second.lease["partitions"] == []
        assert refusal(await first.commit(polled[1], before)) == (409, "stale_generation", "generation")
        looked = await first.look()
        assert (looked["partitions"], looked["finishing"]) == ([0], [1])
        response = await first.commit(polled[1])
        assert response.status_code == 200
        assert (response.json()["partitions"], response.json()["finishing"]) == ([0], [])
        assert (await second.look())["partitions"] == [1]
        # This changed the group again. A partition of another member is refused in any generation.
        assert refusal(await first.commit(polled[0])) == (409, "stale_generation", "generation")
        current = (await first.look())["generation"]
        response = await first.commit(polled[1], current)
        assert (response.status_code, response.json()["code"]) == (400, "not_resolved_consumer")
        response = await made.client.get(f"{first.path}/messages", params={"partition_id": 1})
        assert (response.status_code, response.json()["code"]) == (400, "consumer_group_partition_not_owned")


async def test_a_lease_without_a_partition_waits_for_one(tmp_path: Path) -> None:
    async with world(tmp_path, partitions=1) as made:
        first, second = await made.lease(), await made.lease()
        polled = await second.poll()
        assert (polled["partition_id"], polled["partitions"], polled["count"]) == (None, [], 0)
        await first.give_back()
        assert (await second.poll())["partition_id"] == 0


async def test_concurrent_polls_do_not_return_the_same_messages(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.send(0, *map(str, range(40)))
        member = await made.lease()
        polls = [member.poll(count=5, auto_commit="true") for _ in range(8)]
        found = [text for polled in await asyncio.gather(*polls) for text in texts(polled)]
        assert sorted(found, key=int) == list(map(str, range(40)))


async def test_leases_are_limited_per_user_and_in_total(tmp_path: Path) -> None:
    async with world(tmp_path, leases=3, leases_per_user=2) as made:
        held = [await made.lease() for _ in range(2)]
        refused = await made.client.post(LEASES)
        assert refusal(refused) == (429, "too_many_leases", None)
        assert "http.leases.leases_per_user = 2" in refused.json()["reason"]
        assert refused.headers["retry-after"] == "1"
        alice = await another_user(made)
        Member(alice, await alice.post(LEASES))
        refused = await alice.post(LEASES)
        assert "http.leases.leases = 3" in refused.json()["reason"]
        await held[0].give_back()
        await made.lease()
        await alice.aclose()


async def another_user(made: World) -> httpx.AsyncClient:
    """Creates another user with all permissions for messages."""
    flags = ["manage_servers", "read_servers", "manage_users", "read_users", "manage_streams", "read_streams"]
    flags += ("manage_topics", "read_topics", "poll_messages", "send_messages")
    permissions = {"global": dict.fromkeys(flags, True), "streams": None}
    user = {"username": "alice", "password": "alice's", "status": "active", "permissions": permissions}
    response = await made.client.post("/users", json=user)
    assert response.status_code == 200, response.text
    users = made.gateway.users
    found = users.find("alice")
    assert found is not None
    token = made.served.api.access_tokens.issue(found).text
    headers = {"authorization": f"Bearer {token}"}
    return httpx.AsyncClient(base_url=made.client.base_url, headers=headers, trust_env=False)


async def test_the_requested_expiry_has_limits(tmp_path: Path) -> None:
    async with world(tmp_path, expiry_min=1.0, expiry_max=60.0) as made:
        for expiry in ("999ms", "61s", "30", "soon", "0s", "-1s"):
            response = await made.client.post(LEASES, params={"expiry": expiry})
            assert refusal(response) == (400, "bad_request", "expiry"), expiry
        assert (await made.lease(expiry="1m")).lease["expiry"] == 60_000_000
        assert len(made.served.api.leases) == 1


async def test_a_lease_works_for_its_user_and_its_group_only(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        member = await made.lease()
        alice = await another_user(made)
        for method in ("GET", "PUT", "DELETE"):
            assert refusal(await alice.request(method, member.path)) == GONE
        await alice.aclose()
        await made.tcp.call(requests.CreateConsumerGroup("s", "t", "other"))
        elsewhere = member.path.replace("/g/", "/other/")
        for method in ("GET", "PUT", "DELETE"):
            assert refusal(await made.client.request(method, elsewhere)) == GONE
        assert refusal(await made.client.get(f"{LEASES}/made-up")) == GONE
        assert (await member.look())["partitions"] == [0, 1]


async def test_a_missing_group_is_not_found_and_leaves_no_client_behind(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        before = len(made.gateway.sessions)
        response = await made.client.post("/streams/s/topics/t/consumer-groups/none/leases")
        assert (response.status_code, response.json()["id"]) == (404, 5000)
        assert len(made.gateway.sessions) == before


async def test_a_lease_ends_with_its_group_or_its_user(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        member = await made.lease()
        alice = await another_user(made)
        Member(alice, await alice.post(LEASES))
        await alice.aclose()
        assert (await made.group())["members_count"] == 2
        response = await made.client.put("/users/alice", json={"status": "inactive"})
        assert response.status_code == 204
        assert (await made.group())["members_count"] == 1
        assert (await made.client.delete(GROUP)).status_code == 204
        await made.tcp.call(requests.CreateConsumerGroup("s", "t", "g"))
        response = await made.client.get(f"{member.path}/messages")
        assert refusal(response) == GONE
        assert not [one for one in made.gateway.sessions if one.transport is Transport.HTTP]


async def test_after_a_restart_leases_are_gone_and_a_new_one_resumes_at_the_stored_offset(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        member = await made.lease()
        await made.send(0, "a", "b")
        polled = await member.poll(partition_id=0, count=1)
        assert (await member.commit(polled)).status_code == 200
    async with serving(tmp_path) as served:
        headers = {"authorization": f"Bearer {served.token}"}
        where = f"http://{served.server.address}"
        async with httpx.AsyncClient(base_url=where, headers=headers, trust_env=False) as client:
            response = await client.get(f"{member.path}/messages")
            assert refusal(response) == GONE
            assert "acquire a new one" in response.json()["reason"]
            again = Member(client, await client.post(LEASES))
            assert texts(await again.poll(partition_id=0)) == ["b"]


async def test_a_head_request_polls_no_messages(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        member = await made.lease()
        await made.send(0, "a")
        query = {"auto_commit": "true", "partition_id": "0"}
        assert (await made.client.head(f"{member.path}/messages", params=query)).status_code == 200
        assert texts(await member.poll(partition_id=0)) == ["a"]


async def test_a_commit_must_contain_a_generation(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        member = await made.lease()
        response = await made.client.put(f"{member.path}/offsets", json={"partition_id": 0, "offset": 0})
        assert response.status_code == 422
        body = {"generation": member.lease["generation"], "partition_id": 0, "offset": 0}
        response = await made.client.put(f"{member.path}/offsets", content=msgspec.json.encode(body))
        assert response.status_code == 415
        response = await made.client.put(f"{member.path}/offsets", json=body)
        assert (response.status_code, response.json()["id"]) == (400, 4100)


OFFSETS = "/streams/s/topics/t/consumer-offsets"
BATCH = {"accept": "application/vnd.iggy.batch"}


async def test_a_lease_polls_batches_as_they_are_stored_and_deletes_offsets(tmp_path: Path) -> None:
    async with world(tmp_path, partitions=1) as made:
        await made.send(0, "a")
        member = await made.lease()
        polled = await made.client.get(f"{member.path}/messages?kind=first", headers=BATCH)
        assert polled.headers["content-type"] == BATCH["accept"]
        assert (polled.headers["iggy-partition"], polled.headers["iggy-count"]) == ("0", "1")
        assert int.from_bytes(polled.content[32:40], "little") == len(polled.content)
        assert (await member.commit(await member.poll(kind="first"))).status_code == 200
        stored = f"{OFFSETS}?consumer_id=g&consumer_kind=consumer_group&partition_id=0"
        assert (await made.client.get(stored)).json()["stored_offset"] == 0
        assert (await made.client.delete(f"{member.path}/offsets?partition_id=0")).status_code == 200
        assert (await made.client.get(stored)).status_code == 404


async def test_the_offset_of_a_group_without_members_is_set_without_a_lease(tmp_path: Path) -> None:
    async with world(tmp_path, partitions=1) as made:
        await made.send(0, "a", "b")
        body = {"consumer_id": "g", "consumer_kind": "consumer_group", "partition_id": 0, "offset": 0}
        assert (await made.client.put(OFFSETS, json=body)).status_code == 204
        member = await made.lease()
        assert await member.drain() == ["b"]
