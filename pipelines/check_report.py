"""The output of `whippet pipeline check`: what the file says, what exists, and which records come out. It shows no
secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.types import StructType

from pyspark_whippet.errors import PipelineError
from whippet.pipelines import state
from whippet.pipelines.bad_records import SKIP
from whippet.pipelines.errors import FileError
from whippet.pipelines.keys import SECRET, keys, toml_text
from whippet.pipelines.pipeline_file import Pipeline
from whippet.pipelines.record_columns import METADATA
from whippet.pipelines.secrets import MASK
from whippet.pipelines.sinks import SINKS
from whippet.pipelines.sources import SOURCES
from whippet.pipelines.transform_chain import Analysis
from whippet.pipelines.transforms import TRANSFORMS

INDENT = "  "


def lines(pipeline: Pipeline, *, inspect: bool) -> Iterator[str]:
    """Yields everything that is known without Spark. With `inspect`, source and sinks are queried, and FileError is
    raised if one of them is not as it should be."""
    yield f"pipeline {pipeline.key}" + (f" ({pipeline.name})" if pipeline.name != pipeline.key else "")
    shown = pipeline.shown
    yield from _part("source", pipeline.source, shown["source"], SOURCES)
    if inspect:
        yield from _found("[source]", pipeline.source, pipeline)
    for number, (each, raw) in enumerate(zip(pipeline.transforms, _transforms(shown), strict=True), start=1):
        yield from _part(f"transform {number}", each, raw, TRANSFORMS)
    placed = zip(pipeline.placed_sinks, _sinks(shown), strict=True)
    for number, ((place, sink), raw) in enumerate(placed, start=1):
        yield from _part(f"sink {number}" if len(pipeline.sinks) > 1 else "sink", sink, raw, SINKS)
        if inspect:
            yield from _found(place, sink, pipeline)
        yield f"{INDENT * 2}{sink.DELIVERY}"
    yield f"{INDENT}bad records: {_bad_records(pipeline)}"
    last = state.last_batch(pipeline.state)
    yield f"{INDENT}state: {pipeline.state}, {'new' if last is None else f'batch {last} is the last one done'}"


def inspect_all(pipeline: Pipeline) -> None:
    """Queries source and sinks, and raises an error if one does not exist."""
    for place, part in (("[source]", pipeline.source), *pipeline.placed_sinks):
        for _ in _found(place, part, pipeline):
            """The lines are not needed."""


def describe_columns(flow: Analysis) -> str:
    """Describes the records that the sinks get."""
    names = [f"{field.name} {_type(field.dataType)}" for field in flow.schema if field.name not in METADATA]
    more = [field.name for field in flow.schema if field.name in METADATA]
    metadata = f"; metadata: {', '.join(more)}" if more else ""
    return f"{INDENT}records: {', '.join(names) or 'no fields'}{metadata}"


def _type(kind: Any) -> str:
    return "struct<...>" if isinstance(kind, StructType) and len(kind) > 5 else str(kind.simpleString())


def _part(title: str, table: Any, raw: Mapping[str, Any], tables: Mapping[str, type[Any]]) -> Iterator[str]:
    yield f"{INDENT}{title}: {table.TYPE}"
    known = keys(tables[table.TYPE])
    for name, value in raw.items():
        if name not in ("type", "enabled"):
            yield f"{INDENT * 2}{name} = {_value(value, is_secret=known[name].kind is SECRET)}"


def _value(value: Any, *, is_secret: bool) -> str:
    if is_secret and not (isinstance(value, str) and value.startswith("${") and value.endswith("}")):
        return MASK
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_value(each, is_secret=False)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(each, is_secret=False) for each in value) + "]"
    return " ".join(toml_text(value).split())


def _found(place: str, part: Any, pipeline: Pipeline) -> Iterator[str]:
    try:
        for line in part.inspect(pipeline.iggy):
            yield f"{INDENT * 2}{line}"
    except FileError as error:
        raise FileError(_placed(place, str(error))) from None
    except PipelineError as error:
        raise type(error)(_placed(place, str(error))) from None


def _placed(place: str, sentence: str) -> str:
    return sentence if sentence.startswith("[") else f"{place}: {sentence}"


def _bad_records(pipeline: Pipeline) -> str:
    if pipeline.dead_letter is not None:
        return f"go to {pipeline.dead_letter.name}"
    return "are skipped and counted" if pipeline.on_error == SKIP else "stop the pipeline"


def _transforms(shown: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    raw = shown.get("transforms", [])
    found = [{"type": name, **each} for name, each in raw.items()] if isinstance(raw, dict) else raw
    return [each for each in found if each.get("enabled", True)]


def _sinks(shown: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [shown["sink"]] if "sink" in shown else list(shown["sinks"])
