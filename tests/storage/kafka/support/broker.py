"""A broker of Apache Kafka as a process on loopback, with a cluster of its own in a folder."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from whippet.storage.kafka.engine import KafkaEngine

Opening = Callable[..., "AbstractAsyncContextManager[KafkaEngine]"]
"""Opens engines; the fixture `opening`."""

LIBRARIES = Path(os.environ.get("WHIPPET_KAFKA") or Path.home() / ".cache" / "whippet" / "kafka-4.1.1" / "libs")
START_S = 60
STOP_S = 30
CLUSTER = "d2hpcHBldC10ZXN0cy0wMA"
JVM = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")

SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
auto.create.topics.enable=false
broker.heartbeat.interval.ms=200
broker.session.timeout.ms=1000
group.initial.rebalance.delay.ms=0
num.io.threads=2
num.network.threads=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
"""


def skip_without_kafka() -> None:
    if shutil.which("java") is None:
        pytest.skip("there is no Java on this machine: apt-get install openjdk-17-jre-headless")
    if not any(LIBRARIES.glob("kafka_2.13-*.jar")):
        pytest.skip("Apache Kafka is not on this machine: make kafka")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Broker:
    """It keeps its folder and its port when it is stopped and started again."""

    def __init__(self, folder: Path) -> None:
        skip_without_kafka()
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.server = f"127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = folder / "server.properties"
        self._settings.write_text(SETTINGS.format(port=self.port, controller=free_port(), folder=folder))
        self._run("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._settings))

    def _command(self, name: str, *arguments: str) -> list[str]:
        return ["java", *JVM, "-cp", f"{LIBRARIES}/*", name, *arguments]

    def _run(self, name: str, *arguments: str) -> str:
        done = subprocess.run(
            self._command(name, *arguments), capture_output=True, text=True, timeout=START_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self) -> Broker:
        """Returns when it can be reached."""
        self.begin()
        deadline = time.monotonic() + START_S
        assert self._process
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                assert self._process.poll() is None, self.log
                assert time.monotonic() < deadline, self.log
                time.sleep(0.05)
            else:
                return self

    def begin(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command("kafka.Kafka", str(self._settings)), stdout=log, stderr=log, cwd=self._folder
            )

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()

    def pause(self) -> None:
        """It keeps its connections and answers nothing."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S)
            self._process = None
