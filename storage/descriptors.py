"""File descriptors that are kept for the store, for when clients have taken all others.

The process limits itself to a little less than it may have. A call of the store that meets the limit raises it for as
long as the call takes; connections that arrive meanwhile would have to take all that is kept to do it any harm.
"""

from __future__ import annotations

import errno
import resource
import threading
from collections.abc import Callable
from typing import TypeVar

RESERVED = 64

Answer = TypeVar("Answer")

_raising = threading.Lock()


def reserve() -> int:
    """Once, at the start: how many descriptors there are for everything. OSError or ValueError if the operating system
    refuses to say how many this process may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    usable = hard - min(RESERVED, hard // 4)
    resource.setrlimit(resource.RLIMIT_NOFILE, (usable, hard))
    return usable


def with_reserve(act: Callable[..., Answer], *arguments: object) -> Answer:
    """For calls that open a file."""
    try:
        return act(*arguments)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    with _raising:
        usable, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            return act(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (usable, hard))
