"""Mutants: which mistakes are made in a module, where, and what is left alone."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from tests.mutants import sample
from tests.mutants.operators import mutants_of


def changes(source: str) -> list[str]:
    return [mutant.change for mutant in mutants_of(source, "module.py")]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", ["a < b -> a <= b", "a < b -> a >= b"]),
        ("a >= b", ["a >= b -> a < b", "a >= b -> a > b"]),
        ("a == b", ["a == b -> a != b"]),
        ("a is not None", ["a is not None -> a is None"]),
        ("a not in b", ["a not in b -> a in b"]),
        ("a < b <= c", [f"a < b <= c -> {new}" for new in ("a < b < c", "a < b > c", "a <= b <= c", "a >= b <= c")]),
        ("a and b", ["a and b -> a", "a and b -> b"]),
        ("a or b or c", ["a or b or c -> a or b", "a or b or c -> a or c", "a or b or c -> b or c"]),
        (
            "a or (b if c else d)",
            ["a or (b if c else d) -> a", "a or (b if c else d) -> (b if c else d)", "c -> not c"],
        ),
        ("a + b", ["a + b -> (a - b)"]),
        ("a * (b + c)", ["a * (b + c) -> (a // (b + c))", "b + c -> (b - c)"]),
        ("a << b & c", ["a << b -> (a >> b)", "a << b & c -> (a << b | c)"]),
        ("a / b", []),
        ("a += b", ["a += b -> a -= b"]),
        ("not a", ["not a -> a"]),
        ("a = 9", ["9 -> 10"]),
        ("a = True", ["True -> False"]),
        ("a = b'', 'text', 1.5, None", []),
        ("a()", ["a() -> pass"]),
        ("async def f():\n    await a()", ["await a() -> pass"]),
        ("def f():\n    return a", ["return a -> return None"]),
        ("def f():\n    return None", []),
        ("def f():\n    return True", ["True -> False"]),
        ("def f():\n    return", []),
        ("if a:\n    pass", ["a -> not a"]),
        ("while a():\n    pass", ["a() -> not a()"]),
        ("b if a.c else d", ["a.c -> not a.c"]),
        ("if (a := b):\n    pass", ["a := b -> not (a := b)"]),
    ],
)
def test_mutants_are_small_mistakes(source: str, expected: list[str]) -> None:
    assert sorted(changes(source)) == sorted(expected)


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring with 1 < 2."""',
        "def f(a: Annotated[int, 1 < 2]) -> Literal[3]:\n    '''Text.'''",
        "a: Literal[1]",
        "@decorated(frozen=True, size=3)\ndef f():\n    pass",
        "class A(B, frozen=True, order=a < b):\n    pass",
        "__slots__ = ('a',) + ('b',)",
        "__all__ = a + b",
        "if TYPE_CHECKING:\n    a = 1",
        "assert a < b, f(1)",
        "_log.warning('%d', a + 1)",
        "log.info('text', not a)",
        "f'{a + 1}'",
        "a = cast('int', b + 1)",
        "a = zip(b, c, strict=True)",
        "a = format(b, indent=2)",
    ],
)
def test_what_only_describes_the_code_is_not_mutated(source: str) -> None:
    assert changes(source) == []


SOURCE = '''"""Ünïcode before it."""


class Log:
    size = 1

    @property
    def is_full(self) -> bool:
        return (
            self.é + self.size
            > 7
        )


def last():
    return [each for each in "äöü" if not each.isascii()]
'''


def test_only_the_text_of_the_mutant_changes() -> None:
    for mutant in mutants_of(SOURCE, "log.py"):
        changed = mutant.applied_to(SOURCE)
        ast.parse(changed)
        at = changed.encode().index(mutant.mutant.encode(), mutant.start)
        assert changed.encode()[:at] + mutant.original.encode() + SOURCE.encode()[mutant.end :] == SOURCE.encode()
        assert mutant.original.splitlines()[0] in SOURCE.splitlines()[mutant.line - 1]


def test_a_mutant_reports_its_place() -> None:
    found = {mutant.change: mutant for mutant in mutants_of(SOURCE, "storage/log.py")}
    constant, sum_ = found["1 -> 2"], found["self.é + self.size -> (self.é - self.size)"]
    assert (constant.function, constant.function_line, constant.source_line) == ("", 0, "size = 1")
    assert (sum_.function, sum_.function_line, sum_.source_line) == ("Log.is_full", 7, "self.é + self.size")
    assert str(sum_) == "storage/log.py:10  self.é + self.size -> (self.é - self.size)"
    condition = found["not each.isascii() -> each.isascii()"]
    assert (condition.function, condition.function_line) == ("last", 15)


def test_the_same_change_in_equal_lines_is_numbered() -> None:
    keys = [mutant.key for mutant in mutants_of("a = 1, 2, 1\nb = 1\na = 1, 2, 1", "log.py")]
    line = "a = 1, 2, 1"
    assert [key for key in keys if key[2] == "1 -> 2"] == [
        *[("log.py", line, "1 -> 2", nth) for nth in (1, 2)],
        ("log.py", "b = 1", "1 -> 2", 1),
        *[("log.py", line, "1 -> 2", nth) for nth in (3, 4)],
    ]


# ---------------------------------------------------------------------------------------------------------- the sample


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    package = Path("app/model")
    assert sample.sample(package, 20, 1) == sample.sample(package, 20, 1)
    assert sample.sample(package, 20, 1) != sample.sample(package, 20, 2)
    assert {mutant.path for mutant in sample.sample(Path("storage/index.py"), 10, 1)} == {"storage/index.py"}
    assert len(sample.sample(Path("storage/waiting.py"), 10**6, 1)) == len(sample.found(Path("storage/waiting.py")))


def test_every_mutant_listed_as_equivalent_exists() -> None:
    """An entry must be removed when its line is."""
    made = functools.cache(lambda path: mutants_of((sample.ROOT / path).read_text(), path))
    for entry in sample.equivalent():
        assert entry.keys() - {"nth"} == {"path", "line", "change", "reason"}
        assert any(sample.names(entry, mutant) for mutant in made(entry["path"])), entry


def test_a_mutant_gets_the_tests_of_its_own_file_first_and_then_the_quickest() -> None:
    (in_function,) = (mutant for mutant in mutants_of(SOURCE, "log.py") if mutant.change == "7 -> 8")
    (outside,) = (mutant for mutant in mutants_of(SOURCE, "log.py") if mutant.change == "1 -> 2")
    slow = sample.Test("slow", 1.5, frozenset({"log.py:7", "other.py:1"}))
    quick = sample.Test("quick", 0.1, frozenset({"log.py:7", "log.py:15"}))
    elsewhere = sample.Test("elsewhere", 0.2, frozenset({"log.py:15"}))
    other = sample.Test("other", 0.0, frozenset({"other.py:7"}))
    (deeper,) = mutants_of("size = 1", "storage/log.py")
    own = sample.Test("tests/storage/test_log.py::test_the_size", 0.3, frozenset())
    assert sample.tests_for(deeper, [own, other]) == [own]
    entering = [sample.Test(test.id, test.seconds, frozenset({"storage/log.py:0"})) for test in (quick, own)]
    assert sample.tests_for(deeper, [other, *entering]) == entering[::-1]
    assert sample.tests_for(in_function, [slow, quick, elsewhere, other]) == [quick, slow]
    assert sample.tests_for(in_function, [elsewhere, other]) == [elsewhere]
    assert sample.tests_for(outside, [slow, quick, elsewhere, other]) == [quick, elsewhere, slow]
    assert sample.tests_for(outside, [other]) == [other]
    many = [sample.Test(str(i), 1.0, frozenset({"log.py:7"})) for i in range(100)]
    assert len(sample.tests_for(in_function, many)) == sample.TESTS_S
