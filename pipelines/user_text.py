"""Text for users: numbers with their nouns, and exceptions as one line, without traces and without what Spark adds."""

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

# How one of our exceptions looks in the text of an exception that Spark has made from it between processes.
_OURS = re.compile(r"(?:whippet\.pipelines|pyspark_whippet)\.errors\.(\w+): (.+)")
_STATE = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)
_CONDITION = re.compile(r"^\s*(?:\[[A-Z_.0-9]+\]\s*)+")
_RAISED = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception|Exit|Interrupt)(?:: .*)?)$", re.MULTILINE)
"""The last line of a traceback."""
_STREAM = re.compile(r"\s*=== Streaming Query ===.*", re.DOTALL)
"""The description of the query that Spark appends."""
_WITHOUT_END = 400
IN_A_FILE = {
    NO_CREDENTIALS: "set WHIPPET_TOKEN, or WHIPPET_USERNAME and WHIPPET_PASSWORD, or set them in [iggy]",
    "failOnDataLoss=false": "fail_on_data_loss = false",
}
"""The data source's errors address people who set options; users of pipelines set keys in a file."""


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
        # From a Python process of Spark; the traceback above is not for users.
        return _shortened(raised[-1])
    if isinstance(error, PySparkException):
        return _of_spark(text)
    if isinstance(error, Py4JJavaError):
        return _of_java(error.java_exception)
    return _shortened(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _of_spark(text: str) -> str:
    return _shortened(_CONDITION.sub("", _STATE.sub("", _STREAM.sub("", text))))


def _of_java(exception: Any) -> str:
    """Returns the first message, which says what happened, and the last, which says why, but not that a job was
    aborted."""
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
    """Returns the first line of an error, for libraries that append traces, tables and drawings."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return _shortened(lines[0]) if lines else type(error).__name__


LIBRARIES = ("deltalake", "pyiceberg", "sqlalchemy", "pyarrow", "py4j")
"""Libraries whose errors users can understand, too: a table that does not fit, a file that cannot be written."""


def is_expected(error: BaseException) -> bool:
    """Returns True if the cause is outside Whippet; everything else is a bug."""
    module = type(error).__module__.split(".")[0]
    return isinstance(error, PipelineError | PySparkException | OSError) or module in LIBRARIES


def as_pipeline_error(error: Exception) -> PipelineError:
    """Returns the exception of ours that this one was made from, or a SparkError. Spark's exceptions can only be
    read while Spark runs."""
    if isinstance(error, PipelineError):
        return error
    found = _OURS.findall(str(error))
    kind = getattr(errors, found[-1][0], None) or getattr(source_errors, found[-1][0]) if found else errors.SparkError
    assert issubclass(kind, PipelineError)
    return kind(error_text(error))


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WITHOUT_END else line[:_WITHOUT_END] + " ..."
