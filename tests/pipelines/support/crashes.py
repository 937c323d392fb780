"""A pipeline whose process ends where refused rows could be lost or reported twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.pipelines.support.job import Job

CRASHES = ("before the commit", "before the dead letters", "after everything")


def ends(*_: object) -> None:
    raise RuntimeError("the process ended here")


def run_up_to(crash: str, job: Job, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from whippet.pipelines.bad_records import BadRecords  # noqa: PLC0415 -- they need pyspark
    from whippet.pipelines.refused_rows import RefusedRows  # noqa: PLC0415

    if crash == "after everything":
        job(text)
        job.crash()
        return
    keep = RefusedRows.record
    with monkeypatch.context() as patched:
        if crash == "before the commit":
            patched.setattr(RefusedRows, "record", lambda *given: ends(keep(*given)))
        else:
            patched.setattr(BadRecords, "send_dead_letters", ends)
        with pytest.raises(RuntimeError, match="the process ended here"):
            job(text)
