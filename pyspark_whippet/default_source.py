"""The class that Spark discovers where Whippet is installed: it stands in for the data source until it is used.

Spark collects the data sources of all installed modules at once, in a process whose errors are at most a warning in its
log. If a package were missing there, users would only be told that no data source is called `whippet`. So the data
source is imported when Spark creates one, and an ImportError becomes part of the error that the user sees.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql.datasource import DataSource

from pyspark_whippet import packages


class DefaultSource(DataSource):
    def __new__(cls, options: Any) -> Any:
        try:
            packages.need_pyspark()
            from pyspark_whippet.source import WhippetSource  # noqa: PLC0415 -- see above
        except ImportError as error:
            raise ImportError(
                f"the data source 'whippet' cannot be loaded by {sys.executable}: {error}; the extra 'spark' of "
                "whippet-gateway installs what it needs"
            ) from error
        return WhippetSource(options)

    @classmethod
    def name(cls) -> str:
        return "whippet"
