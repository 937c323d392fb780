"""Packages that only some readers need, imported when they do. A missing one is an error that says what to install."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from pyspark_whippet.errors import OptionError

PYSPARK = (4, 2)
"""The oldest version whose data sources in Python can limit the batches of a stream."""


def need_pyspark() -> None:
    """Raises ImportError, in one line, where PySpark is missing or too old."""
    import pyspark  # noqa: PLC0415 -- its absence is what is reported

    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if version < PYSPARK:
        needed_version = ".".join(map(str, PYSPARK))
        raise ImportError(
            f"PySpark {needed_version} or newer is needed, and {sys.executable} has {pyspark.__version__}: "
            f"pip install 'pyspark>={needed_version}'"
        )


def needed(*names: str) -> Any:
    """Imports packages, and returns the first, if there is any. All that are missing are named together."""
    found, missing = [], []
    for name in names:
        try:
            found.append(import_module(name))
        except ImportError:
            missing.append(name)
    if missing:
        raise OptionError(
            f"reading this needs packages that {sys.executable} does not have: install {' '.join(missing)} "
            "on the driver and on every executor"
        )
    return found[0] if found else None
