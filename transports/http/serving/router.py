"""Finds the endpoint of a request in a tree of raw path segments, without trying one route after another.

Segments are split before they are decoded, so nothing in a name can become part of the path, and no two spellings lead
to the same route. A literal segment wins over a name if it has the requested method.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from starlette.types import Scope

from whippet.transports.http.errors import Refused, not_found
from whippet.transports.http.forms.parameters import decode_path
from whippet.transports.http.serving.endpoint import Endpoint


class Node:
    """A segment in the tree of paths."""

    __slots__ = ("endpoints", "literals", "name", "parameter")

    def __init__(self) -> None:
        self.literals: dict[bytes, Node] = {}
        self.parameter: Node | None = None
        self.name = ""
        """The name of the parameter."""
        self.endpoints: dict[str, Endpoint] = {}


Found = tuple[Node, dict[str, bytes]]
MATCHES_MAX = 1024
"""Most requests repeat the path of another one."""
PATH_BYTES_MAX = 256
"""Longer paths are not remembered."""


class Match:
    """The endpoint of a path, and the parameters in the path."""

    __slots__ = ("_parameters", "_segments", "endpoint")

    def __init__(self, endpoint: Endpoint, segments: dict[str, bytes]) -> None:
        self.endpoint = endpoint
        self._segments = segments
        self._parameters: Mapping[str, Any] | None = None

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Decoded when they are needed: errors in them are not for callers without a token."""
        if self._parameters is None:
            self._parameters = MappingProxyType(decode_path(self._segments))
        return self._parameters


class Router:
    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._root = Node()
        self._matches: dict[tuple[str, bytes], Match] = {}
        for endpoint in endpoints:
            self._add(endpoint)

    def _add(self, endpoint: Endpoint) -> None:
        operation = endpoint.operation
        node = self._root
        for segment in operation.path.split("/")[1:]:
            if segment.startswith("{"):
                name = segment[1:-1]
                node.parameter = node.parameter or Node()
                assert node.name in ("", name), f"{operation.path}: one segment with two names"
                node.name = name
                node = node.parameter
            else:
                node = node.literals.setdefault(segment.encode(), Node())
        for method in (operation.method, "HEAD") if operation.method == "GET" else (operation.method,):
            assert method not in node.endpoints, f"{method} {operation.path} is defined twice"
            node.endpoints[method] = endpoint

    def find(self, scope: Scope) -> Match:
        """Raises a 404 or 405 if there is no endpoint."""
        method: str = scope["method"]
        path: bytes = scope["raw_path"]
        known = self._matches.get((method, path))
        if known is not None:
            return known
        match = self._search(method, path)
        if len(path) <= PATH_BYTES_MAX:
            if len(self._matches) >= MATCHES_MAX:
                self._matches.clear()
            self._matches[method, path] = match
        return match

    def _search(self, method: str, path: bytes) -> Match:
        allowed: Iterable[str] = ()
        for node, segments in _walk(self._root, path.split(b"/"), 1, {}):
            endpoint = node.endpoints.get(method)
            if endpoint is not None:
                return Match(endpoint, segments)
            # The first node matches most literally: the methods of a name in its place do not count.
            allowed = allowed or node.endpoints
        if allowed:
            allow = (b"allow", ", ".join(sorted(allowed)).encode())
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "Method Not Allowed", headers=(allow,))
        raise not_found()


def _walk(node: Node, segments: list[bytes], at: int, parameters: dict[str, bytes]) -> Iterator[Found]:
    for following, segment in enumerate(segments[at:], at + 1):
        literal = node.literals.get(segment)
        if node.parameter is None or not segment:
            if literal is None:
                return
            node = literal
            continue
        if literal is not None:
            yield from _walk(literal, segments, following, parameters)
        parameters = {**parameters, node.name: segment}
        node = node.parameter
    if node.endpoints:
        yield node, parameters
