"""Packages that only some readers need, imported when they do. A missing one is an error that says what to install."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from pyspark_whippet.errors import OptionError


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
