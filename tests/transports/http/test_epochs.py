"""Epochs over HTTP: clients that keep an offset learn that it is of another run of offsets, instead of missing
messages."""

from __future__ import annotations

from pathlib import Path

from tests.transports.http.support.calling import with_topic
from tests.transports.http.support.leasing import texts, world
from tests.transports.http.support.messages import MESSAGES, message, sent

TOPIC = "/streams/s/topics/t"
REFUSED = (409, "partition_recreated")


async def test_a_poll_with_its_epoch_is_refused_after_a_purge_and_a_new_topic(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as made:
        root = made.root
        await root.post(MESSAGES, sent(message(b"a"), message(b"b")))
        seen = set()
        for act in ("", "/purge", "", "created again"):
            polled = await root.ask("GET", MESSAGES)
            epoch, at = polled.headers["iggy-epoch"], polled.headers["iggy-next-offset"]
            details = await root.get(TOPIC)
            assert int(epoch) == details["partitions"][0]["epoch"]
            seen.add(epoch)
            assert (await root.get(f"{MESSAGES}?value={at}&epoch={epoch}"))["count"] == 0
            if not act:
                continue
            if act == "/purge":
                await root.ask("DELETE", TOPIC + act)
            else:
                await root.ask("DELETE", TOPIC)
                await root.post("/streams/s/topics", {"name": "t", "partitions_count": 1})
            await root.post(MESSAGES, sent(*[message(b"%d" % n) for n in range(5)]))
            for query in (f"value={at}&epoch={epoch}", f"value={at}&epoch={epoch}&wait=20s"):
                refused = await root.ask("GET", f"{MESSAGES}?{query}")
                assert (refused.status_code, refused.json()["code"]) == REFUSED
            assert "was purged or created again: its epoch is" in refused.json()["reason"]
            body = {"consumer_id": 7, "partition_id": 0, "offset": 1}
            stored = await root.ask("PUT", f"{TOPIC}/consumer-offsets", body | {"epoch": int(epoch)})
            assert (stored.status_code, stored.json()["code"]) == REFUSED
            now = int((await root.ask("GET", MESSAGES)).headers["iggy-epoch"])
            stored = await root.ask("PUT", f"{TOPIC}/consumer-offsets", body | {"epoch": now})
            assert stored.status_code == 204
        assert len(seen) == 2


async def test_a_lease_cannot_commit_what_it_polled_before_a_purge(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        member = await made.lease()
        await made.send(1, "a", "b")
        polled = await member.poll(partition_id=1)
        details = (await made.client.get(TOPIC)).json()
        assert polled["epoch"] == details["partitions"][1]["epoch"]
        (await made.client.delete(f"{TOPIC}/purge")).raise_for_status()
        await made.send(1, "c", "d", "e")
        refused = await member.commit(polled)
        assert (refused.status_code, refused.json()["code"]) == (409, "stale_generation")
        generation = (await member.look())["generation"]
        body = {"generation": generation, "partition_id": 1, "offset": 1, "epoch": polled["epoch"]}
        refused = await made.client.put(f"{member.path}/offsets", json=body)
        assert (refused.status_code, refused.json()["code"]) == REFUSED
        assert texts(await member.poll(partition_id=1)) == ["c", "d", "e"]
