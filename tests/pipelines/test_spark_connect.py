"""Errors about an unreachable Connect server. Pipelines on a real one are tested in tests/deploy."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: install whippet-gateway[spark]")

from whippet.pipelines import spark_connect
from whippet.pipelines.errors import FileError, SparkError


@pytest.mark.parametrize("url", ["127.0.0.1:15002", "http://127.0.0.1:15002", "sc://", "sc://host:port", ""])
def test_an_invalid_address_is_named(tmp_path: Path, url: str) -> None:
    with pytest.raises(FileError, match=r"^\S*: the address of a Connect server is needed, such as sc://"):
        spark_connect.session(url, "p", {}, tmp_path)


def test_an_unreachable_server_is_reported_at_once(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host, port = free.getsockname()
        with pytest.raises(SparkError, match=f"^there is no Connect server at {host}:{port}: .*refused"):
            spark_connect.session(f"sc://{host}:{port}/;user_id=x", "p", {}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_sink_stdout_is_refused_over_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from whippet.pipelines.gateway_settings import GatewaySettings  # noqa: PLC0415
    from whippet.pipelines.sinks import stdout  # noqa: PLC0415

    stdout.StdoutSink().check_schema(StructType(), GatewaySettings(), "[sink]")
    monkeypatch.setattr(stdout, "is_remote", lambda: True)
    with pytest.raises(
        FileError, match=r"^\[sink\]: over Connect this would be the output of a process next to the server"
    ):
        stdout.StdoutSink().check_schema(StructType(), GatewaySettings(), "[sink]")
