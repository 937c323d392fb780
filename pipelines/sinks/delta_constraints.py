"""Finds the rows that violate constraints of a Delta table.

delta-rs reports that some rows violate a constraint, but not which ones. So rows are tried on temporary tables with the
same columns and one of the constraints each.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from whippet.pipelines.sinks.lake_tables import RefusalCheck

if TYPE_CHECKING:
    from deltalake import DeltaTable

PREFIX = "delta.constraints."
_VIOLATION = re.compile(r"validation check|invariant", re.IGNORECASE)


def checks_of(table: DeltaTable) -> Mapping[str, str]:
    """Returns the conditions by name."""
    settings = table.metadata().configuration
    return {name.removeprefix(PREFIX): text for name, text in settings.items() if name.startswith(PREFIX) and text}


def is_about_rows(error: Exception) -> bool:
    """delta-rs has one exception for everything, and a full disk is not the fault of a row."""
    return _VIOLATION.search(str(error)) is not None


@contextmanager
def violations(table: DeltaTable) -> Iterator[RefusalCheck]:
    from deltalake import DeltaTable, write_deltalake  # noqa: PLC0415 -- an extra
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="whippet-") as folder:
        # The names come from users, so folders are numbered.
        checks = [(str(Path(folder, str(place))), *check) for place, check in enumerate(checks_of(table).items())]
        for path, name, text in checks:
            DeltaTable.create(path, table.schema()).alter.add_constraint({name: text})

        def why_not(rows: pa.Table) -> str | None:
            for path, name, text in checks:
                try:
                    write_deltalake(path, rows, mode="append", schema_mode="merge")
                except DeltaError as error:
                    if not is_about_rows(error):
                        raise
                    return f"it violates the table's constraint '{name}': {text}"
            return None

        yield why_not
