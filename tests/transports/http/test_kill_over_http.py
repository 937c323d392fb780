"""kill -9 of the gateway while producers number their sends over HTTP, and repeat those without a response.

Every message is stored exactly once, at the acknowledged position. Rounds:
WHIPPET_TORTURE_ROUNDS; `make torture` sets it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.app.support.process import Gateway, Start, starting
from tests.support.sizes import sized

SEED = int(os.environ.get("WHIPPET_TORTURE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
PRODUCERS = ("one", "two", "three")
PARTITIONS = 2
ROOT = {"IGGY_ROOT_USERNAME": "iggy", "IGGY_ROOT_PASSWORD": "iggyiggy", "IGGY_TCP_ENABLED": "false"}
TOPIC = "/streams/s/topics/t"
TIMEOUT_S = 30

Place = tuple[int, int]


def client(gateway: Gateway) -> httpx.Client:
    """Returns a client that is logged in."""
    made = httpx.Client(base_url=f"http://{gateway.address()}", trust_env=False, timeout=TIMEOUT_S)
    login = {"username": ROOT["IGGY_ROOT_USERNAME"], "password": ROOT["IGGY_ROOT_PASSWORD"]}
    token = made.post("/users/login", json=login).raise_for_status().json()["access_token"]["token"]
    made.headers["authorization"] = f"Bearer {token}"
    return made


def sending(gateway: Gateway, name: str, acknowledged: dict[int, Place], responded: threading.Semaphore) -> None:
    """Sends one message after the other, each after the response to the last one, until the server is gone."""
    try:
        with contextlib.closing(client(gateway)) as http:
            while True:
                sequence = len(acknowledged)
                headers = {
                    "content-type": "application/octet-stream",
                    "producer-id": name,
                    "producer-epoch": "1",
                    "producer-seq": str(sequence),
                }
                answer = http.post(f"{TOPIC}/messages", content=f"{name} {sequence}".encode(), headers=headers)
                (place,) = answer.raise_for_status().json()["confirmations"]
                acknowledged[sequence] = place["partition_id"], place["base_offset"]
                responded.release()
    except httpx.TransportError:
        return


def round_of_sends(start: Start, answers: dict[str, dict[int, Place]], count: int) -> None:
    """Kills the gateway after each producer has received at least this many responses."""
    gateway = start(**ROOT)
    gateway.line("Whippet")
    responded = [threading.Semaphore(0) for _ in answers]
    senders = [
        threading.Thread(target=sending, args=(gateway, *producer, each))
        for producer, each in zip(answers.items(), responded, strict=True)
    ]
    for sender in senders:
        sender.start()
    for each in responded:
        for _ in range(count):
            assert each.acquire(timeout=TIMEOUT_S), f"seed {SEED}: a producer is not answered"
    gateway.signal(signal.SIGKILL)
    gateway.end()
    for sender in senders:
        sender.join(TIMEOUT_S)
        assert not sender.is_alive()


def stored(http: httpx.Client, partition_id: int) -> Iterator[str]:
    position = 0
    while True:
        query: dict[str, str | int] = {"partition_id": partition_id, "kind": "offset", "value": position, "count": 1000}
        lines = http.get(f"{TOPIC}/messages", params=query, headers={"accept": "text/plain"}).raise_for_status().text
        found = lines.splitlines()
        if not found:
            return
        yield from found
        position += len(found)


@sized("kills", 6, long=20, variable="WHIPPET_TORTURE_ROUNDS")
def test_a_numbered_send_that_is_repeated_after_kill_9_is_stored_once(tmp_path: Path, kills: int) -> None:
    answers: dict[str, dict[int, Place]] = {name: {} for name in PRODUCERS}
    chance = random.Random(SEED)
    with starting(tmp_path / "data") as start:
        first = start(**ROOT)
        first.line("Whippet")
        with contextlib.closing(client(first)) as http:
            http.post("/streams", json={"name": "s"}).raise_for_status()
            http.post("/streams/s/topics", json={"name": "t", "partitions_count": PARTITIONS}).raise_for_status()
        first.signal(signal.SIGKILL)
        first.end()
        for number in range(kills):
            # Sometimes it is killed before its first response.
            count = chance.choice((0, chance.randrange(3), chance.randrange(3, 30)))
            round_of_sends(start, answers, count if number else 3)
        last = start(**ROOT)
        last.line("Whippet")
        with contextlib.closing(client(last)) as http:
            found = [list(stored(http, partition_id)) for partition_id in range(PARTITIONS)]
    everything = [line for lines in found for line in lines]
    assert len(everything) == len(set(everything)), f"seed {SEED}: something is stored twice"
    for name, acknowledged in answers.items():
        for sequence, (partition_id, offset) in acknowledged.items():
            assert found[partition_id][offset] == f"{name} {sequence}", f"seed {SEED}"
