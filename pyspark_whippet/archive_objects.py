"""Objects of an archive, in a folder or in a bucket: read as a whole, or in ranges.

This is the only module that knows obstore, which only buckets need.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from pyspark_whippet.errors import ArchiveError
from pyspark_whippet.packages import needed
from pyspark_whippet.settings import Secret, Settings

Result = TypeVar("Result")
ATTEMPTS_MAX = 1000
"""Where only time bounds them."""


class Objects(Protocol):
    """An object that does not exist is None; every other failure is an ArchiveError."""

    def get(self, name: str) -> bytes | None: ...

    def size(self, name: str) -> int | None: ...

    def read(self, name: str, position: int, length: int) -> bytes | None:
        """Reads a range, which should be inside the object."""


def open_objects(settings: Settings) -> Objects:
    """Connects to nothing yet."""
    archive = settings.archive
    assert archive is not None
    # Whatever is read is checked.
    needed("xxhash", *["obstore"] * (archive.folder is None))
    return Bucket(settings) if archive.folder is None else Folder(archive.folder)


class Folder:
    def __init__(self, path: str) -> None:
        self._path = path

    def get(self, name: str) -> bytes | None:
        size = self.size(name)
        return None if size is None else self.read(name, 0, size)

    def size(self, name: str) -> int | None:
        return self._guarded(name, lambda: os.stat(f"{self._path}/{name}").st_size)

    def read(self, name: str, position: int, length: int) -> bytes | None:
        def read() -> bytes:
            with open(f"{self._path}/{name}", "rb") as file:
                file.seek(position)
                return file.read(length)

        return self._guarded(name, read)

    def _guarded(self, name: str, call: Callable[[], Result]) -> Result | None:
        try:
            return call()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ArchiveError(f"{self._path}/{name} cannot be read: {error.strerror}") from None


class Bucket:
    """Credentials that are not given come from the environment, or from the role of the machine."""

    def __init__(self, settings: Settings) -> None:
        self._obstore = needed("obstore")
        from obstore.exceptions import BaseError  # noqa: PLC0415 -- see the module
        from obstore.store import S3Store  # noqa: PLC0415 -- see the module

        archive, access = settings.archive, settings.access
        assert archive is not None
        self._location = str(archive)
        self._errors = (BaseError, OSError, ValueError)
        endpoint = settings.s3_endpoint or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT") or ""
        client: dict[str, Any] = {
            "timeout": timedelta(milliseconds=access.timeout_ms),
            "allow_http": endpoint.startswith("http://"),
        }
        if not access.verify:
            client["allow_invalid_certificates"] = True
        given = {
            "region": settings.s3_region,
            "endpoint": settings.s3_endpoint,
            "access_key_id": _text(settings.s3_access_key_id),
            "secret_access_key": _text(settings.s3_secret_access_key),
            "session_token": _text(settings.s3_session_token),
        }
        try:
            if access.ca_file is not None:
                with open(access.ca_file, encoding="utf-8") as file:
                    client["root_certificate"] = file.read()
            create: Any = S3Store
            self._store = create(
                archive.bucket,
                prefix=archive.prefix or None,
                client_options=client,
                retry_config={
                    "max_retries": ATTEMPTS_MAX if access.retries is None else access.retries,
                    "retry_timeout": timedelta(milliseconds=access.retry_for_ms),
                },
                **{name: value for name, value in given.items() if value is not None},
            )
        except self._errors as error:
            raise ArchiveError(f"{self._location} cannot be used: {_first_line(error)}") from None

    def get(self, name: str) -> bytes | None:
        return self._guarded(name, lambda: bytes(self._obstore.get(self._store, name).bytes()))

    def size(self, name: str) -> int | None:
        return self._guarded(name, lambda: int(self._obstore.head(self._store, name)["size"]))

    def read(self, name: str, position: int, length: int) -> bytes | None:
        return self._guarded(
            name, lambda: bytes(self._obstore.get_range(self._store, name, start=position, length=length))
        )

    def _guarded(self, name: str, call: Callable[[], Result]) -> Result | None:
        try:
            return call()
        except FileNotFoundError:
            return None
        except self._errors as error:
            raise ArchiveError(f"{self._location}/{name} cannot be read: {_first_line(error)}") from None


def _text(secret: Secret | None) -> str | None:
    return None if secret is None else secret.text


def _first_line(error: BaseException) -> str:
    """The text of obstore has a dump of its own structures after the first line."""
    lines = str(error).splitlines()
    return lines[0][:500] if lines else type(error).__name__
