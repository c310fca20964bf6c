"""Routes in a bundle: compiled, or refused with file, line and remedy."""

# A row of a table of messages is one line.
# ruff: noqa: E501

from __future__ import annotations

import pytest
from msgspec.structs import replace

from control_plane.policy.compiler import compile_bundle
from control_plane.policy.preset_documents import route_documents
from penstock.policy.policy import Policy
from penstock.routes.presets.openai import OPENAI_ROUTES
from penstock.routes.presets.preset_registry import PRESETS, preset_routes
from penstock.routes.route import CostFields, Timeouts
from penstock.routes.route_table import RouteMatch
from tests.support.policy_bundle import BUNDLE, refused

HEAD = "apiVersion: penstock/v1\nkind: Route\nname: mine\n"
BY_PATH = "model: [{source: path, name: model}]\n"
IN_BODY = "model: [{source: json, name: /model}]\n"
PRESET_LIST = "apiVersion: penstock/v1\nkind: RoutePresets\n"


def compiled(text: str) -> Policy:
    return compile_bundle(BUNDLE | {"routes.yaml": text})


def test_a_bundle_without_routes_serves_openais() -> None:
    assert compile_bundle(BUNDLE).routes == tuple(sorted(OPENAI_ROUTES, key=lambda route: not route.offered))


def test_a_route_is_compiled_and_found() -> None:
    policy = compiled(
        HEAD + "path: /mine/{model}\n" + BY_PATH + "stream: ndjson\ntimeouts: {total_s: 5}\ncost: {steps: [/steps]}\n"
    )
    match = policy.route_table.find(b"POST", b"/mine/llama-3.1-8b")
    assert isinstance(match, RouteMatch)
    assert match.parameters == {"model": "llama-3.1-8b"}
    assert match.route.source == "routes.yaml:3"
    assert match.route.timeouts == Timeouts(total_s=5)
    assert match.route.cost == CostFields(steps=("/steps",))


def test_presets_are_included_by_name() -> None:
    policy = compiled(PRESET_LIST + "presets: [kserve, comfyui]\nmodels: {comfyui: llama-3.1-8b}\n")
    names = {route.name.partition("-")[0] for route in policy.routes}
    assert names == {"kserve", "comfyui"}
    assert isinstance(policy.route_table.find(b"POST", b"/prompt"), RouteMatch)


def test_a_bundle_may_have_no_preset() -> None:
    policy = compiled(PRESET_LIST + "presets: []\n---\n" + HEAD + "path: /x\n" + IN_BODY)
    assert [route.name for route in policy.routes] == ["mine"]


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_documents_of_a_preset_compile_to_its_routes(name: str) -> None:
    routes = preset_routes(name)
    policy = compiled(PRESET_LIST + "presets: []\n---\n" + route_documents(routes))

    found = {route.name: replace(route, source="") for route in policy.routes}
    assert found == {route.name: replace(route, preset="") for route in routes}


REFUSED = [
    (HEAD + "path: /v2/{model}:run\n" + BY_PATH, "routes.yaml:4: path: has the segment '{model}:run'; a parameter is a whole segment; write it as /segment/{parameter}/segment"),
    (HEAD + "path: /{model}/{model}\n" + BY_PATH, "routes.yaml:4: path: has the parameter {model} twice; write it as /segment/{parameter}/segment"),
    (HEAD + "path: /x/{a}\n" + BY_PATH, "routes.yaml:5: model[0].name: the path has no parameter model; its parameters: a"),
    (HEAD + "path: /x/{a}/{b}\nmodel: [{source: path, name: a}, {source: path, name: b}]\n", "routes.yaml:5: model[1]: two places of source path name the model; keep one of them"),
    (HEAD + "path: /x\n", "routes.yaml:1: does not state where requests name the model; write `model`, such as [{source: json, name: /model}], or `offered: false`"),
    (HEAD + "path: /v1/chat/completions\n" + IN_BODY, "routes.yaml:4: path: matches requests of the route openai-chat-completions (/v1/chat/completions, of a preset); change one of the two paths, or the methods"),
    (HEAD + "path: /v1/{x}/completions\n" + IN_BODY, "routes.yaml:4: path: matches requests of the route openai-chat-completions (/v1/chat/completions, of a preset); change one of the two paths, or the methods"),
    (HEAD + "path: /v1/models\nmethods: [GET]\n" + IN_BODY, "routes.yaml:4: path: matches /v1/models, which agents answer themselves; choose another path"),
    (HEAD + "path: /readyz\nmethods: [GET]\n" + IN_BODY, "routes.yaml:4: path: matches /readyz, which agents answer themselves; choose another path"),
    (HEAD + "path: /x\nmodel: [{source: json, name: model}]\n", "routes.yaml:5: model[0].name: the JSON pointer 'model' does not start with `/`; write a JSON pointer (RFC 6901), such as /options/model"),
    (HEAD + "path: /x\nbody: opaque\n" + IN_BODY, "routes.yaml:6: model[0].name: cannot match: a body of kind opaque is not read; write `body: json`, or remove it"),
    (HEAD + "path: /x\nmodel: [{source: form, name: model}]\n", "routes.yaml:5: model[0].name: a body of kind json has no form; write `body: upload`"),
    (HEAD + "path: /x\nmethods: [GET]\n" + IN_BODY, "routes.yaml:6: model[0].name: cannot match: GET requests have no body; name another place, such as a query parameter, or write `methods: [POST]`"),
    (HEAD + "path: /x\nmethods: [GET]\nbody: upload\nmodel: [{source: form, name: m}]\n", "routes.yaml:7: model[0].name: cannot match: GET requests have no body; name another place, such as a query parameter, or write `methods: [POST]`"),
    (HEAD + "path: /x\nmethods: [GET]\nstream: websocket\n" + IN_BODY, "routes.yaml:7: model[0].name: cannot match: GET requests have no body; name another place, such as a query parameter, or write `methods: [POST]`"),
    (HEAD + "path: /x\nmodel: [{source: header, name: Authorization}]\n", "routes.yaml:5: model[0].name: is a header with another meaning; write a name such as x-model"),
    (HEAD + "path: /x\nmodel: [{source: header, name: X-M}, {source: header, name: x-m}]\n", "routes.yaml:5: model[1].name: the header x-m is listed twice; keep one of them"),
    (HEAD + "path: /x\nmodel: [{source: fixed, name: llama-3.1-8}]\n", "routes.yaml:5: model[0].name: there is no Model llama-3.1-8; did you mean llama-3.1-8b?"),
    (HEAD + "path: /x\n" + IN_BODY + "stream_field: /stream\n", "routes.yaml:6: stream_field: is set, and responses of kind none have no flag; write `stream: sse`, or another format"),
    (HEAD + "path: /x\n" + IN_BODY + "object_id: id\n", "routes.yaml:6: object_id: the path has no parameter id; name a path parameter, a query parameter as ?name, or write a JSON pointer"),
    (HEAD + "path: /x\n" + IN_BODY + "object_id: '?a=b'\n", "routes.yaml:6: object_id: '?a=b' is no query parameter; write ? and the name of a query parameter, such as ?clientId"),
    (HEAD + "path: /x\nbody: opaque\nmodel: [{source: query, name: m}]\nclient_object: /id\n", "routes.yaml:7: client_object: cannot match: a body of kind opaque is not read; write `body: json`, or remove it"),
    (HEAD + "path: /x/{id}\nobject_id: id\nclient_object: '?c'\n", "routes.yaml:6: client_object: is set, and the route has another identifier that determines the endpoint; keep one of them"),
    (HEAD + "path: /x\n" + IN_BODY + "chosen_by_engine: [id]\n", "routes.yaml:6: chosen_by_engine[0]: the JSON pointer 'id' does not start with `/`; write a JSON pointer (RFC 6901), such as /options/model"),
    (HEAD + "path: /x\n" + IN_BODY + "occupies_slot: false\n", "routes.yaml:6: occupies_slot: is false, and the route is no WebSocket; write `stream: websocket`, or remove it"),
    (HEAD + "path: /x/{id}\n" + IN_BODY + "object_id: id\n", "routes.yaml:5: model: is set, and the model of a request for an object is that of the object; remove it, or write object_id as a JSON pointer"),
    (HEAD + "path: /x\n" + IN_BODY + "previous_object: /previous\n", "routes.yaml:6: previous_object: is set, and the route creates no object; write `object_id`, or remove it"),
    (HEAD + "path: /x\n" + IN_BODY + "stream: websocket\n", "routes.yaml:1: methods: a WebSocket is opened with GET; write `methods: [GET]`"),
    (HEAD + "path: /x\n" + IN_BODY + "---\n" + HEAD + "path: /y\n" + IN_BODY, "routes.yaml:9: name: Route mine exists already; keep one; see routes.yaml:3"),
    (HEAD + "path: /x/{a}\n" + IN_BODY + "---\n" + HEAD.replace("mine", "other") + "path: /{b}/y\n" + IN_BODY, "routes.yaml:10: path: matches requests of the route mine (/x/{a}, of routes.yaml:3); change one of the two paths, or the methods"),
    (PRESET_LIST + "presets: [opanai]\n", "routes.yaml:3: presets[0]: there is no preset opanai; did you mean openai?"),
    (PRESET_LIST + "presets: []\n", "serving.yaml:3: name: no route reaches the model llama-3.1-8b; include a preset whose requests name their model, or add a Route for it"),
    (PRESET_LIST + "presets: [openai]\nmodels: {openai: llama-3.1-8b}\n", "routes.yaml:4: models.openai: the preset openai takes no fixed model; remove it: requests of this API name their model"),
    (PRESET_LIST + "presets: [comfyui]\nmodels: {comfyui: flux}\n", "routes.yaml:4: models.comfyui: there is no Model flux; use one of llama-3.1-8b"),
    (PRESET_LIST + "presets: [tgi, sglang]\n", "routes.yaml:3: presets[1]: the preset sglang has the path of another preset: /generate (tgi-generate); keep one of the two presets"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_a_route_that_cannot_work_is_refused_at_its_line(text: str, message: str) -> None:
    assert message in refused(BUNDLE | {"routes.yaml": text})
