"""Keeps secrets out of all output: the strings that a file marks as secret, and the passwords inside them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark_whippet.settings import Secret

MASK = "******"
_IS_A_WORD = re.compile(r"[A-Za-z]?[a-z]{0,9}", re.ASCII)
"""Secrets that are words, such as the password `orders`, would mask innocent text, the name of a topic for example.
They are masked only where something announces a secret."""
_ANNOUNCED = r"(?P<before>(?:password|passwd|pwd|secret|token|credentials?)['\"]?\s*(?:[=:,]|is|of)?\s*['\"(]?)"
_WORD = re.compile(r"password\s*=\s*(?:'((?:[^'\\]|\\.)*)'|(\S+))", re.IGNORECASE)


def find_secrets(tables: Iterable[Any], variables: Iterable[str]) -> Iterator[str]:
    """Finds the secrets in tables of a file, and the variables inside them. The longest comes first, because one may
    contain another."""
    whole = set(_walk(list(tables)))
    parts = {value for value in variables if value and any(value in secret for secret in whole)}
    yield from sorted(whole | parts, key=len, reverse=True)


def mask(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        if _IS_A_WORD.fullmatch(secret):
            text = re.sub(rf"(?i:{_ANNOUNCED}){secret}(?!\w)", rf"\g<before>{MASK}", text)
            text = re.sub(rf"(?<=[:/]){secret}(?=@)", MASK, text)
        else:
            text = text.replace(secret, MASK)
    return text


def _walk(value: Any) -> Iterator[str]:
    if isinstance(value, Secret):
        yield value.text
        yield from _inside(value.text)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _walk(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _walk(each)


def _inside(text: str) -> Iterator[str]:
    try:
        password = urlsplit(text).password
    except ValueError:
        password = None
    if password:
        yield password
        yield unquote(password)
    for quoted, plain in _WORD.findall(text):
        yield quoted or plain
