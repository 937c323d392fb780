"""The `.env` file: variables that need not be exported. Those of the real environment take precedence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from whippet.app.config.error import ConfigError

_LINE = re.compile(
    r"""\s*(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_.]*)\s*=\s*
        (?:'(?P<literal>[^']*)'\s*(?:\#.*)?
          |"(?P<quoted>(?:[^"\\]|\\.)*)"\s*(?:\#.*)?
          |(?P<plain>(?!['"]).*?)(?:\s+\#.*|^\#.*)?\s*)""",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def find(environ: Mapping[str, str], cwd: str) -> Path | None:
    """Returns the file that IGGY_ENV_PATH names, else the nearest `.env` in the working directory or above it."""
    if named := environ.get("IGGY_ENV_PATH", "").strip():
        path = Path(cwd, named)
        if not path.is_file():
            raise ConfigError(f"IGGY_ENV_PATH: {named!r}: no such file")
        return path
    return next((path for folder in (Path(cwd), *Path(cwd).parents) if (path := folder / ".env").is_file()), None)


def read(path: Path) -> tuple[dict[str, str], list[str]]:
    """Returns the variables, and a warning for each line that is not one: such a file may also belong to other
    programs."""
    variables, warnings = {}, []
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            warnings.append(f"{path}: line {number}: not NAME=value; ignored")
        elif match["quoted"] is not None:
            variables[match["name"]] = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), match["quoted"])
        else:
            variables[match["name"]] = match["literal"] if match["literal"] is not None else match["plain"]
    return variables, warnings
