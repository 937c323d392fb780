"""Finds what clients leave behind in a server: for each line of input it reports its memory, tasks and files."""

from __future__ import annotations

import json
import time
from itertools import count

from tests.app.support.process import Gateway

TELLS = """
import asyncio, collections, ctypes, gc, json, os, sys, threading
from whippet.transports.http.serving import repeated_heads
repeated_heads.HEADS_MAX = 16
OURS = ("whippet.", "aioquic.")
class Heap(ctypes.Structure):
    NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    _fields_ = [(name, ctypes.c_size_t) for name in NAMES]
def heap():
    info = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if info is None:
        return 0
    info.restype = Heap
    found = info()
    return found.uordblks + found.hblkhd
def tell():
    for line in sys.stdin:
        gc.collect()
        there, tasks = collections.Counter(), 0
        for each in gc.get_objects():
            kind = type(each)
            there[f"{kind.__module__}.{kind.__qualname__}"] += 1
            tasks += isinstance(each, asyncio.Task) and not each.done()
        counts = {name: count for name, count in there.items() if name.startswith(OURS)}
        counts |= {"blocks": sys.getallocatedblocks(), "heap": heap()}
        counts |= {"tasks": tasks, "files": len(os.listdir("/proc/self/fd"))}
        print("objects", line.strip(), json.dumps(counts), flush=True)
threading.Thread(target=tell, daemon=True).start()
"""
"""Runs in the server's process before it starts to serve. The heads of requests that it remembers would take more
blocks than a leak; there are fewer here. `heap` is the memory in use of the C library (with glibc),
`blocks` the number of Python's blocks. Resident memory is more: freed memory is kept for reuse."""
SLACK = {"tasks": 3, "files": 8, "blocks": 10_000, "heap": 4 << 20}
"""What a round of housekeeping and bounded caches may add."""
LEFT_SECONDS = 15
"""How long clients that have left may still be considered connected."""
CACHED = {
    "whippet.app.commands.requests.Partitioning": 1100,
    "whippet.app.commands.requests.Consumer": 1100,
    "whippet.app.access.tickets.Ticket": 70,
    # Repetitions in the audit log that are taken together, for a minute.
    "whippet.app.audit.entry.Entry": 201,
    "whippet.app.telemetry.activity._Counts": 2,
    "whippet.app.access.throttle._Count": 100,
    "whippet.app.access.throttle._Ledger": 100,
    "whippet.app.telemetry.measurements.Histogram": 1000,
    "whippet.storage.files.Space": 2,
    "whippet.transports.http.serving.endpoint.Known": 100,
    "whippet.transports.http.serving.repeated_heads.Head": 100,
    "whippet.transports.http.serving.router.Match": 1100,
}
"""The limits of caches whose entries may be needed again."""


class Leftovers:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._numbers = count()

    def there(self) -> dict[str, int]:
        number, stdin = next(self._numbers), self._gateway.process.stdin
        assert stdin
        stdin.write(f"{number}\n")
        stdin.flush()
        said = self._gateway.line(rf"^objects {number} (.*)")
        found: dict[str, int] = json.loads(said.group(1))
        return found

    def more(self, before: dict[str, int]) -> dict[str, tuple[int, int]]:
        """Waits until nothing has grown, and returns what still has: the numbers before and after."""
        deadline = time.monotonic() + LEFT_SECONDS
        while True:
            found = {
                name: (before.get(name, 0), now)
                for name, now in self.there().items()
                if now > max(before.get(name, 0) + SLACK.get(name, 0), CACHED.get(name, 0))
            }
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.2)
