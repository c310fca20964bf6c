"""The model of a request is read from the place that the route defines, where it occurs once."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from penstock.cost.cost_estimate import CostEstimator
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.pools.placement import WorkEstimate
from penstock.routes.presets.openai import OPENAI_ROUTES
from penstock.routes.route import BodyKind, CostFields, ModelLocation, ModelSource, Route, StreamKind
from penstock.routes.route_table import RouteMatch, RouteTable
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.messages import Request
from regional_agent.requests.body_checks import MAX_UNCOMPRESSED_BYTES
from regional_agent.requests.model_name import can_start_early, reads_whole, replace_model, request_fields
from regional_agent.requests.request_context import work_estimate_of
from regional_agent.requests.route_fields import object_in
from regional_agent.routing.request_rewrite import RequestRewrite, can_rename
from tests.support.codings import gzipped

PATH, JSON, FORM, HEADER, QUERY, FIXED = ModelSource


def request(
    target: str, *places: tuple[ModelSource, str], path: str = "/x", body: bytes | Any = b"", **more: Any
) -> Request:
    headers = more.pop("headers", {})
    whole, kind = more.pop("whole", True), more.pop("body_kind", BodyKind.JSON)
    route = Route("route", path, model=tuple(ModelLocation(*place) for place in places), body=kind, **more)
    made = Request()
    made.method, made.target, made.path = b"POST", target.encode(), target.partition("?")[0].encode()
    match = RouteTable([route]).find(b"POST", made.path)
    assert isinstance(match, RouteMatch)
    made.route, made.reader, made.path_parameters = match.route, match.reader, match.parameters
    made.headers = [(name.encode(), value.encode()) for name, value in headers.items()]
    made.index()
    made.body = body if isinstance(body, bytes) else json.dumps(body).encode()
    made.whole, made.received_bytes, made.length = whole, len(made.body), len(made.body)
    return made


def model(made: Request) -> str:
    fields = request_fields(made)
    assert not isinstance(fields, Refusal), fields
    return fields.model


def refused(made: Request, reason: Reason = Reason.BAD_REQUEST) -> str:
    fields = request_fields(made)
    assert isinstance(fields, Refusal)
    assert fields.reason is reason
    return fields.detail


def test_openai_routes_keep_their_decoder() -> None:
    table = RouteTable(OPENAI_ROUTES)
    for route in OPENAI_ROUTES:
        if not route.offered or route.object_parameter:
            continue
        found = table.find(b"websocket" if "GET" in route.methods else b"POST", route.path.encode())
        assert isinstance(found, RouteMatch)
        assert found.reader is None


def test_each_place_names_the_model() -> None:
    assert model(request("/m/a%2Fb/x", (PATH, "name"), path="/m/{name}/x")) == "a/b"
    assert model(request("/x", (JSON, "/options/model"), body={"options": {"model": "m"}})) == "m"
    assert model(request("/x", (HEADER, "X-Engine"), headers={"x-engine": "m"}, body={})) == "m"
    assert model(request("/x?engine=m", (QUERY, "engine"), body={})) == "m"
    assert model(request("/x", (FIXED, "flux"), body={})) == "flux"
    form = b'--b\r\nContent-Disposition: form-data; name="engine"\r\n\r\nm\r\n--b--\r\n'
    headers = {"content-type": "multipart/form-data; boundary=b"}
    assert model(request("/x", (FORM, "engine"), body=form, headers=headers, body_kind=BodyKind.UPLOAD)) == "m"


def test_all_places_have_to_agree() -> None:
    places = ((PATH, "model"), (JSON, "/model"), (QUERY, "model"))
    assert model(request("/m/a?model=a", *places, path="/m/{model}", body={"model": "a"})) == "a"
    assert model(request("/m/a", *places, path="/m/{model}", body={})) == "a"
    assert "different models" in refused(request("/m/a", *places, path="/m/{model}", body={"model": "b"}))
    assert "repeated" in refused(request("/m/a?model=a&model=a", *places, path="/m/{model}", body={}))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"a": {"model": "x"}, "a": {"model": "y"}}', "repeated"),
        (b'{"a": {"model": "x", "mod\\u0065l": "y"}}', "repeated"),
        (b'{"a": {"model": "x", "Model": "y"}}', "could be read as 'model'"),
        (b'{"a": {"model": "x"}, "A": {"model": "y"}}', "could be read as 'a'"),
        (b'{"a": {"model": 1}}', "not a string"),
        (b'{"a": {"model": ""}}', "empty"),
        (b'{"a": {}}', "send its name in the JSON body at /a/model"),
        (b"[]", "send its name in the JSON body at /a/model"),
        (b"\xff", "not valid JSON"),
        (b"", "not valid JSON"),
    ],
)
def test_bodies_that_name_no_single_model_are_refused(body: bytes, problem: str) -> None:
    assert problem in refused(request("/x", (JSON, "/a/model"), body=body))


def test_a_body_that_need_not_name_the_model_may_be_anything() -> None:
    assert model(request("/x", (FIXED, "m"), body=b"\x00\xff")) == "m"
    assert model(request("/m/a", (PATH, "model"), path="/m/{model}", body=b"{}tensor bytes")) == "a"


def test_json_is_read_whole() -> None:
    part = request("/x", (JSON, "/a/model"), body=b'{"a": {"model": "m"', whole=False)
    assert reads_whole(part)
    assert reads_whole(request("/x", (FIXED, "m")))
    assert "larger" in refused(part, Reason.BODY_TOO_LARGE)


def test_opaque_bodies_start_early_and_are_never_read() -> None:
    opaque = request("/x?m=a", (QUERY, "m"), body=b'{"m": "b"', body_kind=BodyKind.OPAQUE, whole=False)
    assert can_start_early(opaque)
    assert not reads_whole(opaque)
    assert model(opaque) == "a"


def test_streams_are_recognised() -> None:
    def streams(body: dict[str, Any], **more: Any) -> bool:
        fields = request_fields(request("/x", (JSON, "/model"), body={"model": "m", **body}, **more))
        assert not isinstance(fields, Refusal)
        return fields.stream is True

    flagged = {"stream": StreamKind.NDJSON, "stream_field": "/options/stream"}
    assert streams({"options": {"stream": True}}, **flagged)
    assert not streams({}, **flagged)
    assert streams({}, **flagged, streams_by_default=True)
    assert not streams({"options": {"stream": False}}, **flagged, streams_by_default=True)
    assert streams({}, stream=StreamKind.CHUNKED)


@pytest.mark.parametrize(
    "body",
    [
        {"stream": "true"},
        {"stream": 1},
        {"n": "2"},
        {"n": True},
        {"n": [2]},
        {"n": int("9" * 400)},
        {"Stream": True},
        {"USER": "u"},
        {"Max": 1},
        {"Client": "c"},
    ],
)
def test_flags_and_numbers_have_one_type_and_one_name(body: dict[str, Any]) -> None:
    fields = {
        "stream": StreamKind.SSE,
        "stream_field": "/stream",
        "cost": CostFields(max_tokens=("/max",), count=("/n",)),
        "session": ("/user",),
        "client_object": "/client",
    }
    good = {"stream": None, "n": 2e0, "max": None, "user": 7, "client": "c"}
    assert model(request("/x", (FIXED, "m"), body=good, **fields)) == "m"
    assert refused(request("/x", (FIXED, "m"), body=good | body, **fields))


@pytest.mark.parametrize("member", ['"id": null', '"\\u0069d": "x"', '"a": {"id": 1}', '"x": 1, "a": {"id": 1}'])
def test_a_member_that_the_engine_chooses_is_refused_by_its_name(member: str) -> None:
    fields = {"chosen_by_engine": ("/id", "/a/id")}
    named = "/a/id" if '"a"' in member else "/id"
    assert refused(request("/x", (FIXED, "m"), body=b"{%b}" % member.encode(), **fields)).startswith(f"{named}: ")
    assert model(request("/x", (FIXED, "m"), body=b'{"x": {"id": 1}, "a": {}}', **fields)) == "m"


def test_a_body_with_the_flag_of_streams_is_json() -> None:
    flagged = {"stream": StreamKind.SSE, "stream_field": "/stream"}
    assert "not valid JSON" in refused(request("/x", (FIXED, "m"), body=b'{"stream": true,}', **flagged))


@pytest.mark.parametrize("length", ["-1", "1_0", "99", "", "+2"])
def test_the_length_of_the_json_before_binary_data_is_exact(length: str) -> None:
    made = request("/x", (FIXED, "m"), body=b"{}data", headers={"inference-header-content-length": length})
    assert "is not the size" in refused(made)


@pytest.mark.parametrize(
    "query", ["m=a&m=a", "m=a&M=b", "m=a;M=b", "a=1;m=a&m=b", "%6d=a&%4D=b", "m=a&m%00=b", "m=a&" + "x=1&" * 80]
)
def test_a_query_that_servers_read_differently_is_refused(query: str) -> None:
    assert "query" in refused(request(f"/x?{query}", (QUERY, "m"), body={}))


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json; charset=utf-16",
        'application/json;charset="UTF-7"',
        "application/json; x=1; charset = latin1",
        "application/json; charset=utf-8; charset=shift_jis",
        "application/json; charset*=utf-16",
        "text/plain; charset=iso-8859-1",
    ],
)
def test_json_is_utf_8(content_type: str) -> None:
    for places in ([(JSON, "/model")], [(FIXED, "m")]):
        made = request("/x", *places, body={"model": "m"}, headers={"content-type": content_type})
        assert "charset" in refused(made)


@pytest.mark.parametrize(
    "content_type",
    ["application/json; charset=utf-8", 'text/json;charset="UTF-8"', "application/cloudevents+json", "", "text/plain"],
)
def test_other_types_of_json_are_accepted(content_type: str) -> None:
    made = request("/x", (JSON, "/model"), body={"model": "m"}, headers={"content-type": content_type})
    assert model(made) == "m"


def test_json_that_is_a_form_too_is_refused() -> None:
    form = {"content-type": "Application/X-WWW-Form-Urlencoded; charset=utf-8"}
    body = {"model": "m", "x": "&model=n&"}
    assert "declares a form" in refused(request("/x", (JSON, "/model"), body=body, headers=form))
    assert model(request("/x", (JSON, "/model"), body={"model": "m", "x": "a & b; c"}, headers=form)) == "m"


def packed(body: dict[str, Any], target: str = "/v2/models/m/generate", **more: Any) -> Request:
    headers = {"content-encoding": more.pop("coding", "gzip")} | more.pop("headers", {})
    content = gzipped(json.dumps(body).encode()) + more.pop("after", b"")
    return request(target, (PATH, "model"), path="/v2/models/{model}/generate", body=content, headers=headers, **more)


GENERATE = {"cost": CostFields(max_tokens=("/max",)), "session": ("/parameters/sequence_id",)}


def test_a_gzip_body_is_read_where_the_path_names_the_model() -> None:
    made = packed({"max": 7, "parameters": {"sequence_id": 1}}, **GENERATE)
    fields = request_fields(made)
    assert not isinstance(fields, Refusal)
    assert (fields.model, bytes(fields.session)) == ("m", b"1")
    assert estimate(made, CostUnit.TOKEN).ask.max_tokens == 7
    assert gzip.decompress(bytes(made.body)), "the endpoint receives the body as the client sent it"
    assert "ambiguous" in refused(packed({"max": 7, "Max": 9}, **GENERATE))
    assert "not a number" in refused(packed({"max": "7"}, **GENERATE))


@pytest.mark.parametrize(
    "more",
    [
        {"coding": "br"},
        {"coding": "gzip, gzip"},
        {"after": b"x"},
        {"after": gzipped(b"{}")},
        {"padding": "x" * MAX_UNCOMPRESSED_BYTES},
    ],
)
def test_a_compressed_body_that_agents_do_not_read_is_forwarded_where_the_path_names_the_model(more: Any) -> None:
    fields = request_fields(packed({"max": 7, "x": more.pop("padding", "")}, **GENERATE, **more))
    assert not isinstance(fields, Refusal)
    assert (fields.model, fields.values) == ("m", {})


@pytest.mark.parametrize(
    ("places", "more"),
    [
        (((JSON, "/model"),), {}),
        (((FIXED, "m"),), {"stream": StreamKind.SSE, "stream_field": "/stream"}),
        (((FIXED, "m"),), {"client_object": "/client_id"}),
        (((FIXED, "m"),), {"chosen_by_engine": ("/id",)}),
    ],
)
def test_a_compressed_body_that_decides_is_refused_with_the_remedy(places: Any, more: Any) -> None:
    headers = {"content-encoding": "GZIP"}
    made = request("/x", *places, body=gzipped(b'{"model": "m"}'), headers=headers, **more)
    assert "send it without Content-Encoding" in refused(made)
    headers = {"content-encoding": "identity"}
    assert model(request("/x", *places, body={"model": "m"}, headers=headers, **more)) == "m"


def test_quantities_are_read_at_the_pointers_of_the_route() -> None:
    cost = CostFields(max_tokens=("/options/num_predict",), count=("/options/n",))
    body = {"model": "m", "options": {"num_predict": 7, "n": 2}}
    ask = estimate(request("/x", (JSON, "/model"), body=body, cost=cost), CostUnit.TOKEN).ask
    assert (ask.max_tokens, ask.count) == (7, 2)


def test_tensors_are_read_before_their_binary_data() -> None:
    header = json.dumps({"inputs": [{"name": "x", "shape": [2, 3], "datatype": "FP32"}]}).encode()
    made = request(
        "/v2/models/m/infer",
        (PATH, "model"),
        path="/v2/models/{model}/infer",
        body=header + bytes(24),
        headers={"inference-header-content-length": str(len(header))},
        cost=CostFields(tensors=("/inputs",)),
    )
    assert estimate(made, CostUnit.TENSOR_ELEMENT).ask.elements == 6


def test_the_length_of_the_header_is_ignored_where_the_body_names_the_model() -> None:
    made = request(
        "/x", (JSON, "/model"), body=b'{"model":"m"}{"model":"n"}', headers={"inference-header-content-length": "13"}
    )
    assert "not valid JSON" in refused(made)


def estimate(made: Request, unit: CostUnit) -> WorkEstimate:
    fields = request_fields(made)
    assert not isinstance(fields, Refusal)
    return work_estimate_of(made, fields, "t", Cost(unit), CostEstimator())


def test_a_model_is_replaced_in_path_and_body() -> None:
    made = request("/m/a?q=1", (PATH, "model"), (JSON, "/o/m"), path="/m/{model}", body=b'{"x":1,"o":{"m":"a"}}')
    fields = replace_model(made, "b/c")
    assert fields is not None
    assert fields.model == "b/c"
    assert made.target == b"/m/b%2Fc?q=1"
    assert made.path == b"/m/b%2Fc"
    assert json.loads(bytes(made.body)) == {"x": 1, "o": {"m": "b/c"}}
    assert made.length == len(made.body)


@pytest.mark.parametrize("place", [(QUERY, "m"), (FIXED, "a"), (HEADER, "x-m")])
def test_a_model_elsewhere_is_not_replaced(place: tuple[ModelSource, str]) -> None:
    made = request("/x?m=a", place, body={}, headers={"x-m": "a"})
    assert replace_model(made, "b") is None
    assert made.target == b"/x?m=a"


def test_an_endpoint_receives_its_own_name_of_the_model() -> None:
    rewrite = RequestRewrite("/base", (), {"a": "engine-a"})
    in_path = request("/m/a", (PATH, "model"), path="/m/{model}", body=b"opaque", body_kind=BodyKind.OPAQUE)
    assert can_rename(in_path)
    assert rewrite.apply(in_path, "a").target == b"/base/m/engine-a"
    assert in_path.target == b"/m/a"
    nested = request("/x", (JSON, "/o/m"), body={"o": {"m": "a"}})
    assert json.loads(bytes(rewrite.apply(nested, "a").body)) == {"o": {"m": "engine-a"}}
    assert rewrite.apply(request("/x", (FIXED, "a"), body={}), "a").target == b"/base/x"
    in_query = rewrite.apply(request("/x?b=1&m=a", (QUERY, "m"), (HEADER, "X-M"), body={}, headers={"x-m": "a"}), "a")
    assert in_query.target == b"/base/x?b=1&m=engine-a"
    assert in_query.headers == [(b"x-m", b"engine-a")]
    form = b'--b\r\nContent-Disposition: form-data; name="engine"\r\n\r\n%b\r\n--b--\r\n'
    headers = {"content-type": "multipart/form-data; boundary=b"}
    upload = request("/x", (FORM, "engine"), body=form % b"a", headers=headers, body_kind=BodyKind.UPLOAD)
    assert model(upload) == "a"
    assert rewrite.apply(upload, "a").body == form % b"engine-a"
    listed = request("/x", (JSON, "/models/0"), body={"models": ["a"]})
    assert model(listed) == "a"
    assert not can_rename(listed), "the endpoint is not used, since an element of an array is not replaced"


def test_the_earlier_object_is_read_from_complete_bodies_only() -> None:
    made = Request()
    made.whole = True
    for body, expected in (
        (b'{"model": "m", "previous_response_id": "resp_1"}', "resp_1"),
        (b'{"model": "m", "previous_response_id": null}', None),
        (b'{"model": "m", "input": "previous_response_id"}', None),
        (b'{"model": "m"}', None),
        (b'"previous_response_id" no JSON', None),
        (b'{"previous_response_id": ["resp_1"]}', None),
        (b'{"previous_response\\u005fid": "resp_1"}', "resp_1"),
        (b'{"previous_response_id": "resp_1", "Previous_response_id": "resp_2"}', None),
    ):
        made.body = body
        assert object_in(made, "/previous_response_id") == expected
    made.body, made.whole = b'{"previous_response_id": "resp_1"', False
    assert object_in(made, "/previous_response_id") is None


@pytest.mark.parametrize(
    ("target", "expected"),
    [("/x?a=1&id=o%2F1", "o/1"), ("/x?id=", ""), ("/x?a=1", None), ("/x?id=1&id=2", None), ("/x?" + "a=1&" * 99, None)],
)
def test_an_object_in_the_query(target: str, expected: str | None) -> None:
    assert object_in(request(target), "?id") == expected
