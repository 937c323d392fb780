"""Spark Connect: uses a Spark server on another machine, without Java here."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from pyspark.errors import PySparkImportError
from pyspark.sql import SparkSession

from whippet.pipelines import spark_zip
from whippet.pipelines.errors import FileError, MissingError, SparkError

SCHEME, PORT = "sc", 15002
ZIP = "whippet-spark.zip"
ANSWER_S = 10


def session(url: str, name: str, wanted: Mapping[str, str], folder: Path) -> SparkSession:
    """Writes the zip for the executors to `folder`."""
    _look(url)
    builder = SparkSession.builder.remote(url).appName(name).config("spark.sql.session.timeZone", "UTC")
    try:
        found = builder.config(map=dict(wanted)).getOrCreate()
    except (ImportError, PySparkImportError) as error:
        raise MissingError(
            f"using a Connect server needs more packages: install whippet-gateway[connect] (docs/install.md) ({error})"
        ) from None
    spark_zip.make(folder / ZIP)
    found.addArtifacts(str(folder / ZIP), pyfile=True)
    return found


def _look(url: str) -> None:
    """Spark itself would keep trying for minutes."""
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port or PORT
    except ValueError:
        host, port = None, PORT
    if parts.scheme != SCHEME or host is None:
        raise FileError(f"{url}: the address of a Connect server is needed, such as sc://127.0.0.1:15002")
    try:
        socket.create_connection((host, port), ANSWER_S).close()
    except OSError as error:
        raise SparkError(f"there is no Connect server at {host}:{port}: {error}") from None
