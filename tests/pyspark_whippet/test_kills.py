"""kill -9 of Spark and the gateway at random moments while topics are copied: no message is lost, none is copied twice.

WHIPPET_SPARK_ROUNDS sets the number of rounds, as `make torture-spark` does.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.app.support.process import Start, starting
from tests.support.lake import PASSWORD, Lake, need_spark
from tests.support.sizes import sized

SEED = int(os.environ.get("WHIPPET_SPARK_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
PROGRAM = Path(__file__).parent / "programs" / "copies.py"
SOURCE = "copies/source"
PARTITIONS = 3
MESSAGES_A_ROUND = 3_000
DEADLINE_S = 300
COPIES = ("by_id", "by_value")


class Spark:
    """A separate driver; killing it kills all its processes."""

    def __init__(self, url: str, folder: Path, *more: str) -> None:
        command = [sys.executable, str(PROGRAM), url, PASSWORD, SOURCE, str(folder), *more]
        environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        self.log = (folder / "spark.log").open("ab")
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=self.log, start_new_session=True
        )

    def has_begun(self) -> bool:
        """Waits for the driver to start. Returns False if it ended before."""
        assert self.process.stdout
        return self.process.stdout.readline() == b"begun\n"

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.close()

    def close(self) -> int:
        code = self.process.wait(DEADLINE_S)
        assert self.process.stdout
        self.process.stdout.close()
        self.log.close()
        return code


@contextmanager
def world(folder: Path) -> Iterator[tuple[Lake, Start]]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    settings = {
        "IGGY_ROOT_USERNAME": "iggy",
        "IGGY_ROOT_PASSWORD": PASSWORD,
        "IGGY_HTTP_ADDRESS": address,
        "IGGY_TCP_ENABLED": "false",
        "IGGY_QUIC_ENABLED": "false",
    }
    with starting(folder / "data") as start:
        lake = Lake(start(**settings), folder / "data")
        yield lake, lambda: start(**settings)
        lake.http.close()


def fill(lake: Lake, messages: int) -> None:
    lake.http.post("/streams", json={"name": "copies"}).raise_for_status()
    options = {
        "message_deduplication": "true",
        "message_deduplication_max_entries": "1000000",
        "message_deduplication_expiry": "never_expire",
    }
    for name, more in (("source", {}), *((name, {"options": options}) for name in COPIES)):
        body = {"name": name, "partitions_count": PARTITIONS, **more}
        lake.http.post("/streams/copies/topics", json=body).raise_for_status()
    for partition in range(PARTITIONS):
        # Some values are equal, and all of them count.
        values = [f"{number // 3}" for number in range(partition, messages, PARTITIONS)]
        lake.send(SOURCE, values, partition)


def kill_gateway(lake: Lake, start: Start) -> None:
    lake.gateway.signal(signal.SIGKILL)
    lake.gateway.end()
    lake.gateway = start()
    lake.gateway.address()


def stored(lake: Lake) -> int:
    return sum(int(lake.http.get(lake.path(f"copies/{name}")).json()["messages_count"]) for name in COPIES)


def round_of_kills(lake: Lake, start: Start, spark: Spark, chance: random.Random) -> None:
    """Kills one to three processes, each after a few more messages have been copied."""
    if not spark.has_begun():
        return
    for _ in range(chance.randint(1, 3)):
        until = stored(lake) + chance.randint(1, 1_500)
        deadline = time.monotonic() + 60
        while spark.runs and stored(lake) < until and time.monotonic() < deadline:
            time.sleep(chance.random() / 10)
        if chance.random() < 0.6:
            kill_gateway(lake, start)
        else:
            break
    spark.kill()


@sized("rounds", None, long=5, variable="WHIPPET_SPARK_ROUNDS")
def test_every_message_is_copied_once_whichever_process_is_killed(tmp_path: Path, rounds: int) -> None:
    need_spark()
    messages = rounds * MESSAGES_A_ROUND
    chance = random.Random(SEED)
    with world(tmp_path) as (lake, start):
        fill(lake, messages)
        for _ in range(rounds):
            round_of_kills(lake, start, Spark(lake.url, tmp_path), chance)
        last = Spark(lake.url, tmp_path, "once")
        assert last.has_begun(), (tmp_path / "spark.log").read_text()[-4000:]
        assert last.close() == 0, (tmp_path / "spark.log").read_text()[-4000:]
        source = lake.all_values(SOURCE)
        assert len(source) == messages
        for name in COPIES:
            assert lake.all_values(f"copies/{name}") == source, f"seed {SEED}"
