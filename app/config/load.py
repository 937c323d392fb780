"""Loads the configuration once: defaults, then the file, then the variables, validated and frozen.

The environment and the working directory are passed in; only the two files are read, and nothing is changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from whippet.app.config import dotenv, iggy_only, roster
from whippet.app.config.checks import problems
from whippet.app.config.error import ConfigError
from whippet.app.config.formats import MASK, Secret
from whippet.app.config.iggy_only import RULES
from whippet.app.config.keys import KEYS, LISTS, canonical, fields, walk
from whippet.app.config.schema import Config
from whippet.app.config.section import Section
from whippet.app.config.sources import (
    FOREIGN_NAMES,
    Setting,
    check_data_folder,
    find_file,
    from_file,
    from_variables,
    settle,
)
from whippet.app.config.support import without_effect

SHOWN_MAX = 80
"""Characters of an invalid value that an error repeats."""

AnySection = TypeVar("AnySection", bound=Section)


class Loaded(msgspec.Struct, frozen=True):
    config: Config
    origins: dict[str, str]
    """The origin of every key: "default", or the file or variable that it comes from."""
    warnings: tuple[str, ...]
    without_effect: tuple[str, ...]
    """A line for every key that was set and has no effect."""
    file: str | None
    """The configuration file, if there is one."""
    environment: dict[str, str]
    """The server's variables that are not keys (IGGY_ROOT_PASSWORD and so on), including those from `.env`."""


def load(environ: Mapping[str, str], cwd: str, replica_id: int | None = None) -> Loaded:
    """`replica_id` is the number of this node from the command line, if given."""
    real = {name: value for name, value in environ.items() if value.strip()}
    env_file = dotenv.find(real, cwd)
    from_env_file, warnings = dotenv.read(env_file) if env_file else ({}, [])
    environment = {name: value for name, value in from_env_file.items() if value.strip()} | real
    places = dict.fromkeys(from_env_file.keys() - real.keys(), f" in {env_file}")

    found = find_file(environment.get("IGGY_CONFIG_PATH", "").strip(), cwd)
    in_file, overruled = settle(from_file(*found)) if found else ({}, [])
    variables, unknown = from_variables(environment, places)
    check_data_folder(variables)
    in_variables, overruled_variables = settle(variables)
    given = in_file | in_variables
    settings = {name: setting for name, setting in given.items() if canonical(name) not in RULES}
    foreign = tuple(iggy_only.lines(_foreign(given)))
    warnings += overruled + unknown + overruled_variables

    _check_numbers(settings)
    config = _apply(Config(), "", {name: _parse(name, setting) for name, setting in settings.items()})
    origins = {key: setting.origin for key, setting in settings.items()}
    config, changed = roster.apply(config, replica_id)
    origins |= {key: origins.get(source, "default") for key, source in changed.items()}
    for keys, sentence in problems(config):
        blamed = next((settings[key].where for key in keys if key in settings), keys[0])
        raise ConfigError(f"{blamed}: {sentence}")
    jwt = config.http.jwt
    if jwt.encoding_secret and jwt.decoding_secret not in {"", jwt.encoding_secret}:
        warnings.append(
            "http.jwt.decoding_secret differs from http.jwt.encoding_secret: tokens of both are accepted, and the "
            "encoding secret signs new ones"
        )
    warnings += [
        f"http.jwt.trusted_issuers.{number} has no user_id, or 0, the root user: all its tokens are refused"
        for number, issuer in enumerate(jwt.trusted_issuers)
        if not issuer.user_id
    ]
    if "http.web_ui" in settings and config.http.web_ui and not config.websocket.enabled:
        warnings.append("http.web_ui: the dashboard reaches the server over WebSocket, and websocket.enabled is false")
    return Loaded(
        config=config,
        origins={key.name: origins.get(key.name, "default") for key in walk(config)},
        warnings=tuple(warnings),
        without_effect=(
            *(f"{settings[name].where}: {line}" for name in settings if (line := without_effect(name))),
            *foreign,
        ),
        file=found[0] if found else None,
        environment={name: Secret(value) for name, value in environment.items() if name in FOREIGN_NAMES},
    )


def _foreign(given: Mapping[str, Setting]) -> Iterator[iggy_only.Found]:
    for name, setting in given.items():
        if canonical(name) in RULES:
            yield iggy_only.Found(canonical(name), setting.value, setting.where, setting.origin)


def _parse(name: str, setting: Setting) -> Any:
    form = KEYS[canonical(name)].format
    try:
        return form.parse(setting.value)
    except ValueError as error:
        shown = MASK if form.secret else repr(setting.value)
        shown = shown if len(shown) <= SHOWN_MAX else f"{shown[:SHOWN_MAX]}..."
        raise ConfigError(f"{setting.where}: {shown}: {form.needed}") from error


def _check_numbers(settings: Mapping[str, Setting]) -> None:
    """Tables of a list are numbered without gaps; only variables can leave one."""
    for each in LISTS:
        numbers = {
            int(match[1]): setting
            for name, setting in settings.items()
            if (match := re.match(rf"{re.escape(each)}\.(\d+)\.", name))
        }
        for expected, (number, setting) in enumerate(sorted(numbers.items(), key=lambda pair: pair[0])):
            if number != expected:
                raise ConfigError(f"{setting.where}: {each}.{expected} is missing; number them from 0 without gaps")


def _apply(section: AnySection, prefix: str, values: Mapping[str, Any]) -> AnySection:
    """Returns the section with the values whose names begin with the prefix."""
    kinds = fields(type(section))
    changes = {name: values[f"{prefix}{name}"] for name in kinds.formats if f"{prefix}{name}" in values}
    for name in kinds.sections:
        changes[name] = _apply(getattr(section, name), f"{prefix}{name}.", values)
    for name, element in kinds.lists.items():
        start = f"{prefix}{name}."
        numbers = {int(key[len(start) :].partition(".")[0]) for key in values if key.startswith(start)}
        changes[name] = tuple(_apply(element(), f"{start}{number}.", values) for number in sorted(numbers))
    return msgspec.structs.replace(section, **changes)
