"""The small mistakes that `make mutants` makes in a module, one at a time, to see whether a test fails.

A mutant replaces one expression or statement of the source; everything else stays the same, line by line. What only
describes the code or is not meant to be tested is not changed: type annotations, docstrings, decorators, the options of
a class, `__slots__`, `__all__`, log calls, assertions (`zip(..., strict=True)` is one), the indentation of documents
(`indent=2`), and code that only a type checker runs.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
"""Each comparison is made strict or lax where possible, and inverted."""

ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}

LOGGERS = re.compile(r"_?(log|logger)\.\w+\(")
NOT_TESTED = re.compile(r"__slots__|__all__|TYPE_CHECKING")


@dataclass(frozen=True, slots=True)
class Mutant:
    path: str
    line: int
    function: str
    """The name of the function that contains it, with its class: `Log.append`. Empty outside of functions."""
    function_line: int
    """The line on which that function starts, including its decorators; 0 outside of functions."""
    source_line: str
    """The text of its line, stripped."""
    original: str
    mutant: str
    start: int
    end: int
    nth: int = 1
    """Its number among the mutants that make the same change in lines with the same text."""

    def applied_to(self, source: str) -> str:
        text = source.encode()
        return (text[: self.start] + self.mutant.encode() + text[self.end :]).decode()

    @property
    def change(self) -> str:
        return re.sub(r"\s+", " ", f"{self.original} -> {self.mutant}")

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Identifies the mutant in lists that survive changes elsewhere in the module."""
        return self.path, self.source_line, self.change, self.nth

    def __str__(self) -> str:
        return f"{self.path}:{self.line}  {self.change}"


def mutants_of(source: str, path: str) -> list[Mutant]:
    """Returns all mutants of a module, in the order of its lines."""
    found = sorted(_Finder(source, path).find(), key=lambda mutant: (mutant.start, mutant.end, mutant.mutant))
    seen: Counter[tuple[str, str]] = Counter()
    for i, mutant in enumerate(found):
        seen[mutant.source_line, mutant.change] += 1
        found[i] = dataclasses.replace(mutant, nth=seen[mutant.source_line, mutant.change])
    return found


class _Finder:
    def __init__(self, source: str, path: str) -> None:
        self._source = source.encode()
        self._path = path
        self._line_starts = [0]
        for line in self._source.splitlines(keepends=True):
            self._line_starts.append(self._line_starts[-1] + len(line))

    def find(self) -> Iterator[Mutant]:
        yield from self._below(ast.parse(self._source), "", 0)

    def _below(self, node: ast.AST, function: str, function_line: int) -> Iterator[Mutant]:
        if not _is_tested(node):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = f"{function}.{node.name}".lstrip(".")
            function_line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        elif isinstance(node, ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        for replaced, text in _replacements(node):
            yield self._mutant(replaced, text, function if function_line else "", function_line)
        for child in _children(node):
            yield from self._below(child, function, function_line)

    def _mutant(self, node: ast.AST, replacement: str, function: str, function_line: int) -> Mutant:
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._line_starts[node.lineno - 1] + node.col_offset
        end = self._line_starts[node.end_lineno - 1] + node.end_col_offset
        original = self._source[start:end].decode()
        line = self._source[self._line_starts[node.lineno - 1] : self._line_starts[node.lineno]].decode().strip()
        return Mutant(self._path, node.lineno, function, function_line, line, original, replacement, start, end)


def _is_tested(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert | ast.JoinedStr):
        return False
    if isinstance(node, ast.If):
        return not NOT_TESTED.search(ast.unparse(node.test))
    if isinstance(node, ast.Assign):
        return not NOT_TESTED.search(ast.unparse(node.targets[0]))
    return not (isinstance(node, ast.Expr) and LOGGERS.match(ast.unparse(node)))


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the parts of a node that are tested: not annotations, decorators and the options of classes."""
    left_out = {"annotation", "returns", "decorator_list", "type_params"}
    if isinstance(node, ast.ClassDef):
        left_out |= {"bases", "keywords"}
    if isinstance(node, ast.Call) and ast.unparse(node.func) in {"cast", "TypeVar"}:
        left_out |= {"args", "keywords"}
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "zip":
        left_out |= {"keywords"}
    if isinstance(node, ast.keyword) and node.arg == "indent":
        left_out |= {"value"}
    for name, value in ast.iter_fields(node):
        if name not in left_out:
            yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, ast.AST))


def _replacements(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yields what is replaced, the node or a part of it, and the new text."""
    match node:
        case ast.Compare():
            for i, operator in enumerate(node.ops):
                for other in COMPARISONS[type(operator)]:
                    yield node, ast.unparse(ast.Compare(node.left, _with(node.ops, i, other()), node.comparators))
        case ast.BoolOp():
            for i in range(len(node.values)):
                rest = node.values[:i] + node.values[i + 1 :]
                yield node, _operand(rest[0]) if len(rest) == 1 else ast.unparse(ast.BoolOp(node.op, rest))
        case ast.BinOp() if type(node.op) in ARITHMETIC:
            # Parentheses, because the new operator may bind less tightly than the old one.
            yield node, f"({ast.unparse(ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right))})"
        case ast.AugAssign() if type(node.op) in ARITHMETIC:
            yield node, ast.unparse(ast.AugAssign(node.target, ARITHMETIC[type(node.op)](), node.value))
        case ast.UnaryOp(op=ast.Not()):
            yield node, ast.unparse(node.operand)
        case ast.Constant(value=bool()):
            yield node, str(not node.value)
        case ast.Constant(value=int() as number):
            yield node, str(number + 1)
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield node, "pass"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield node, "return None"
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            # Other kinds of conditions have a part that is inverted by itself.
            if isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.NamedExpr):
                yield test, f"not {_operand(test)}"
        case _:
            pass


def _with(operators: list[ast.cmpop], i: int, other: ast.cmpop) -> list[ast.cmpop]:
    return [*operators[:i], other, *operators[i + 1 :]]


def _operand(node: ast.expr) -> str:
    """Returns an operand that stands alone after the rest of its chain was dropped. (`unparse` itself puts
    parentheses around `:=`.)"""
    text = ast.unparse(node)
    return f"({text})" if isinstance(node, ast.IfExp | ast.Lambda) else text
