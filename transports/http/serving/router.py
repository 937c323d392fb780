"""Which endpoint a request is for: by the raw path, taken apart at its slashes, without trying one route after another.

A segment is decoded only when it is known to be a name, so nothing in a name can become a part of the path, and no two
spellings lead to the same route. A literal segment wins over a name where it has the method that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from http import HTTPStatus

from starlette.types import Scope

from whippet.transports.http.errors import Refused, not_found
from whippet.transports.http.serving.endpoint import Endpoint


class Node:
    """A place in the tree of paths."""

    __slots__ = ("endpoints", "literals", "name", "parameter")

    def __init__(self) -> None:
        self.literals: dict[bytes, Node] = {}
        self.parameter: Node | None = None
        self.name = ""
        """Of the parameter."""
        self.endpoints: dict[str, Endpoint] = {}


Found = tuple[Node, dict[str, bytes]]


class Router:
    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._root = Node()
        for endpoint in endpoints:
            self._add(endpoint)

    def _add(self, endpoint: Endpoint) -> None:
        operation = endpoint.operation
        node = self._root
        for segment in operation.path.split("/")[1:]:
            if segment.startswith("{"):
                name = segment[1:-1]
                node.parameter = node.parameter or Node()
                assert node.name in ("", name), f"{operation.path}: one place, two names"
                node.name = name
                node = node.parameter
            else:
                node = node.literals.setdefault(segment.encode(), Node())
        for method in (operation.method, "HEAD") if operation.method == "GET" else (operation.method,):
            assert method not in node.endpoints, f"{method} {operation.path} is there twice"
            node.endpoints[method] = endpoint

    def find(self, scope: Scope) -> Endpoint:
        """Returns the endpoint, and puts the parameters of the path into the scope."""
        method: str = scope["method"]
        allowed: Iterable[str] = ()
        for node, parameters in _walk(self._root, scope["raw_path"].split(b"/"), 1, {}):
            endpoint = node.endpoints.get(method)
            if endpoint is not None:
                scope["path_params"] = parameters
                return endpoint
            # Those of the path itself come first, and those of a name that could stand in its place are not of it.
            allowed = allowed or node.endpoints
        if allowed:
            allow = (b"allow", ", ".join(sorted(allowed)).encode())
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "Method Not Allowed", headers=(allow,))
        raise not_found()


def _walk(node: Node, segments: list[bytes], at: int, parameters: dict[str, bytes]) -> Iterator[Found]:
    for behind, segment in enumerate(segments[at:], at + 1):
        literal = node.literals.get(segment)
        if node.parameter is None or not segment:
            if literal is None:
                return
            node = literal
            continue
        if literal is not None:
            yield from _walk(literal, segments, behind, parameters)
        parameters = {**parameters, node.name: segment}
        node = node.parameter
    if node.endpoints:
        yield node, parameters
