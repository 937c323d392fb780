"""What can go wrong, each with one sentence that names the option or the topic and the way out.

    PipelineError
    ├── OptionError      what was asked for cannot be
    ├── GatewayError     the gateway cannot be reached, or has refused
    ├── DataLossError    messages that should be there are gone
    └── RowError         a row that cannot be a message

Sentences never hold a password, a token or the body of a request: Spark shows them to whoever sees the job.
"""

from __future__ import annotations


class PipelineError(Exception):
    pass


class OptionError(PipelineError):
    pass


class GatewayError(PipelineError):
    def __init__(self, sentence: str, status: int | None = None) -> None:
        """`status`: of the answer; None where there was none. Exceptions are pickled by their arguments."""
        super().__init__(sentence, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class DataLossError(PipelineError):
    pass


class RowError(PipelineError):
    pass
