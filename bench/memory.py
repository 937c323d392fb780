"""What the process holds of the machine's memory, as the kernel counts it."""

from __future__ import annotations

import os
import resource

from whippet.bench.measure import Bench, Figure


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def resident_bytes_max() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def resident(_: Bench) -> list[Figure]:
    """Comes last in the table of measures, so that it speaks of the whole run."""
    return [
        Figure(name="resident memory, most", value=resident_bytes_max() / 2**20, unit="MiB", note="of this whole run"),
        Figure(name="resident memory, now", value=resident_bytes() / 2**20, unit="MiB"),
    ]
