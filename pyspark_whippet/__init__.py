"""Found by Spark: every installed module whose name begins with `pyspark_` is asked for a `DefaultSource`.

Only what is installed is found, not what `--py-files` brings: there, `app.pipeline.register(spark)`. A module that
cannot be imported would keep Spark from finding all others, so what is needed is imported when somebody asks.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(name)
    try:
        from app.pipeline.source import WhippetSource  # noqa: PLC0415
    except ImportError as error:
        raise AttributeError(f"{name}: {error}") from error
    return WhippetSource
