"""What commands print, on terminals and elsewhere."""

from __future__ import annotations

import io
import json
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippet.app.cli.remote import activity, output, rows
from whippet.app.cli.remote.json_text import is_json, shown, tokens
from whippet.app.cli.remote.output import Format, Row

EVIL = "\x1b]0;title\x07\x9b2J\r\u202e\x7f[red]"
ROWS = sorted(
    {kind for module in (activity, output, rows) for kind in vars(module).values() if isinstance(kind, type)},
    key=lambda kind: kind.__name__,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def filled(kind: Any) -> Any:
    """Returns a value of a type in which each text would command the terminal."""
    if get_origin(kind) is list:
        return [filled(get_args(kind)[0])]
    if get_origin(kind) is dict:
        return {EVIL: filled(get_args(kind)[1])}
    if isinstance(kind, type) and issubclass(kind, Row):
        hints = get_type_hints(kind)
        return kind(**{name: filled(hints[name]) for name in kind.__struct_fields__})
    if kind in (int, float, bool):
        return kind(1)
    if str in (kind, *get_args(kind)):
        return EVIL
    return filled(next(part for part in get_args(kind) if part is not type(None)))


@pytest.mark.parametrize("colours", [False, True])
@pytest.mark.parametrize("form", list(Format))
@pytest.mark.parametrize("kind", [each for each in ROWS if issubclass(each, Row) and each.__struct_fields__])
def test_nothing_that_is_printed_commands_the_terminal(
    kind: type[Row], form: Format, colours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not colours:
        monkeypatch.setenv("NO_COLOR", "1")
    for result in (filled(kind), [filled(kind)] * 2):
        terminal = Tty()
        output.show(result, form, file=terminal)
        said = terminal.getvalue()
        for harmless in ("\x1b[0m", *(f"\x1b[{code}m" for code in ("1", "1;34", "32", "35", "36"))):
            said = said.replace(harmless, "") if colours else said
        assert not {c for c in said if not c.isprintable()} - {"\n"}


@given(JSON)
def test_json_for_a_terminal_is_the_same_json(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=1)
    for keeps_lines in (True, False):
        plain = shown(text, colours=False, keeps_lines=keeps_lines)
        assert json.loads(plain) == value
        assert keeps_lines or plain.isprintable()
        assert "".join(part for _, part in tokens(text, keeps_lines=keeps_lines)) == plain


def test_only_objects_and_lists_are_json() -> None:
    assert [is_json(text) for text in ('{"a":1}', "[]", "1", '"x"', "{a}", "", "[" * 100_000)] == [True, True] + [
        False
    ] * 5
