"""Reserves file descriptors for the store, in case clients have taken all others.

The process lowers its own limit a little. A call of the store that hits the limit raises it for the duration of the
call. Connections that arrive in that moment could only do harm by taking all of the reserve.
"""

from __future__ import annotations

import errno
import resource
import threading
from collections.abc import Callable
from typing import TypeVar

RESERVED = 64

Result = TypeVar("Result")

_raising = threading.Lock()


def reserve() -> int:
    """Called once, at the start. Returns how many descriptors there are for everything else. Raises OSError or
    ValueError if the operating system refuses to change the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    usable = hard - min(RESERVED, hard // 4)
    resource.setrlimit(resource.RLIMIT_NOFILE, (usable, hard))
    return usable


def with_reserve(open_file: Callable[..., Result], *arguments: object) -> Result:
    """Makes a call that opens a file, using the reserve if necessary."""
    try:
        return open_file(*arguments)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    with _raising:
        usable, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            return open_file(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (usable, hard))
