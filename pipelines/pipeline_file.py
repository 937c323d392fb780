"""Reads the pipeline file: decodes TOML to one frozen value, or raises an error that says what is wrong and what
would be right."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whippet.pipelines import keys, secrets
from whippet.pipelines.bad_records import SKIP, STOP, DeadLetter
from whippet.pipelines.errors import FileError
from whippet.pipelines.gateway_settings import GatewaySettings
from whippet.pipelines.keys import IDENTIFIER, STRING, InvalidValue, Substituted, choose_type, decode, one_of, toml_text
from whippet.pipelines.sinks import SINKS, Sink
from whippet.pipelines.sources import SOURCES, Source
from whippet.pipelines.transforms import TRANSFORMS, Transform

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
"""How the address of object storage begins; the folder with this name would be a local one."""
_VARIABLE = re.compile(r"\$(\$)?\{([^}]*)\}")
APPEND, UPDATE = "append", "update"


@dataclass(frozen=True, kw_only=True)
class State:
    """Where a pipeline stores its progress. Two processes never share one state."""

    path: str = keys.key(STRING, "a folder, with a subfolder for each pipeline, named after its key", "local_state")

    def __post_init__(self) -> None:
        if _URL.match(self.path):
            raise InvalidValue(
                "key 'path': a folder is needed, on a disk that lasts: the state cannot be in object storage, because "
                "its lock and its files need a file system"
            )


def _spark_settings(raw: Any) -> dict[str, str]:
    """Flattens spark.* to strings: {"driver": {"memory": "2g"}} is spark.driver.memory."""
    if not isinstance(raw, dict):
        raise InvalidValue
    return dict(_flatten("spark", raw))


def _flatten(prefix: str, raw: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    for name, value in raw.items():
        whole = name if name.startswith("spark.") else f"{prefix}.{name}"
        found += (
            _flatten(whole, value)
            if isinstance(value, dict)
            else [(whole, str(value) if isinstance(value, str) else toml_text(value))]
        )
    return found


@dataclass(frozen=True, kw_only=True)
class TopLevel:
    """The keys at the top of the file, before the first table."""

    key: str = keys.key(IDENTIFIER, "name of the pipeline: in its state, in ids of messages and in dead letters")
    name: str | None = keys.key(STRING, "a longer name, for display", None)
    on_error: str = keys.key(
        one_of(STOP, SKIP),
        "what happens to bad records without [dead_letter]: `stop` the pipeline, or `skip` and count them",
        STOP,
    )
    output_mode: str = keys.key(
        one_of(APPEND, UPDATE),
        "with windows: `append` emits a window once, when it is complete; `update` emits it each time it changes",
        APPEND,
    )


@dataclass(frozen=True)
class Pipeline:
    """A pipeline file."""

    path: str
    key: str
    name: str
    on_error: str
    output_mode: str
    iggy: GatewaySettings
    state: Path
    """The folder of this pipeline."""
    spark: Mapping[str, str]
    source: Source
    transforms: tuple[Transform, ...]
    sinks: tuple[Sink, ...]
    dead_letter: DeadLetter | None
    shown: Mapping[str, Any]
    """The file as it was written, without the values of variables."""
    secrets: tuple[str, ...] = ()
    """What must not be shown."""

    @property
    def placed_sinks(self) -> list[tuple[str, Sink]]:
        """The sinks, each with its place in the file, for errors and dead letters."""
        if "sink" in self.shown:
            return [(f"[sink] ({self.sinks[0].TYPE})", self.sinks[0])]
        return [(f"[[sinks]] {number} ({sink.TYPE})", sink) for number, sink in enumerate(self.sinks, start=1)]

    @property
    def why_unparsable(self) -> str:
        return str(getattr(self.source, "why_unparsable", "it cannot be parsed"))


def load(path: str, environ: Mapping[str, str] = os.environ) -> Pipeline:
    try:
        octets = Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    try:
        return read(octets.decode(), path, environ)
    except UnicodeDecodeError:
        raise FileError(f"{path}: it is not UTF-8") from None
    except FileError as error:
        raise FileError(f"{path}: {error}") from None


def read(text: str, path: str = "", environ: Mapping[str, str] = os.environ) -> Pipeline:
    try:
        shown = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FileError(f"it is not TOML: {error}") from None
    variables = _Variables(environ)
    raw = variables.fill(shown)
    for name in raw:
        if name not in TABLES and name not in TOP:
            raise FileError(_unknown(name))
    top = decode(TopLevel, {name: value for name, value in raw.items() if name in TOP}, "the file")
    found = _assemble(raw, shown, top, path)
    tables = [found.iggy.access, found.source, *found.sinks]
    return replace(found, secrets=tuple(secrets.find_secrets(tables, variables.used)))


def _assemble(raw: dict[str, Any], shown: Mapping[str, Any], top: TopLevel, path: str) -> Pipeline:
    iggy = decode(GatewaySettings, raw.get("iggy", {}), "[iggy]")
    state = decode(State, raw.get("state", {}), "[state]")
    source = _part(SOURCES, _required(raw, "source"), "[source]")
    transforms = tuple(each for each in _transforms(raw.get("transforms", [])) if each.enabled)
    sinks = tuple(_part(SINKS, each, place) for place, each in _sinks(raw))
    dead_letter = decode(DeadLetter, raw["dead_letter"], "[dead_letter]") if "dead_letter" in raw else None
    if dead_letter is not None and "on_error" in raw:
        raise FileError("key 'on_error' has no effect with [dead_letter]: bad records go there; leave out one of them")
    try:
        spark = _spark_settings(raw.get("spark", {}))
    except ValueError:
        raise FileError('[spark]: a table is needed, with settings such as driver.memory = "2g"') from None
    return Pipeline(
        path=path,
        key=top.key,
        name=top.name or top.key,
        on_error=top.on_error,
        output_mode=top.output_mode,
        iggy=iggy,
        state=Path(state.path) / top.key,
        spark=spark,
        source=source,
        transforms=transforms,
        sinks=sinks,
        dead_letter=dead_letter,
        shown=shown,
    )


def _required(raw: Mapping[str, Any], name: str) -> Any:
    if name not in raw:
        raise FileError(f"table [{name}] is required")
    return raw[name]


def _part(tables: Mapping[str, type[Any]], raw: Any, place: str) -> Any:
    table = choose_type(tables, raw, place)
    named = f"{place} ({raw['type']})" if place != "[source]" else place
    return decode(table, {name: value for name, value in raw.items() if name != "type"}, named)


def _transforms(raw: Any) -> list[Transform]:
    """Accepts a list of tables or, like the connectors, one table per type; both keep the order of the file."""
    if isinstance(raw, dict):
        tables = [({"type": name, **each} if isinstance(each, dict) else each) for name, each in raw.items()]
    elif isinstance(raw, list):
        tables = raw
    else:
        raise FileError("[[transforms]]: a list of tables is needed")
    return [_part(TRANSFORMS, each, f"[[transforms]] {number}") for number, each in enumerate(tables, start=1)]


def _sinks(raw: Mapping[str, Any]) -> list[tuple[str, Any]]:
    if "sink" in raw and "sinks" in raw:
        raise FileError("tables [sink] and [[sinks]]: use only one of them; several sinks are [[sinks]]")
    if "sink" in raw:
        return [("[sink]", raw["sink"])]
    found = _required(raw, "sinks") if "sinks" in raw else None
    if not isinstance(found, list) or not found:
        raise FileError("table [sink] is required, or several [[sinks]]")
    return [(f"[[sinks]] {number}", each) for number, each in enumerate(found, start=1)]


TABLES = ("iggy", "state", "spark", "source", "transforms", "sink", "sinks", "dead_letter")
TOP = ("key", "name", "on_error", "output_mode")


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, (*TABLES, *TOP), n=1, cutoff=0.6)
    hint = f"did you mean '{near[0]}'?" if near else f"the keys and tables are: {', '.join((*TOP, *TABLES))}"
    return f"'{name}' is unknown; {hint}"


class _Variables:
    """Replaces ${NAME} by the value of the variable; $${ stands for a literal ${."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.used: set[str] = set()

    def fill(self, value: Any, place: str = "") -> Any:
        if isinstance(value, dict):
            return {name: self.fill(each, f"{place}.{name}" if place else name) for name, each in value.items()}
        if isinstance(value, list):
            return [self.fill(each, place) for each in value]
        if not isinstance(value, str):
            return value
        text = _VARIABLE.sub(lambda match: self._value(match, place), value)
        return value if text == value else Substituted(text, value)

    def _value(self, match: re.Match[str], place: str) -> str:
        if match[1]:
            return match[0][1:]
        if match[2] not in self._environ:
            raise FileError(f"key '{place}': the environment variable {match[2]} of ${{{match[2]}}} is not set")
        self.used.add(self._environ[match[2]])
        return self._environ[match[2]]
