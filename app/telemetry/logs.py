"""The configuration of logging: the level, the format of a line, and the destinations: stderr, and optionally files.

app/server.py calls it once, before anything is opened. No other module adds a handler or sets a level.
"""

from __future__ import annotations

import logging
import sys
import time

from whippet.app.telemetry.log_files import LogFiles

LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}
"""The values of system.logging.level. Python's logging has no level below debug."""


class Line(logging.Formatter):
    """Times are in UTC, so that the logs of several hosts can be compared."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"


def configure(level: str, *, to_files: bool = False) -> LogFiles:
    """Returns the log files, which collect lines until they are started."""
    line = Line("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(line)
    files = LogFiles(line)
    root = logging.getLogger()
    root.handlers[:] = [handler, files.handler] if to_files else [handler]
    root.setLevel(LEVELS[level])
    # uvicorn warns of what strangers send (malformed requests, upgrades): a flood that anybody could cause. It needs a
    # level of its own besides, because at NOTSET it formats a line per connection for a level that is not enabled.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    # So does the package of the Model Context Protocol.
    logging.getLogger("mcp").setLevel(logging.ERROR)
    return files
