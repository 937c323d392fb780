"""The configuration of logging: the level, the format of a line, and the destinations: stderr, and optionally files.

app/server.py calls it once, before anything is opened. No other module adds a handler or sets a level.
"""

from __future__ import annotations

import json
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


class JsonLine(Line):
    """The same as an object in JSON, with the fields of a record, if it has any, as members of their own."""

    def format(self, record: logging.LogRecord) -> str:
        members = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            members["exception"] = record.exc_text
        # Not msgspec, which refuses what a client may have sent: half a character.
        return json.dumps(members)


def configure(level: str, form: str = "auto", *, to_files: bool = False) -> LogFiles:
    """Returns the log files, which collect lines until they are started. `form` is `auto`, `text` or `json`."""
    text, objects = Line("%(asctime)s %(levelname)-7s %(name)s: %(message)s"), JsonLine()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(text if form == "text" or (form == "auto" and sys.stderr.isatty()) else objects)
    files = LogFiles(text if form == "text" else objects)
    root = logging.getLogger()
    root.handlers[:] = [handler, files.handler] if to_files else [handler]
    root.setLevel(LEVELS[level])
    # uvicorn warns of what strangers send (malformed requests, upgrades): a flood that anybody could cause. It needs a
    # level of its own besides, because at NOTSET it formats a line per connection for a level that is not enabled.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    # So does the package of the Model Context Protocol.
    logging.getLogger("mcp").setLevel(logging.ERROR)
    return files
