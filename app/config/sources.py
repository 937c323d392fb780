"""Reads settings from the TOML file and the variables, and returns both under dotted names.

Spelling is resolved here: unknown names are refused with the nearest known one, and older spellings are mapped to
today's key. Values are left as written; `whippet.app.config.load` parses them.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from whippet.app.config.aliases import ACCEPTED, ALIASES, TABLES, VARIABLES
from whippet.app.config.error import ConfigError
from whippet.app.config.iggy_only import RULES
from whippet.app.config.keys import KEYS, LISTS, canonical

PREFIX = "IGGY_"
FOREIGN_NAMES = frozenset(
    {
        # Read by the server, but not keys:
        "IGGY_CONFIG_PATH",
        "IGGY_ENV_PATH",
        "IGGY_DISPLAY_CONFIG",
        "IGGY_CI_BUILD",
        "IGGY_SHARD_RUNTIME_CAPACITY",
        "IGGY_ROOT_USERNAME",
        "IGGY_ROOT_PASSWORD",
        # Read by clients and the command line:
        "IGGY_HOME",
        "IGGY_USERNAME",
        "IGGY_PASSWORD",
        "IGGY_TOKEN",
        "IGGY_SERVER_ADDRESS",
        "IGGY_TCP_SERVER_ADDRESS",
        "IGGY_HTTP_API_URL",
        "IGGY_QUIC_SERVER_ADDRESS",
        "IGGY_WEBSOCKET_SERVER_ADDRESS",
    }
)
FOREIGN_PREFIXES = (
    *("IGGY_CONNECTORS_", "IGGY_CONNECTION_STRING", "IGGY_TEST_", "IGGY_BENCH_"),
    # Those of Iggy's MCP server that are no keys here.
    *("IGGY_MCP_CONFIG_PATH", "IGGY_MCP_TRANSPORT", "IGGY_MCP_HTTP_", "IGGY_MCP_IGGY_", "IGGY_MCP_TELEMETRY_"),
    "IGGY_MCP_PERMISSIONS_READ",
)
"""Variables of clients, connectors and tools, which the server ignores."""

TYPO = 0.85
"""An unknown variable this similar to a known one is taken for a typo and stops the start; others may belong to another
program."""


class Setting(msgspec.Struct, frozen=True):
    name: str
    """The dotted name as it was spelled."""
    value: object
    where: str
    """How an error about it begins: the file and the key, or the variable."""
    origin: str
    """The file, or the variable."""


def find_file(named: str, cwd: str) -> tuple[str, Path] | None:
    """Returns the name of the configuration file for messages, and its path: IGGY_CONFIG_PATH, else server.toml, else
    config.toml."""
    if not named:
        here = ((name, Path(cwd, name)) for name in ("server.toml", "config.toml"))
        return next(((name, path) for name, path in here if path.is_file()), None)
    for folder in (Path(cwd), *Path(cwd).parents):
        path = folder / named
        if path.is_file():
            return (named if folder == Path(cwd) else str(path)), path
    raise ConfigError(f"IGGY_CONFIG_PATH: {named!r}: no such file in {cwd} or above it")


def from_file(label: str, path: Path) -> Iterator[Setting]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{label}: {_place(str(error), text)}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{label}: byte {error.start} is not UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{label}: cannot be read: {error.strerror}") from error
    for name, value in _flatten(document, "", label):
        yield Setting(name, value, f"{label}: {name}", label)


def _place(message: str, text: str) -> str:
    """Puts the line and column first, which tomllib puts last."""
    match = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", message, re.DOTALL)
    if match is None:
        return " ".join(message.split())
    lines = text.split("\n")
    line, column = (match[2], match[3]) if match[2] else (len(lines), len(lines[-1]) + 1)
    return f"line {line}, column {column}: {' '.join(match[1].split())}"


def _flatten(table: dict[str, Any], prefix: str, label: str) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        name = f"{prefix}{key}"
        known = canonical(name)
        if known in KEYS or known in ALIASES or known in RULES:
            yield name, value
        elif known in LISTS:
            if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
                raise ConfigError(f"{label}: {name}: must be tables headed [[{name}]]")
            for number, each in enumerate(value):
                yield from _flatten(each, f"{name}.{number}.", label)
        elif known not in TABLES:
            unknown = "unknown section" if isinstance(value, dict) else "unknown key"
            raise ConfigError(
                f"{label}: {' '.join(name.split())}: {unknown}{_did_you_mean(known, (*ACCEPTED, *TABLES))}"
            )
        elif isinstance(value, dict):
            yield from _flatten(value, f"{name}.", label)
        else:
            raise ConfigError(f"{label}: {name}: must be a table headed [{name}]")


def _did_you_mean(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else "; `whippet config --docs` lists all keys"


def from_variables(environment: Mapping[str, str], places: Mapping[str, str]) -> tuple[list[Setting], list[str]]:
    """Returns the settings in IGGY_ variables, and warnings. `places` names the file of each variable that comes from
    one."""
    settings, warnings = [], []
    for variable, text in environment.items():
        label = variable + places.get(variable, "")
        if variable in VARIABLES:
            name = VARIABLES[variable]
            value = text if canonical(name) in RULES else _form(name).from_text(text)
            settings.append(Setting(name, value, label, label))
        elif (
            variable.startswith(PREFIX) and variable not in FOREIGN_NAMES and not variable.startswith(FOREIGN_PREFIXES)
        ):
            if near := difflib.get_close_matches(variable, (*VARIABLES, *FOREIGN_NAMES), n=1, cutoff=TYPO):
                raise ConfigError(f"{label}: unknown variable; did you mean {near[0]}?")
            warnings.append(f"{label}: unknown variable; ignored")
    if level := environment.get("RUST_LOG"):
        # Programs in Rust share this variable, so its value may not be meant for this server.
        try:
            _form("system.logging.level").parse(level)
        except ValueError:
            warnings.append(f"RUST_LOG: {level!r}: not a valid system.logging.level; ignored")
        else:
            settings = [each for each in settings if each.name != "system.logging.level"]
            label = "RUST_LOG" + places.get("RUST_LOG", "")
            settings.append(Setting("system.logging.level", level, label, label))
    return settings, warnings


def check_data_folder(settings: Iterable[Setting]) -> None:
    """Two variables can name the data folder; they must agree."""
    named = [setting for setting in settings if setting.name == "system.path"]
    if len({setting.value for setting in named}) > 1:
        first, second = named
        raise ConfigError(
            f"{first.where} ({first.value}) and {second.where} ({second.value}) name different data folders; "
            "set one of them"
        )


def _form(name: str) -> Any:
    known = canonical(name)
    return KEYS[ALIASES.get(known, known)].format


def settle(settings: Iterable[Setting]) -> tuple[dict[str, Setting], list[str]]:
    """Returns the settings of one source by today's key, and a warning for each that another one overrides."""
    order = {name: rank for rank, name in enumerate(ALIASES)}
    chosen: dict[str, Setting] = {}
    warnings = []
    for setting in sorted(settings, key=lambda each: order.get(each.name, -1)):
        winner = chosen.setdefault(ALIASES.get(setting.name, setting.name), setting)
        if winner is not setting:
            warnings.append(f"{setting.where}: ignored, because {winner.where} is set")
    return chosen, warnings
