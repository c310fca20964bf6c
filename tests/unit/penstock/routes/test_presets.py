"""The routes of every preset are well-formed, and are found by the requests of their API."""

from __future__ import annotations

import pytest

from penstock.routes.body_fields import BodyFields
from penstock.routes.presets.preset_registry import PRESETS, preset_routes
from penstock.routes.route import BodyKind, ErrorFormat, ModelSource, Route, StreamKind
from penstock.routes.route_reader import RouteReader, has_openai_fields
from penstock.routes.route_table import Miss, RouteMatch, RouteMiss, RouteTable, methods_of

EVERY_PRESET = [(name, model) for name, preset in PRESETS.items() for model in (None, "m")[: 1 + preset.takes_model]]


def routes_of(name: str, model: str | None = None) -> list[Route]:
    return list(preset_routes(name, model))


@pytest.mark.parametrize(("name", "model"), EVERY_PRESET)
def test_every_route_is_found_at_its_own_path(name: str, model: str | None) -> None:
    routes = routes_of(name, model)
    table = RouteTable(routes)
    for route in routes:
        path = route.path.replace("{", "").replace("}", "").encode()
        for method in methods_of(route):
            result = table.find(method, path)
            assert result.route is not None
            assert result.route.name == route.name, "another route of the preset shadows it"
            assert isinstance(result, RouteMatch) == route.offered


@pytest.mark.parametrize(("name", "model"), EVERY_PRESET)
def test_routes_are_complete(name: str, model: str | None) -> None:
    routes = routes_of(name, model)
    assert len({route.name for route in routes}) == len(routes)
    for route in routes:
        assert route.name.startswith(name)
        for_object = route.object_parameter and not route.object_parameter.startswith("?")
        assert bool(route.model) == (route.offered and not for_object)
        assert route.methods != {"GET"} or route.body is BodyKind.NONE
        assert not route.stream_field or route.stream is not StreamKind.NONE
        assert not for_object or "{" + route.object_parameter + "}" in route.path
        if route.offered and not any(place.source is ModelSource.PATH for place in route.model):
            assert "{model}" not in route.path
        assert model is None or not route.model or route.model[0].name == model


@pytest.mark.parametrize(("name", "model"), EVERY_PRESET)
def test_every_pointer_is_well_formed(name: str, model: str | None) -> None:
    for route in routes_of(name, model):
        BodyFields([*route.cost.prompt, *route.session])
        RouteReader(route)


@pytest.mark.parametrize(
    ("preset", "method", "path", "name", "parameters"),
    [
        ("anthropic", b"POST", b"/v1/messages", "anthropic-messages", {}),
        ("kserve", b"POST", b"/v2/models/bert/infer", "kserve-infer", {"model": "bert"}),
        (
            "kserve",
            b"POST",
            b"/v2/models/bert/versions/3/infer",
            "kserve-version-infer",
            {"model": "bert", "version": "3"},
        ),
        ("kserve", b"GET", b"/v2/models/bert", "kserve-metadata", {"model": "bert"}),
        ("tgi", b"POST", b"/", "tgi-root", {}),
        ("comfyui", b"websocket", b"/ws", "comfyui-websocket", {}),
        ("comfyui", b"GET", b"/history/p1", "comfyui-history", {"prompt_id": "p1"}),
    ],
)
def test_requests_of_the_api_have_a_route(
    preset: str, method: bytes, path: bytes, name: str, parameters: dict[str, str]
) -> None:
    match = RouteTable(routes_of(preset)).find(method, path)
    assert isinstance(match, RouteMatch)
    assert (match.route.name, dict(match.parameters)) == (name, parameters)


@pytest.mark.parametrize(
    ("preset", "path", "errors"),
    [
        ("openai", b"/v1/files/file-1/content", ErrorFormat.OPENAI),
        ("openai", b"/v1/batches", ErrorFormat.OPENAI),
        ("anthropic", b"/v1/messages/batches/b1/results", ErrorFormat.ANTHROPIC),
        ("ollama", b"/api/pull", ErrorFormat.KSERVE),
        ("kserve", b"/v2/health/ready", ErrorFormat.KSERVE),
    ],
)
def test_what_is_not_offered_is_refused_as_such(preset: str, path: bytes, errors: ErrorFormat) -> None:
    miss = RouteTable(routes_of(preset)).find(b"GET", path)
    assert isinstance(miss, RouteMiss)
    assert miss.miss is Miss.NOT_OFFERED
    assert miss.route is not None
    assert miss.route.errors is errors


@pytest.mark.parametrize(
    ("name", "model", "problem"),
    [("nvidia", None, "there is no preset 'nvidia'"), ("openai", "m", "takes no fixed model")],
)
def test_rejects_unknown_presets_and_a_model_for_apis_that_name_it(name: str, model: str | None, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        preset_routes(name, model)


@pytest.mark.parametrize("preset", ["tgi", "sglang", "comfyui", "predict"])
def test_a_body_that_need_not_name_the_model_is_not_read_as_openai_s(preset: str) -> None:
    assert not any(has_openai_fields(route) for route in preset_routes(preset) if route.body is BodyKind.JSON)
