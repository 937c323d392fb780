"""The dashboard: a page and its scripts for browsers, as files. Other pages can use whippet.js, too.

They talk to the server only over the channel at `/ws`. transports/http/serving/dashboard.py serves them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

PAGE = "index.html"
MEDIA: Mapping[str, str] = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""Media types by file extension."""


def media_of(name: str) -> str | None:
    return MEDIA.get(name.rpartition(".")[2])


def files() -> dict[str, bytes]:
    """Reads all files to serve, by name; called once, at the start of a server."""
    found = resources.files(__name__).iterdir()
    return {file.name: file.read_bytes() for file in found if media_of(file.name) is not None}
