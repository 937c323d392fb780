"""Values of options as texts, for assertions."""

from __future__ import annotations

from whippet.app.model.options import Option, decode


def to_text(option: Option) -> str:
    value = decode(option)
    return str(value).lower() if isinstance(value, bool) else str(value)
