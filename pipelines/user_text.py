"""What to tell a person of an exception: one line, without traces, without what Spark puts around it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from pyspark_whippet import errors as source_errors
from pyspark_whippet.errors import PipelineError
from pyspark_whippet.session import NO_CREDENTIALS
from whippet.pipelines import errors

# What an exception of ours looks like in the text of one that Spark has made of it, on its way through its processes.
_OURS = re.compile(r"(?:whippet\.pipelines|pyspark_whippet)\.errors\.(\w+): (.+)")
_STATE = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)
_CONDITION = re.compile(r"^\s*(?:\[[A-Z_.0-9]+\]\s*)+")
_RAISED = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception|Exit|Interrupt)(?:: .*)?)$", re.MULTILINE)
"""The last line of a trace."""
_STREAM = re.compile(r"\s*=== Streaming Query ===.*", re.DOTALL)
"""What Spark tells of the query, behind what went wrong."""
_WITHOUT_END = 400
IN_A_FILE = {
    NO_CREDENTIALS: "set WHIPPET_TOKEN, or WHIPPET_USERNAME and WHIPPET_PASSWORD, or say it in [iggy]",
    "failOnDataLoss=false": "fail_on_data_loss = false",
}
"""The data source speaks to people who write options."""


def pluralize(number: int, noun: str) -> str:
    """Returns `1 file`, `1,234 files` or `2 batches`."""
    ending = "" if number == 1 else "es" if noun.endswith(("ch", "s")) else "s"
    return f"{number:,} {noun}{ending}"


def error_text(error: BaseException) -> str:
    text = _error_text(error)
    for options, keys in IN_A_FILE.items():
        text = text.replace(options, keys)
    return text


def _error_text(error: BaseException) -> str:
    if isinstance(error, PipelineError):
        return str(error)
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1][1]).strip()
    if "Traceback (most recent call last)" in text and (raised := _RAISED.findall(text)):
        # Of a Python beside Spark; all that stands above it is for us.
        return _shortened(raised[-1])
    if isinstance(error, PySparkException):
        return _of_spark(text)
    if isinstance(error, Py4JJavaError):
        return _of_java(error.java_exception)
    return _shortened(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _of_spark(text: str) -> str:
    return _shortened(_CONDITION.sub("", _STATE.sub("", _STREAM.sub("", text))))


def _of_java(exception: Any) -> str:
    """The first that says what happened, and the last, which says why; not that a job was aborted for it."""
    texts = [_of_spark(text) for text in _causes(exception) if not text.startswith("Job aborted")]
    if not texts:
        return _of_spark(str(exception.getMessage()))
    return texts[0] if texts[-1] in texts[0] else _shortened(f"{texts[0]} {texts[-1]}")


def _causes(exception: Any) -> Iterator[str]:
    while exception is not None:
        if exception.getMessage():
            yield str(exception.getMessage())
        exception = exception.getCause()


def first_line(error: BaseException) -> str:
    """Of a library that puts traces, tables and pictures behind it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return _shortened(lines[0]) if lines else type(error).__name__


LIBRARIES = ("deltalake", "pyiceberg", "sqlalchemy", "pyarrow", "py4j")
"""What goes wrong in them is for people, too: a table that does not fit, a file that cannot be written."""


def is_expected(error: BaseException) -> bool:
    """Something outside is not as it should be; anything else is a mistake of ours."""
    module = type(error).__module__.split(".")[0]
    return isinstance(error, PipelineError | PySparkException | OSError) or module in LIBRARIES


def as_pipeline_error(error: Exception) -> PipelineError:
    """The exception of ours that went into this one, else a SparkError. Spark's own can be read while Spark runs."""
    if isinstance(error, PipelineError):
        return error
    found = _OURS.findall(str(error))
    kind = getattr(errors, found[-1][0], None) or getattr(source_errors, found[-1][0]) if found else errors.SparkError
    assert issubclass(kind, PipelineError)
    return kind(error_text(error))


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WITHOUT_END else line[:_WITHOUT_END] + " ..."
