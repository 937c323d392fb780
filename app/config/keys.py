"""Every key by its dotted name, found by walking the structs of the schema; no other module lists them.

The reader, the printer and the documentation all use this list, so a field added to a struct is at once a key, a
variable and a line of the documentation. A key in a list of tables has `[]` in its name, in place of the number of the
table.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
import textwrap
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from whippet.app.config.formats import Format
from whippet.app.config.schema import Config
from whippet.app.config.section import Section

TABLES_MAX = 10
"""Variables can set the tables 0 to 9 of a list."""


class Key(msgspec.Struct, frozen=True):
    name: str
    format: Format
    value: Any
    """The default, or in a walk over a configuration its value."""
    section: type[Section]

    @property
    def sentence(self) -> str:
        return sentences(self.section)[self.name.rpartition(".")[2]]

    @property
    def description(self) -> str:
        """The sentence, followed by the valid values, as far as the kind does not imply them."""
        valid = self.format.rule or ", ".join(self.format.words)
        return f"{self.sentence} Valid: {valid}." if valid else self.sentence

    @property
    def table(self) -> str:
        """Name of the TOML table that it is written in: its section, or its element of a list of tables."""
        element = re.match(r".*(\[\]|\.\d+)(?=\.)", self.name)
        return element[0] if element else self.name.rpartition(".")[0]

    @property
    def name_in_table(self) -> str:
        return self.name.removeprefix(f"{self.table}.")


class Fields(msgspec.Struct, frozen=True):
    """The fields of a section by kind."""

    formats: dict[str, Format]
    sections: dict[str, type[Section]]
    lists: dict[str, type[Section]]


@functools.cache
def fields(section: type[Section]) -> Fields:
    found = Fields({}, {}, {})
    for name, hint in typing.get_type_hints(section, include_extras=True).items():
        if isinstance(hint, type) and issubclass(hint, Section):
            found.sections[name] = hint
        elif typing.get_origin(hint) is tuple:
            found.lists[name] = typing.get_args(hint)[0]
        else:
            found.formats[name] = next(note for note in hint.__metadata__ if isinstance(note, Format))
    return found


@functools.cache
def sentences(section: type[Section]) -> dict[str, str]:
    """Returns the docstrings below the fields of a section, which Python itself does not keep."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(section))).body[0]
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def walk(section: Section, prefix: str = "", *, prototypes: bool = False) -> Iterator[Key]:
    """Yields the keys of a section, its own first; for a list each element, or with `prototypes` one named `[]`."""
    kinds = fields(type(section))
    for name, form in kinds.formats.items():
        yield Key(f"{prefix}{name}", form, getattr(section, name), type(section))
    for name in kinds.sections:
        yield from walk(getattr(section, name), f"{prefix}{name}.", prototypes=prototypes)
    for name, element in kinds.lists.items():
        if prototypes:
            yield from walk(element(), f"{prefix}{name}[].", prototypes=True)
        else:
            for number, each in enumerate(getattr(section, name)):
                yield from walk(each, f"{prefix}{name}.{number}.")


KEYS = {key.name: key for key in walk(Config(), prototypes=True)}
LISTS = {key.table.removesuffix("[]") for key in KEYS.values() if key.table.endswith("[]")}


def section_of(table: str) -> type[Section]:
    """Returns the struct of a table."""
    section: type[Section] = Config
    for name in table.split("."):
        kinds = fields(section)
        section = kinds.sections.get(name) or kinds.lists[name.removesuffix("[]")]
    return section


def canonical(name: str) -> str:
    """Returns the name with `[]` in place of the number of a table, as in KEYS."""
    return re.sub(r"\.\d+(?=\.)", "[]", name)


def variable(name: str) -> str:
    """Returns the environment variable of a dotted name; for a key in a list, that of the first table."""
    return "IGGY_" + name.replace("[]", ".0").replace(".", "_").upper()


def numbered(name: str) -> list[str]:
    """Returns a name for each table that variables can set, or the name itself if it is in no list."""
    parts = name.split("[]")
    return [
        "".join(itertools.chain.from_iterable(itertools.zip_longest(parts, numbers, fillvalue="")))
        for numbers in itertools.product([f".{number}" for number in range(TABLES_MAX)], repeat=len(parts) - 1)
    ]
