"""Finds the route of a request by its method and path.

Paths without parameters are found by one dictionary lookup. Among templates, a literal segment precedes a parameter at
the same position. A route for GET also receives HEAD. A request to upgrade to a WebSocket is looked up as the method
`websocket`, so that one path can have both kinds of route.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Final

from penstock.routes.path_template import NO_PARAMETERS, PathTemplate
from penstock.routes.route import ModelSource, Route, StreamKind
from penstock.routes.route_reader import RouteReader, has_openai_fields

WEBSOCKET: Final = b"websocket"
"""The method under which an upgrade to a WebSocket is looked up."""


class Miss(Enum):
    """The reason why a request has no route."""

    UNKNOWN_PATH = auto()
    METHOD_NOT_ALLOWED = auto()
    UPGRADE_REQUIRED = auto()
    """The path is served over WebSocket only."""
    NOT_OFFERED = auto()
    """The path belongs to a part of an API that the fleet does not offer."""


class RouteMatch:
    """The route of a request, and the values of its path parameters."""

    def __init__(self, route: Route, parameters: Mapping[str, str], reader: RouteReader | None) -> None:
        self.route = route
        self.parameters = parameters
        self.reader = reader
        """Reads requests of the route; None if `has_openai_fields` is true of the route."""


class RouteMiss:
    """The result of a lookup that finds no route."""

    def __init__(self, miss: Miss, route: Route | None = None, allow: tuple[str, ...] = ()) -> None:
        self.miss = miss
        self.route = route
        """A route of the same path; None if the path has no route."""
        self.allow = allow
        """The offered methods of the path, if only the method of the request is wrong; else empty."""


_UNKNOWN: Final = RouteMiss(Miss.UNKNOWN_PATH)


class RouteTable:
    """The routes of one policy."""

    def __init__(self, routes: Iterable[Route]) -> None:
        """Index routes. If two match a request, a literal segment precedes a parameter, else the earlier route wins.

        Raises:
            TemplateError: a path template is malformed.
            ValueError: a JSON pointer is malformed.
        """
        self._by_name: dict[str, Route] = {}
        self._exact: dict[bytes, dict[bytes, RouteMatch]] = {}
        self._templates: dict[int, list[_Entry]] = {}
        """Routes with parameters, by the number of segments, in the order of matching."""
        for route in routes:
            template = PathTemplate(route.path)
            reader = None if has_openai_fields(route) else RouteReader(route)
            self._by_name.setdefault(route.name, route)
            if template.is_exact:
                by_method = self._exact.setdefault(route.path.encode(), {})
                for method in methods_of(route):
                    by_method.setdefault(method, RouteMatch(route, NO_PARAMETERS, reader))
            else:
                self._templates.setdefault(len(template.shape), []).append(_Entry(route, template, reader))
        for entries in self._templates.values():
            entries.sort(key=lambda entry: entry.template.shape)

    def find(self, method: bytes, path: bytes) -> RouteMatch | RouteMiss:
        """The route of a request.

        Args:
            method: HTTP method of the request, or WEBSOCKET for an upgrade to a WebSocket.
            path: path of the request as received, without the query.
        """
        by_method = self._exact.get(path)
        if by_method is not None:
            match = by_method.get(method)
            if match is not None and match.route.offered:
                return match
        return self._find_template(method, path, by_method or {})

    def has(self, route: Route) -> bool:
        """Whether a route of this name exists and is offered."""
        found = self._by_name.get(route.name)
        return found is not None and found.offered

    def _find_template(self, method: bytes, path: bytes, exact: Mapping[bytes, RouteMatch]) -> RouteMatch | RouteMiss:
        """The match among templates, or the reason for its absence; `exact` has the exact routes of this path."""
        others = dict(exact)
        if method not in others:
            for entry in self._templates.get(path.count(b"/"), ()):
                parameters = entry.template.match(path, entry.with_slash)
                if parameters is None:
                    continue
                for each in entry.methods:
                    others.setdefault(each, RouteMatch(entry.route, parameters, entry.reader))
                if method in entry.methods:
                    break
        match = others.get(method)
        if match is not None:
            return match if match.route.offered else RouteMiss(Miss.NOT_OFFERED, match.route)
        if not others:
            return _UNKNOWN
        offered = [each for each, other in others.items() if other.route.offered]
        if not offered:
            return RouteMiss(Miss.NOT_OFFERED, next(iter(others.values())).route)
        route = others[offered[0]].route
        allow = tuple(sorted(each.decode() for each in offered if each != WEBSOCKET))
        if not allow:
            return RouteMiss(Miss.UPGRADE_REQUIRED, route) if method == b"GET" else _UNKNOWN
        return RouteMiss(Miss.METHOD_NOT_ALLOWED, route, allow)


class _Entry:
    """A route whose path has parameters."""

    def __init__(self, route: Route, template: PathTemplate, reader: RouteReader | None) -> None:
        self.route = route
        self.template = template
        self.reader = reader
        self.methods = frozenset(methods_of(route))
        self.with_slash = frozenset(place.name for place in route.model if place.source is ModelSource.PATH)


def methods_of(route: Route) -> list[bytes]:
    """The methods under which a route is found."""
    if route.stream is StreamKind.WEBSOCKET:
        return [WEBSOCKET]
    methods = {method.encode() for method in route.methods}
    if b"GET" in methods:
        methods.add(b"HEAD")
    return sorted(methods)
