from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.routes.path_template import PathTemplate
from penstock.routes.presets.openai import OPENAI_ROUTES
from penstock.routes.presets.preset_registry import PRESETS, preset_routes
from penstock.routes.route import ModelLocation, ModelSource, Route
from penstock.routes.route_table import Miss, RouteMatch, RouteMiss, RouteTable, methods_of

BY_PATH = (ModelLocation(ModelSource.PATH, "model"),)
ROUTES = (
    *OPENAI_ROUTES,
    Route("infer", "/v2/models/{model}/infer", model=BY_PATH),
    Route("ready", "/v2/models/{model}/ready", frozenset({"GET"}), model=BY_PATH),
    Route("stats", "/v2/models/all/ready", frozenset({"POST"})),
    Route("files", "/v1/blobs/{id}", frozenset({"GET", "DELETE"}), offered=False),
    Route("list", "/v1/notes", frozenset({"GET"})),
    Route("clear", "/v1/notes", frozenset({"DELETE"}), offered=False),
)
TABLE = RouteTable(ROUTES)


def found(method: bytes, path: bytes) -> tuple[str, dict[str, str]]:
    match = TABLE.find(method, path)
    assert isinstance(match, RouteMatch)
    return match.route.name, dict(match.parameters)


def missed(method: bytes, path: bytes) -> tuple[Miss, tuple[str, ...]]:
    miss = TABLE.find(method, path)
    assert isinstance(miss, RouteMiss)
    return miss.miss, miss.allow


def test_routes_are_found() -> None:
    assert found(b"POST", b"/v1/chat/completions") == ("openai-chat-completions", {})
    assert found(b"websocket", b"/v1/realtime") == ("openai-realtime", {})
    assert found(b"POST", b"/v2/models/org%2Fm/infer") == ("infer", {"model": "org/m"})
    assert found(b"HEAD", b"/v2/models/m/ready") == ("ready", {"model": "m"})


def test_a_literal_precedes_a_parameter_and_hides_no_other_method() -> None:
    assert found(b"POST", b"/v2/models/all/ready") == ("stats", {})
    assert found(b"GET", b"/v2/models/all/ready") == ("ready", {"model": "all"})
    assert missed(b"PUT", b"/v2/models/all/ready") == (Miss.METHOD_NOT_ALLOWED, ("GET", "HEAD", "POST"))


def test_the_reason_of_a_miss() -> None:
    assert missed(b"POST", b"/v1/chat") == (Miss.UNKNOWN_PATH, ())
    assert missed(b"GET", b"/v1/chat/completions") == (Miss.METHOD_NOT_ALLOWED, ("POST",))
    assert missed(b"websocket", b"/v1/chat/completions") == (Miss.METHOD_NOT_ALLOWED, ("POST",))
    assert missed(b"GET", b"/v1/realtime")[0] is Miss.UPGRADE_REQUIRED
    assert missed(b"POST", b"/v1/realtime")[0] is Miss.UNKNOWN_PATH
    assert missed(b"DELETE", b"/v1/blobs/f-1")[0] is Miss.NOT_OFFERED
    assert missed(b"PUT", b"/v1/blobs/f-1") == (Miss.NOT_OFFERED, ())
    assert missed(b"PUT", b"/v1/notes") == (Miss.METHOD_NOT_ALLOWED, ("GET", "HEAD"))


SEGMENT = st.sampled_from(("a", "b", "{x}", "{y}"))
TEMPLATE = st.lists(SEGMENT, min_size=1, max_size=3, unique=True).map(lambda segments: "/" + "/".join(segments))
METHODS = st.frozensets(st.sampled_from(("GET", "POST", "DELETE")), min_size=1)


@given(
    st.lists(st.tuples(TEMPLATE, METHODS), max_size=6),
    st.lists(st.sampled_from(("a", "b", "c")), min_size=1, max_size=3),
    st.sampled_from(("GET", "POST", "DELETE")),
)
def test_a_table_agrees_with_trying_every_route(
    shapes: list[tuple[str, frozenset[str]]], segments: list[str], method: str
) -> None:
    routes = [Route(str(at), path, methods) for at, (path, methods) in enumerate(shapes)]
    path = ("/" + "/".join(segments)).encode()
    matching = [route for route in routes if PathTemplate(route.path).match(path) is not None]
    expected = min(
        (route for route in matching if method in route.methods),
        key=lambda route: PathTemplate(route.path).shape,
        default=None,
    )
    result = RouteTable(routes).find(method.encode(), path)
    if expected is None:
        assert isinstance(result, RouteMiss)
        assert (result.miss is Miss.UNKNOWN_PATH) == (not matching)
    else:
        assert isinstance(result, RouteMatch)
        assert result.route is expected


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_makes_a_table(name: str) -> None:
    routes = preset_routes(name)
    table = RouteTable(routes)
    for route in routes:
        path = re.sub(r"\{\w+\}", "x", route.path).encode()
        match = table.find(next(iter(methods_of(route))), path)
        assert match.route is route
