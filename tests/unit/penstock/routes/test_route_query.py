"""The route of a described request is the one that an agent finds."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from penstock.policy.policy import Policy
from penstock.routes.presets.openai import OPENAI_ROUTES
from penstock.routes.presets.services import comfyui_routes, predict_routes
from penstock.routes.route import ModelLocation, ModelSource, Route, StreamKind
from penstock.routes.route_query import MatchedRoute, matched_route, unreached_models
from penstock.routing.reasons import Reason, Refusal
from tests.support.planet import policy

MINE = Route(
    "mine",
    "/mine/{model}",
    model=(ModelLocation(ModelSource.PATH, "model"),),
    stream=StreamKind.NDJSON,
    stream_field="/stream",
    source="routes.yaml:3",
)
POLICY = replace(Policy(regions={}, models={}, tenants={}, residency=()), routes=(MINE, *OPENAI_ROUTES))


def reason(method: str, path: str, model: str = "m") -> Reason:
    refusal = matched_route(POLICY, method, path, model)
    assert isinstance(refusal, Refusal)
    return refusal.reason


def test_a_route_and_what_it_requires() -> None:
    assert matched_route(POLICY, "post", "/mine/m?x=1", "m") == MatchedRoute(
        "mine",
        "/mine/{model}",
        "routes.yaml:3",
        {"model": "m"},
        ("model: path model", "body: json", "streamed: ndjson, if /stream is true"),
    )
    assert isinstance(matched_route(POLICY, "WEBSOCKET", "/v1/realtime", "m"), MatchedRoute)


def test_why_there_is_no_route() -> None:
    assert reason("POST", "/other") is Reason.NOT_FOUND
    assert reason("GET", "/mine/m") is Reason.METHOD_NOT_ALLOWED
    assert reason("GET", "/v1/realtime") is Reason.UPGRADE_REQUIRED
    files = matched_route(POLICY, "GET", "/v1/files/f-1", "m")
    assert files == Refusal(
        Reason.NOT_OFFERED,
        "this fleet does not offer GET /v1/files/f-1: the preset openai does not offer /v1/files/{id}",
    )
    assert reason("POST", "/mine/other") is Reason.BAD_REQUEST


def test_a_path_of_a_preset_that_the_policy_lacks_is_refused_with_its_name() -> None:
    missing = {"/v1/messages": "anthropic", "/api/chat": "ollama", "/tokenize": "vllm or tgi"}
    for path, presets in missing.items():
        refusal = matched_route(POLICY, "POST", path, "m")
        detail = f"nothing is served at POST {path}; the policy lacks the preset {presets} (RoutePresets)"
        assert refusal == Refusal(Reason.NOT_FOUND, detail)
    assert matched_route(POLICY, "POST", "/other", "m") == Refusal(Reason.NOT_FOUND, "nothing is served at POST /other")


def test_a_model_that_no_route_reaches_is_found() -> None:
    base = msgspec.structs.replace(policy(), versions={})
    first, second, third = (
        msgspec.structs.replace(model, name=name, fallback=fallback)
        for model in list(base.models.values())[:1]
        for name, fallback in (("first", "second"), ("second", None), ("third", None))
    )
    models = {model.name: model for model in (first, second, third)}

    def unreached(*routes: Route) -> list[str]:
        return unreached_models(msgspec.structs.replace(base, models=models, routes=routes))

    assert unreached(*predict_routes("first")) == ["third"]
    assert unreached(*comfyui_routes("first")) == ["third"], "a route for objects names no model"
    assert unreached(*predict_routes("third"), *predict_routes("first")) == []
    assert unreached(*predict_routes("first"), *OPENAI_ROUTES) == []
    not_offered = [route for route in OPENAI_ROUTES if not route.offered]
    assert len(unreached(*predict_routes("third"), *not_offered)) == 2
