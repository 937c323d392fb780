"""The dashboard: a page and its scripts for browsers, as files. whippet.js among them is for the pages of others, too.

They speak with a server over the channel at `/ws` alone. transports/http/serving/dashboard.py serves them.
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
"""By the ends of their names."""


def media_of(name: str) -> str | None:
    return MEDIA.get(name.rpartition(".")[2])


def files() -> dict[str, bytes]:
    """What there is to serve, by name. Reads them all: for the start of a server."""
    found = resources.files(__name__).iterdir()
    return {file.name: file.read_bytes() for file in found if media_of(file.name) is not None}
