"""The configuration as text: what is in effect and where it came from, as TOML or JSON, and the sample file.

All of it is made from the list of keys, and secrets leave only as a mask.
"""

from __future__ import annotations

import itertools
import json
import textwrap
from collections.abc import Iterable, Iterator

from whippet.app.config.keys import KEYS, LISTS, Key, section_of, walk
from whippet.app.config.load import Loaded

COMMENT_WIDTH = 100


def literal(value: object) -> str:
    """A TOML literal. JSON's are the same for what is needed here, but for DEL, which TOML wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def tables(keys: Iterable[Key]) -> Iterator[tuple[str, list[Key]]]:
    """The keys by the table that they are written in."""
    for table, group in itertools.groupby(keys, key=lambda key: key.table):
        yield table, list(group)


def heading(table: str) -> str:
    """`[http]`, or `[[cluster.node.others]]` for an element of a list, whatever its number."""
    start, _, last = table.rpartition(".")
    if table.endswith("[]"):
        return f"[[{table.removesuffix('[]')}]]"
    return f"[[{start}]]" if last.isdigit() and start in LISTS else f"[{table}]"


def toml(loaded: Loaded) -> str:
    """What is in effect, a line for each key with its origin behind it; itself a valid file, but for secrets."""
    lines = [f"# file: {loaded.file or 'none'}"]
    for table, keys in tables(walk(loaded.config)):
        values = [literal(key.format.write(key.value)) for key in keys]
        width = max(len(key.name_in_table) + len(value) for key, value in zip(keys, values, strict=True)) + 3
        lines += ["", heading(table)]
        lines += [
            # Programs look for `address = ` here, so the names are not padded.
            f"{f'{key.name_in_table} = {value}':<{width}}  # {loaded.origins[key.name]}"
            for key, value in zip(keys, values, strict=True)
        ]
    return "\n".join(lines) + "\n"


def as_json(loaded: Loaded) -> str:
    keys = {
        key.name: {"value": key.format.write(key.value), "origin": loaded.origins[key.name]}
        for key in walk(loaded.config)
    }
    return json.dumps({"file": loaded.file, "warnings": loaded.warnings, "keys": keys}, indent=2) + "\n"


def sample() -> str:
    """A file with every key at its default, and its sentence above it."""
    lines = [
        "# Whippet: every key with its default. A file needs only the keys that it changes.",
        "# Each can also be given as a variable: IGGY_ and the name in capitals, with _ for the dots,",
        "# such as IGGY_HTTP_ADDRESS. Made by `whippet config --toml`; all about it: docs/configuration.md.",
    ]
    for table, keys in tables(KEYS.values()):
        # The elements of a list have no default, so theirs are shown without being in effect.
        off = "# " if table.endswith("[]") else ""
        lines += ["", *_comment(section_of(table).__doc__ or ""), f"{off}{heading(table)}"]
        for key in keys:
            lines += _comment(key.description)
            lines.append(f"{off}{key.name_in_table} = {literal(key.format.write(key.value))}")
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), COMMENT_WIDTH, initial_indent="# ", subsequent_indent="# ")
