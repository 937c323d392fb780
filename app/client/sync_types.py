"""Writes the types of `sync.py`, for `make docs`: `python -m whippet.app.client.sync_types > app/client/sync.pyi`.

The signature of each method is that of the asynchronous one, with the result in place of its future.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap

from whippet.app.client import commands, sync
from whippet.app.client.blocking import public_methods

GENERATED = '"""Types of the module, made by `make docs`: do not edit."""\n'
OF_STUB = (
    "import ssl\n"
    "from collections.abc import Iterator\n"
    "from types import TracebackType\n"
    "\n"
    "from whippet.app.client.address import Reconnect\n"
    "from whippet.app.client.consumer import Received\n"
    "from whippet.app.client.producer import Content, Contents\n"
)


def stub() -> str:
    module = ast.parse(inspect.getsource(commands))
    imports = [ast.unparse(node) for node in module.body if isinstance(node, ast.Import | ast.ImportFrom)]
    whole = [GENERATED, *imports, OF_STUB, _function(sync.connect_sync, "")]
    for name in ("SyncClient", "SyncDelivery", "SyncProducer", "SyncConsumer"):
        whole.append(f"class {name}:")
        whole += [f"    {line}" for line in MORE.get(name, [])]
        for method_name, method in public_methods(getattr(sync, name)).items():
            whole.append(_function(method, method_name))
    return "\n".join(whole) + "\n"


_CONTEXT = [
    "def __exit__(",
    "    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None",
    ") -> None: ...",
]
MORE = {
    "SyncClient": [
        "@property",
        "def is_connected(self) -> bool: ...",
        "def __enter__(self) -> SyncClient: ...",
        *_CONTEXT,
    ],
    "SyncDelivery": ["@property", "def done(self) -> bool: ..."],
    "SyncProducer": ["def __enter__(self) -> SyncProducer: ...", *_CONTEXT],
    "SyncConsumer": [
        "def __iter__(self) -> Iterator[Received]: ...",
        "def __next__(self) -> Received: ...",
        "def __enter__(self) -> SyncConsumer: ...",
        *_CONTEXT,
    ],
}
"""Properties and special methods, which have no method of the asynchronous classes."""


FUTURES = ("Future", "asyncio.Future")


def _function(method: object, name: str) -> str:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(method)))).body  # type: ignore[arg-type]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    returns = node.returns
    if isinstance(returns, ast.Subscript) and ast.unparse(returns.value) in FUTURES:
        returns = returns.slice
    assert returns is not None
    some: list[ast.expr] = [ast.Constant(...)]
    node.args.defaults = some * len(node.args.defaults)
    node.args.kw_defaults = [None if each is None else some[0] for each in node.args.kw_defaults]
    shown = ast.unparse(node.args)
    for parameter, kind in (("message", "Content"), ("messages", "Contents")):
        shown = shown.replace(f"{parameter}: Any", f"{parameter}: {kind}")
    indent = "    " if name else ""
    return f"{indent}def {node.name}({shown}) -> {ast.unparse(returns)}: ..."


if __name__ == "__main__":
    sys.stdout.write(stub())
