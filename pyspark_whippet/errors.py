"""The errors of the data source. Each is one sentence that names the option or the topic, and what to do.

    PipelineError
    ├── OptionError      the options, or the columns, are invalid
    ├── GatewayError     the gateway cannot be reached, or has refused a request
    ├── ArchiveError     the archive cannot be reached, or a document of it is missing or damaged
    ├── DataLossError    messages that should exist are gone
    └── RowError         a row that cannot become a message

The sentences never contain a password, a token or the body of a request: Spark shows them to everyone who can see the
job.
"""

from __future__ import annotations


class PipelineError(Exception):
    pass


class OptionError(PipelineError):
    pass


class GatewayError(PipelineError):
    def __init__(self, sentence: str, status: int | None = None) -> None:
        """`status` is that of the response, or None without one. Exceptions are pickled by their arguments."""
        super().__init__(sentence, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class ArchiveError(PipelineError):
    pass


class DataLossError(PipelineError):
    pass


class RowError(PipelineError):
    pass
