"""A pipeline that a test runs once or repeatedly, on the Spark session and the gateway that all tests share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.support.lake import PASSWORD, Lake

if TYPE_CHECKING:
    from whippet.pipelines.batch_processor import RunStatus


class Ran(NamedTuple):
    done: RunStatus
    said: list[str]


class Job:
    """A pipeline: its file may change between two runs, its state is kept."""

    def __init__(self, lake: Lake, folder: Path) -> None:
        self._lake = lake
        self.folder = folder
        self.state = folder / "state" / "job"

    def file(self, text: str) -> str:
        iggy = f'[iggy]\naddress = "{self._lake.url}"\nusername = "iggy"\npassword = "{PASSWORD}"\n'
        return f'key = "job"\n{text}\n{iggy}[state]\npath = "{self.folder / "state"}"\n'

    def __call__(self, text: str) -> Ran:
        from whippet.pipelines import pipeline_file, runner  # noqa: PLC0415 -- they need pyspark

        said: list[str] = []
        pipeline = pipeline_file.read(self.file(text))
        return Ran(runner.run(pipeline, said.append, once=True, progress_s=60), said)

    def crash(self) -> None:
        """Simulates a kill of the process between the sinks and Spark's record that the last batch is done."""
        commits = self.state / "checkpoint" / "commits"
        last = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)
