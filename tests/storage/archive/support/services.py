"""Object stores on this machine to which a test can archive. Those that are programs are used if they are installed:
`make suites K=archives` installs them in a temporary folder."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import boto3
import pytest

from tests.storage.archive.support.buckets import BUCKET, REGION, bucket
from tests.storage.archive.support.google import google
from whippet.storage.options import ArchiveOptions

STARTS_S = 60.0
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The same for everybody: Azurite's documentation has it."""

Service = Callable[[Path], contextlib.AbstractContextManager[ArchiveOptions]]


@contextlib.contextmanager
def running(program: str, *arguments: str, port: int, variables: Mapping[str, str] | None = None) -> Iterator[None]:
    """Runs a program until it accepts connections at a port, and to the end of the context."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"needs {program} on the PATH; `make suites K=archives` installs it")
    process = subprocess.Popen(
        [found, *arguments],
        env=os.environ | (variables or {}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + STARTS_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, f"{program} has ended"
            assert time.monotonic() < deadline, f"{program} does not listen"
        yield
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[ArchiveOptions]:
    yield ArchiveOptions(path=str(folder / "objects"))


@contextlib.contextmanager
def moto(folder: Path) -> Iterator[ArchiveOptions]:
    with bucket() as found:
        yield found.options("prefix")


@contextlib.contextmanager
def minio(folder: Path) -> Iterator[ArchiveOptions]:
    port = free_port()
    secrets = {"MINIO_ROOT_USER": "iggyiggy", "MINIO_ROOT_PASSWORD": "iggyiggy"}
    address = f"127.0.0.1:{port}"
    with running("minio", "server", str(folder / "minio"), "--address", address, port=port, variables=secrets):
        _create_bucket(f"http://{address}", "iggyiggy")
        yield _s3(f"http://{address}", "iggyiggy")


def _create_bucket(endpoint: str, secret: str) -> None:
    client = boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id=secret, aws_secret_access_key=secret, region_name=REGION
    )
    try:
        client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    finally:
        client.close()


def _s3(endpoint: str, secret: str) -> ArchiveOptions:
    return ArchiveOptions(
        kind="s3",
        bucket=BUCKET,
        key_prefix="prefix",
        endpoint=endpoint,
        region=REGION,
        access_key_id=secret,
        secret_access_key=secret,
    )


@contextlib.contextmanager
def gcs(folder: Path) -> Iterator[ArchiveOptions]:
    with google(folder) as (account, _):
        yield ArchiveOptions(kind="gcs", bucket=BUCKET, key_prefix="prefix", service_account_file=str(account))


@contextlib.contextmanager
def azurite(folder: Path) -> Iterator[ArchiveOptions]:
    port = free_port()
    arguments = ("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent")
    with running("azurite-blob", "--blobHost", "127.0.0.1", "--blobPort", str(port), *arguments, port=port):
        endpoint = f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}"
        _create_container(endpoint)
        yield ArchiveOptions(
            kind="azure",
            account=AZURITE_ACCOUNT,
            bucket=BUCKET,
            key_prefix="prefix",
            endpoint=endpoint,
            secret_access_key=AZURITE_KEY,
        )


def _create_container(endpoint: str) -> None:
    now = datetime.datetime.now(datetime.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": now, "x-ms-version": "2021-08-06"}
    of_headers = [f"{name}:{value}" for name, value in headers.items()]
    resource = f"/{AZURITE_ACCOUNT}/{AZURITE_ACCOUNT}/{BUCKET}"
    signed = "\n".join(["PUT", *[""] * 11, *of_headers, resource, "restype:container"])
    digest = hmac.new(base64.b64decode(AZURITE_KEY), signed.encode(), hashlib.sha256).digest()
    headers |= {"authorization": f"SharedKey {AZURITE_ACCOUNT}:{base64.b64encode(digest).decode()}"}
    headers |= {"content-length": "0"}
    request = urllib.request.Request(f"{endpoint}/{BUCKET}?restype=container", headers=headers, method="PUT")
    with urllib.request.urlopen(request) as response:
        assert response.status == 201


SERVICES: dict[str, Service] = {"disk": disk, "moto": moto, "minio": minio, "gcs": gcs, "azurite": azurite}
