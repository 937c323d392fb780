"""The Spark session of a pipeline: an existing one (spark-submit, a notebook, a test), or one of its own on this
machine, whose output goes to a log file next to the state instead of the terminal."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from pyspark_whippet import register
from whippet.pipelines import spark_connect, spark_zip
from whippet.pipelines.errors import MissingError
from whippet.pipelines.spark_connect import ZIP

LOG = "spark.log"
END_S = 30
NEEDS_JAVA = "Spark needs Java 17 or newer: apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
DEFAULTS = {
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    "spark.log.level": "ERROR",
    # Saves some 40 ms per batch, and suits our checkpoints, which are on a local file system.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def has_session() -> bool:
    return SparkSession.getActiveSession() is not None


def is_submitted() -> bool:
    """Whether spark-submit has started this process: its Java is already running and logs where it was told to."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def start(name: str, wanted: Mapping[str, str], folder: Path, remote: str | None = None) -> SparkSession:
    """Starts a session; `wanted` are the settings of the file, which override ours. The caller stops the session if
    it had to be started."""
    # Spark logs each failure as JSON when it passes through Python; the caller reports the exception anyway.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    session = SparkSession.getActiveSession()
    if session is None:
        if remote is not None:
            session = spark_connect.session(remote, name, wanted, folder)
        else:
            session = _submitted(name, wanted) if is_submitted() else _own(name, wanted, folder)
    register(session)
    return session


def _submitted(name: str, wanted: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC")
    return builder.config(map=dict(wanted)).getOrCreate()


def _own(name: str, wanted: Mapping[str, str], folder: Path) -> SparkSession:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise MissingError(NEEDS_JAVA)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    conf = SparkConf().setAppName(name)
    for key, value in {**DEFAULTS, **wanted}.items():
        conf.set(key, value)
    log = folder / LOG
    with log.open("wb") as file:
        context = _context(conf, file, log)
    if not conf.get("spark.master", "").startswith("local"):
        # Executors have their own Python, in which Whippet need not be installed.
        spark_zip.make(folder / ZIP)
        context.addPyFile(str(folder / ZIP))
    return SparkSession(context)


def _context(conf: SparkConf, file: IO[bytes], log: Path) -> SparkContext:
    try:
        gateway = launch_gateway(conf, {"stdout": file, "stderr": file})  # type: ignore[no-untyped-call]
        return SparkContext(conf=conf, gateway=gateway)
    except PySparkException:
        raise MissingError(f"Spark does not start; {NEEDS_JAVA}. See its log in {log}") from None


def stop(session: SparkSession) -> None:
    if is_remote():
        session.stop()
        return
    gateway = session.sparkContext._gateway
    with contextlib.suppress(Py4JError, OSError):
        # Java may have ended by itself.
        session.stop()
    if gateway is None or getattr(gateway, "proc", None) is None:
        # spark-submit has started it, and stops it.
        return
    with contextlib.suppress(Py4JError, OSError):
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(END_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
