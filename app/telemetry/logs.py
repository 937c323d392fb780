"""The one place where logging is configured: which records are wanted, how a line looks, and where it goes: to stderr
and, if that is wanted, to files.

The composition root calls it once, before anything is opened. Other modules only ask for their own logger; none of
them adds a handler or sets a level.
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
"""The values of system.logging.level. Python's logging has nothing below debug."""


class Line(logging.Formatter):
    """Time in UTC, so that lines of several hosts can be read together."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"


def configure(level: str, *, to_files: bool = False) -> LogFiles:
    """What goes to files waits in the answer until that is started."""
    line = Line("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(line)
    files = LogFiles(line)
    root = logging.getLogger()
    root.handlers[:] = [handler, files.handler] if to_files else [handler]
    root.setLevel(LEVELS[level])
    # What uvicorn warns of is what strangers send (malformed requests, upgrades): a flood anyone could cause. A level
    # of its own is needed besides: at NOTSET it formats a line per connection for a level that nobody asked for.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    return files
