"""One Spark and one gateway, shared by all tests that need Spark; each test has its own topics.

tests/conftest.py makes these fixtures available to every test.
"""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.app.support.process import Gateway, starting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# No Java process of the tests lives long enough to benefit from its optimising compiler.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

PASSWORD = "a-password-that-nobody-may-see"


class Lake:
    """A gateway as the tests see it: over its plain HTTP API, without Spark."""

    def __init__(self, gateway: Gateway, folder: Path) -> None:
        self.gateway = gateway
        self.folder = folder
        self.url = f"http://{gateway.address()}"
        self.http = httpx.Client(base_url=self.url, trust_env=False, timeout=30)
        said = self.http.post("/users/login", json={"username": "iggy", "password": PASSWORD}).raise_for_status()
        self.http.headers["authorization"] = f"Bearer {said.json()['access_token']['token']}"
        self._numbers = itertools.count()

    @property
    def options(self) -> dict[str, str]:
        return {"url": self.url, "username": "iggy", "password": PASSWORD}

    def topic(self, partitions: int = 1, **more: object) -> str:
        """Creates a topic in a stream of its own."""
        stream = f"s{next(self._numbers)}"
        self.http.post("/streams", json={"name": stream}).raise_for_status()
        body = {"name": "t", "partitions_count": partitions, **more}
        self.http.post(f"/streams/{stream}/topics", json=body).raise_for_status()
        return f"{stream}/t"

    def forget(self, stream: str) -> None:
        """Deletes a stream, for tests that need one with this very name."""
        assert self.http.delete(f"/streams/{stream}").status_code in (204, 404)

    def path(self, topic: str) -> str:
        stream, name = topic.split("/")
        return f"/streams/{stream}/topics/{name}"

    def send(self, topic: str, values: list[str], partition: int = 0) -> None:
        self.http.post(
            f"{self.path(topic)}/messages?partition={partition}",
            content="\n".join(values),
            headers={"content-type": "text/plain"},
        ).raise_for_status()

    def send_json(self, topic: str, messages: list[dict[str, Any]]) -> None:
        body = {"partitioning": {"kind": "partition_id", "value": "AAAAAA=="}, "messages": messages}
        self.http.post(f"{self.path(topic)}/messages", json=body).raise_for_status()

    def values(self, topic: str) -> list[list[str]]:
        """Returns the values in each partition."""
        found = []
        for partition in range(self.partitions(topic)):
            query = {"partition_id": partition, "count": 1_000_000}
            answer = self.http.get(f"{self.path(topic)}/messages", params=query, headers={"accept": "text/plain"})
            found.append(answer.raise_for_status().text.splitlines())
        return found

    def all_values(self, topic: str) -> list[str]:
        return sorted(itertools.chain.from_iterable(self.values(topic)))

    def partitions(self, topic: str) -> int:
        return len(self.details(topic)["partitions"])

    def details(self, topic: str) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(self.path(topic)).raise_for_status().json()
        return found

    def topic_folder(self, topic: str) -> Path:
        stream = self.http.get(f"/streams/{topic.split('/', maxsplit=1)[0]}").raise_for_status().json()["id"]
        return self.folder / "streams" / str(stream) / "topics" / str(self.details(topic)["id"])

    def drop_segments(self, topic: str, count: int, partition: int = 0) -> None:
        """Deletes the oldest segments."""
        path = f"{self.path(topic)}/partitions/{partition}"
        self.http.delete(path, params={"segments_count": count}).raise_for_status()


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("pipeline") / "data"
    with starting(folder) as start:
        gateway = start(
            IGGY_ROOT_USERNAME="iggy",
            IGGY_ROOT_PASSWORD=PASSWORD,
            IGGY_SYSTEM_MESSAGE_DEDUPLICATION_ENABLED="true",
            IGGY_SYSTEM_MESSAGE_DEDUPLICATION_MAX_ENTRIES="1000000",
            IGGY_SYSTEM_MESSAGE_DEDUPLICATION_EXPIRY="1h",
        )
        found = Lake(gateway, folder)
        yield found
        found.http.close()


def need_spark() -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed: install whippet-gateway[spark]")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("there is no Java on this machine, and Spark needs 17 or newer")


def worker_python(folder: Path) -> Path:
    """Returns a Python for Spark's workers that imports pyspark from site-packages.

    Spark puts its own pyspark.zip first in PYTHONPATH. A zip has no place for bytecode, so every new worker would
    compile all of pyspark, which takes half a second of a core, three quarters of the cost of a short query.
    """
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o755)
    return script


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    need_spark()
    # Only after pyspark is known to be installed.
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from pyspark_whippet import register  # noqa: PLC0415

    os.environ["PYSPARK_PYTHON"] = str(worker_python(tmp_path_factory.mktemp("worker")))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2,4]").appName("tests of whippet")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR",
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    register(session)
    yield session
    session.stop()


@pytest.fixture
def load(spark: SparkSession, lake: Lake) -> Callable[..., DataFrame]:
    """Reads a topic as a table."""

    def read(topic: str | None = None, /, schema: str | None = None, **more: object) -> DataFrame:
        reader = spark.read.format("whippet").options(**lake.options)
        if topic is not None:
            reader = reader.option("subscribe", topic)
        if schema is not None:
            reader = reader.schema(schema)
        return reader.options(**{key: str(value) for key, value in more.items()}).load()

    return read


@pytest.fixture
def save(lake: Lake) -> Callable[..., None]:
    """Writes a DataFrame to a topic."""

    def write(frame: DataFrame, topic: str | None = None, /, mode: str = "append", **more: object) -> None:
        writer = frame.write.format("whippet").mode(mode).options(**lake.options)
        if topic is not None:
            writer = writer.option("topic", topic)
        writer.options(**{key: str(value) for key, value in more.items()}).save()

    return write
