"""One stream of the endpoint picker: what it answers to Envoy's messages, and that it releases all it holds."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.http import answer_intake
from penstock.planning.plan import RegionPlan
from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.kinds.tenants import Quota, Tenant
from penstock.routes.presets.kserve import KSERVE_ROUTES
from penstock.routes.presets.model_locations import IN_PATH
from penstock.routes.route import BodyKind, Route
from regional_agent.http.limits import Limits
from regional_agent.picker.conversation import BadMode, InvalidTransition, StreamState
from regional_agent.picker.processing_request import BUFFERED, NONE, STREAMED
from regional_agent.requests.request_context import RequestContext
from regional_agent.telemetry.access_log import AccessLog
from regional_agent.upstream.address import Address
from tests.support.agents import Agent, running_agent
from tests.support.picker_streams import (
    ANSWER,
    CHAT,
    JSON_TYPE,
    PickerStream,
    body,
    head,
    parts_of,
    response_body,
    response_head,
    set_headers,
    trailers,
)
from tests.support.planet import MODEL, plan
from tests.support.triton import infer_request
from tests.support.wait import until

ENGINES = [Address("127.0.0.1", 8001), Address("127.0.0.1", 8002)]
CHATS, SPEECH = "/v1/chat/completions", "/v1/audio/speech"
STREAM = json.dumps({"model": MODEL, "messages": [], "stream": True}).encode()


@asynccontextmanager
async def picking(directory: Path, engines: list[Address] = ENGINES, **options: Any) -> AsyncIterator[Agent]:
    """An agent whose engines no request reaches."""
    async with running_agent(directory, engines, **options) as agent:
        yield agent
        assert agent.held() == 0
        assert agent.waiting() == 0
        assert agent.listener.state.bodies.bytes_kept == 0
        assert not list(agent.proxy.active)


async def test_the_endpoint_is_in_header_and_metadata_and_its_slot_is_held_until_the_end(tmp_path: Path) -> None:
    async with picking(tmp_path) as agent:
        stream = PickerStream(parts_of(agent))
        stream.receive(head(), body(CHAT[:10], ends=False), body(CHAT[10:]))
        assert stream.kinds() == ["request_headers", "request_body"]
        assert sorted(stream.destinations) == [str(each) for each in ENGINES]
        assert stream.request_body() == CHAT
        assert agent.held() == 1
        assert agent.listener.state.bodies.bytes_kept == 0, "Envoy has the body"
        stream.receive(response_head(200, JSON_TYPE), response_body(ANSWER[:20]), response_body(ANSWER[20:]))
        assert agent.held() == 1
        stream.receive(response_body(b"", ends=True))
        assert stream.talk.is_done
        assert stream.response_body() == ANSWER
        assert agent.counted() == {"ok": 1.0}
        stream.stream.close()


async def test_an_unasked_report_of_usage_is_read_and_removed(tmp_path: Path) -> None:
    async with picking(tmp_path) as agent:
        stream = PickerStream(parts_of(agent))
        stream.receive(head(), body(STREAM))
        assert json.loads(stream.request_body())["stream_options"] == {"include_usage": True}
        token = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
        usage = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n'
        stream.receive(
            response_head(200, {"content-type": "text/event-stream"}), response_body(token), response_body(usage)
        )
        stream.receive(response_body(b"data: [DONE]\n\n", ends=True))
        assert stream.response_body() == token + b"data: [DONE]\n\n"


async def test_a_stream_takes_from_a_budget_while_it_runs(tmp_path: Path) -> None:
    async with picking(tmp_path) as agent:
        base = agent.config.policy
        limited = replace(base.tenants["open"], own_budgets=(Budget(BudgetUnit.OUTPUT_TOKENS, 0.001, burst=5_000.0),))
        cost = Cost(CostUnit.TOKEN, 0.001, 0.01)
        models = {MODEL: replace(base.models[MODEL], cost=cost)}
        agent.config.policy = replace(base, tenants=base.tenants | {"open": limited}, models=models)
        stream = PickerStream(parts_of(agent))
        stream.receive(head(), body(STREAM), response_head(200, {"content-type": "text/event-stream"}))
        (counted,) = agent.budgets.meters()
        reserved = counted.held
        assert 0.0 < reserved < 2_000.0
        stream.receive(response_body(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' * 3_000))
        assert counted.held == 6_000.0
        stream.receive(response_body(b"data: [DONE]\n\n", ends=True))
        assert (counted.held, counted.used) == (0.0, 3_000.0)


@pytest.mark.parametrize(
    ("path", "headers", "answer", "outcome"),
    [
        (CHATS, {}, b"busy", "refused"),
        (CHATS, {}, ANSWER, "ok"),
        (CHATS, {"content-type": "application/octet-stream"}, b"busy", "refused"),
        (CHATS, JSON_TYPE, b'{"foo": 1}', "refused"),
        (CHATS, JSON_TYPE, b'{"error": {"message": "CUDA out of memory", "code": 500}}', "refused"),
        (CHATS, JSON_TYPE, b'{"error": {"message": "too long", "type": "invalid_request_error"}}', "client_error"),
        (CHATS, JSON_TYPE, b'{"choices": [{"text": "%b", "finish_reason": "abort"}]}' % (b"a" * 900), "refused"),
        (SPEECH, JSON_TYPE, b'{"foo": 1}', "refused"),
        (SPEECH, {"content-type": "audio/wav"}, b"", "engine_error"),
        (SPEECH, {"content-type": "audio/wav"}, b"RIFF\x00\xff", "ok"),
    ],
)
@pytest.mark.parametrize("parts", [1, 2])
async def test_the_form_of_an_answer_decides_its_outcome(
    tmp_path: Path, path: str, headers: dict[str, str], answer: bytes, outcome: str, parts: int
) -> None:
    """An answer that is an error, or none of the API, is refused, as clients would take a status 200 for an answer."""
    first, rest = (answer[:4], answer[4:]) if parts > 1 else (answer, b"")
    async with picking(tmp_path) as agent:
        stream = PickerStream(parts_of(agent))
        stream.receive(head(path=path), body(CHAT), response_head(200, headers), response_body(first))
        assert stream.response_body() in (b"", first)
        stream.receive(response_body(rest, ends=True))
        if outcome == "refused":
            assert stream.refused == (502, "engine_failed")
            assert "response_headers" not in stream.kinds()
        else:
            assert stream.response_body() == answer
        assert agent.counted() == {"engine_error" if outcome == "refused" else outcome: 1.0}


async def test_a_response_that_ends_while_its_beginning_is_held_has_sent_nothing(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "access.jsonl", 1.0, Random(1))
    async with picking(tmp_path / "agent", access_log=log) as agent:
        stream = PickerStream(parts := parts_of(agent))
        stream.receive(head(), body(CHAT), response_head(200, JSON_TYPE), response_body(ANSWER[:10]))
        assert "response_headers" not in stream.kinds()
        stream.stream.close()
        parts.early_ends.settle_all()
    log.close()
    (line,) = [json.loads(line) for line in (tmp_path / "access.jsonl").read_text().splitlines()]
    assert (line["outcome"], line["status"], line["sent_bytes"]) == ("client_left", 0, 0)
    assert "output_tokens" not in line


async def test_the_beginning_of_a_stream_is_held_until_it_is_no_error_and_not_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = json.dumps({"model": MODEL, "messages": [], "stream": True}).encode()
    broken = b'data: {"error":{"message":"CUDA out of memory","code":500}}\n\n'
    async with picking(tmp_path) as agent:

        def streamed(first: bytes) -> PickerStream:
            stream = PickerStream(parts_of(agent))
            stream.receive(head(), body(chat), response_head(200, {"content-type": "text/event-stream"}))
            stream.receive(response_body(first))
            for active in list(agent.proxy.active):
                active.check(agent.proxy.clock())
            return stream

        assert streamed(broken).refused == (502, "engine_failed")
        stream = streamed(b": ping\n\n")
        assert "response_headers" not in stream.kinds()
        stream.receive(response_body(broken))
        assert stream.refused == (502, "engine_failed")
        assert agent.counted() == {"engine_error": 2.0}

        monkeypatch.setattr(answer_intake, "HOLD_S", -1.0)
        stream = streamed(b": ping\n\n")
        assert stream.kinds()[-1] == "response_headers"
        stream.receive(response_body(broken, ends=True))
        assert stream.response_body() == b": ping\n\n" + broken
        assert agent.counted() == {"engine_error": 3.0}


@pytest.mark.parametrize("status", [101, 199, 600])
async def test_a_status_that_is_none_of_a_response_is_an_error(tmp_path: Path, status: int) -> None:
    async with picking(tmp_path) as agent:
        stream = PickerStream(parts_of(agent))
        stream.receive(head(), body(CHAT), response_head(status, {"upgrade": "websocket"}))
        assert stream.refused == (502, "engine_failed")
        assert agent.held() == 0


async def test_parts_of_a_response_that_arrive_together_share_a_message(tmp_path: Path) -> None:
    async with picking(tmp_path) as agent:
        stream = PickerStream(parts_of(agent))
        stream.receive(head(), body(CHAT), response_head(200, JSON_TYPE))
        stream.sent.clear()
        stream.receive_together(response_body(ANSWER[:10]), response_body(ANSWER[10:]), response_body(b"", ends=True))
        assert stream.kinds() == ["response_headers", "response_body"]
        assert stream.sent[1].response_body.response.body_mutation.streamed_response.end_of_stream
        assert stream.response_body() == ANSWER
        assert agent.counted() == {"ok": 1}

        stream = PickerStream(parts_of(agent))
        stream.receive(head(), body(CHAT), response_head(200, JSON_TYPE))
        stream.receive_together(response_body(ANSWER), trailers("response_trailers"))
        assert stream.kinds()[-2:] == ["response_body", "response_trailers"]
        assert stream.response_body() == ANSWER

        stream, event = PickerStream(parts_of(agent)), b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
        stream.receive(head(), body(STREAM), response_head(200, {"content-type": "text/event-stream"}))
        stream.receive_together(response_body(event))
        assert stream.response_body() == event
        for active in list(agent.proxy.active):
            active.shut_down()
        assert stream.refused is not None


async def test_comments_and_pings_are_neither_the_first_byte_nor_progress(tmp_path: Path) -> None:
    async with picking(tmp_path) as agent:
        picker = PickerStream(parts_of(agent))
        picker.receive(head(), body(STREAM))
        (endpoint,) = [each for each in agent.endpoints.every() if each.local_load.requests]
        endpoint.progress.progressed_at = 0.0
        picker.receive(response_head(200, {"content-type": "text/event-stream"}), response_body(b": ping\n\n"))
        assert endpoint.progress.progressed_at == 0.0
        assert agent.tally.report().begun == 0
        picker.receive(response_body(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'))
        assert endpoint.progress.progressed_at > 0.0
        endpoint.progress.progressed_at = 0.0
        picker.receive(response_body(b": ping\n\n"))
        assert endpoint.progress.progressed_at == 0.0
        picker.receive(response_body(b"data: [DONE]\n\n", ends=True))
        assert agent.tally.report().begun == 1


async def test_a_body_in_one_message_is_replaced_with_its_length(tmp_path: Path) -> None:
    async with picking(tmp_path) as agent:
        stream = PickerStream(parts_of(agent))
        given_head = head((b"content-length", b"%d" % len(STREAM)), request_mode=BUFFERED, response_mode=STREAMED)
        stream.receive(given_head)
        assert stream.kinds() == ["request_headers"]
        assert not stream.destinations, "the body names the model"
        stream.receive(body(STREAM))
        assert stream.kinds() == ["request_headers", "request_body"]
        sent = stream.sent[-1].request_body.response
        assert set_headers(sent.header_mutation)["content-length"] == str(len(sent.body_mutation.body))
        assert stream.destinations
        stream.receive(response_head(200, JSON_TYPE), response_body(ANSWER), response_body(b"", ends=True))
        assert stream.kinds()[2:] == ["response_headers", "response_body", "response_body"], "one answer for each"


TRAILERS = trailers("request_trailers")
CONTINUED = ("with trailers", "whole, then its end")


@pytest.mark.parametrize("arrives", ["whole", "whole, then its end", "in parts", "late", "with trailers"])
@pytest.mark.parametrize("key", [b"Bearer known", b"Bearer unknown"])
async def test_a_head_is_checked_with_its_small_body_or_without_it(tmp_path: Path, arrives: str, key: bytes) -> None:
    known = Tenant("known", "open", (sha256(b"known").hexdigest(),))
    async with picking(tmp_path, anonymous=None) as agent:
        agent.config.policy = replace(agent.config.policy, tenants={"known": known})
        stream = PickerStream(parts_of(agent))
        stream.receive(head((b"authorization", key), (b"content-length", b"%d" % len(CHAT))))
        assert stream.sent == []
        if arrives == "late":
            stream.stream.check_body(agent.proxy.clock())
            assert (stream.refused is None) == (key == b"Bearer known")
        if arrives == "in parts":
            stream.receive(body(CHAT[:5], ends=False))
            assert (stream.refused is None) == (key == b"Bearer known")
        stream.receive(body(CHAT[5:] if arrives == "in parts" else CHAT, ends=arrives not in CONTINUED))
        if arrives == "whole, then its end":
            assert stream.sent == []
            stream.receive(body(b""))
        if arrives == "with trailers":
            stream.receive(TRAILERS)
        if key == b"Bearer unknown":
            assert stream.refused == (401, "invalid_api_key")
        else:
            assert stream.destinations
            assert stream.request_body() == CHAT
            assert not stream.stream._request.body, "Envoy has the body"
        stream.stream.close()


async def test_trailers_end_the_bodies(tmp_path: Path) -> None:
    async with picking(tmp_path) as agent:
        stream = PickerStream(parts_of(agent))
        stream.receive(head(), body(CHAT, ends=False), TRAILERS)
        assert stream.kinds() == ["request_headers", "request_body", "request_trailers"]
        assert not stream.sent[1].request_body.response.body_mutation.streamed_response.end_of_stream
        stream.receive(response_head(200, JSON_TYPE), response_body(ANSWER), trailers("response_trailers"))
        assert agent.counted() == {"ok": 1.0}


async def test_only_endpoints_of_the_subset_are_named(tmp_path: Path) -> None:
    async with picking(tmp_path) as agent:
        for subset, status in (([str(ENGINES[1])], None), (["10.9.9.9:1"], 503), ([], 503)):
            stream = PickerStream(parts_of(agent))
            stream.receive(head(subset=subset), body(CHAT))
            if status is None:
                assert stream.destinations == subset
            else:
                assert stream.refused is not None
                assert stream.refused[0] == status
            stream.stream.close()


async def test_the_reservation_follows_envoys_retry(tmp_path: Path) -> None:
    async with picking(tmp_path) as agent:
        stream = PickerStream(parts_of(agent))
        stream.receive(head(), body(CHAT))
        first, second = stream.destinations
        held = {str(each.address): each for each in agent.endpoints.every()}
        assert held[first].local_load.requests == 1
        stream.receive(response_head(200, JSON_TYPE, served=second))
        assert held[first].local_load.requests == 0
        assert held[second].local_load.requests == 1
        stream.receive(response_body(ANSWER, ends=True))
        mutation = stream.sent[-2].response_headers.response.header_mutation
        assert set_headers(mutation)["x-penstock-endpoint"] == held[second].name


async def test_envoys_retries_end_with_the_list_and_with_the_budget(tmp_path: Path) -> None:
    def asked(agent: Agent, subset: Sequence[str] | None = None) -> list[str]:
        stream = PickerStream(parts_of(agent))
        stream.receive(head(subset=subset), body(CHAT))
        headers = set_headers(stream.sent[0].request_headers.response.header_mutation)
        stream.stream.close()
        return [headers.get(f"x-envoy-{name}", "") for name in ("max-retries", "retry-on", "retriable-status-codes")]

    async with picking(tmp_path) as agent:
        assert asked(agent) == ["1", "reset,retriable-status-codes", "429,500,502,503,529"]
        assert asked(agent, [str(ENGINES[0])]) == ["1", "", ""]
        once = tuple(replace(each, repeatable=False) for each in agent.config.policy.routes)
        agent.config.policy = replace(agent.config.policy, routes=once)
        assert asked(agent) == ["1", "retriable-status-codes", "429,529"]
        while agent.proxy.retry_budget.withdraw(agent.proxy.clock()):
            pass
        assert asked(agent) == ["1", "", ""]


async def test_an_unknown_endpoint_that_has_served_holds_no_slot(tmp_path: Path) -> None:
    async with picking(tmp_path) as agent:
        stream = PickerStream(parts_of(agent))
        stream.receive(head(), body(CHAT), response_head(200, JSON_TYPE, served="10.9.9.9:1"))
        assert agent.held() == 0
        stream.receive(response_body(ANSWER, ends=True))
        assert agent.counted() == {"ok": 1.0}


async def test_an_endpoint_that_envoy_cannot_reach_is_an_error_in_the_format_of_the_api(tmp_path: Path) -> None:
    async with picking(tmp_path) as agent:
        stream = PickerStream(parts_of(agent))
        stream.receive(head(), body(CHAT))
        first = stream.destinations[0]
        (tried,) = [each for each in agent.endpoints.every() if str(each.address) == first]
        stream.receive(response_head(503, details="upstream_reset_before_response_started{connection_failure}"))
        assert stream.refused == (502, "engine_failed")
        assert not tried.view.ready, "as after a failed connection of the agent itself"


@pytest.mark.parametrize(
    ("status", "details", "refused", "outcome", "broke"),
    [
        (503, "upstream_reset_before_response_started{connection_failure}", (502, "engine_failed"), "refused", False),
        (503, "upstream_reset_before_response_started{remote_reset}", (502, "engine_failed"), "engine_cut", True),
        (504, "upstream_response_timeout", (504, "engine_timeout"), "stalled", False),
        (504, "stream_idle_timeout", (504, "engine_timeout"), "stalled", False),
        (503, "overload", (502, "engine_failed"), "refused", False),
        (400, "http1.codec_error", (400, "bad_request"), "client_error", False),
        (408, "stream_idle_timeout", (408, "request_timeout"), "client_error", False),
        (413, "request_payload_too_large", (413, "body_too_large"), "client_error", False),
    ],
)
async def test_what_a_client_causes_is_not_charged_to_its_endpoint(
    tmp_path: Path, status: int, details: str, refused: tuple[int, str], outcome: str, broke: bool
) -> None:
    async with picking(tmp_path) as agent:
        stream = PickerStream(parts_of(agent))
        stream.receive(head(), body(CHAT), response_head(status, details=details))
        assert stream.refused == refused
        assert agent.counted() == {outcome: 1.0}
        assert stream.stream._picked is not None
        assert bool(stream.stream._picked.context.broken) == broke


@pytest.mark.parametrize(
    ("status", "headers", "refused", "outcome"),
    [
        (429, {"retry-after": "3"}, (429, "saturated"), "refused"),
        (503, {"retry-after": "3"}, (429, "saturated"), "refused"),
        (503, {}, (503, "none_ready"), "engine_error"),
        (401, {}, (502, "engine_failed"), "engine_error"),
        (307, {"location": "http://10.1.0.21:8000/v1/chat/completions/"}, (502, "engine_failed"), "engine_error"),
    ],
)
async def test_a_response_that_is_not_for_the_client_is_refused_as_by_the_agent(
    tmp_path: Path, status: int, headers: dict[str, str], refused: tuple[int, str], outcome: str
) -> None:
    """A client whose key the agent accepted would take an engine's 401 for its own."""
    async with picking(tmp_path, ENGINES[:1]) as agent:
        (endpoint,) = agent.endpoints.pools[MODEL].endpoints
        endpoint.spec = replace(endpoint.spec, credential_file="/etc/penstock/credentials/gpu")
        stream = PickerStream(parts_of(agent))
        stream.receive(head(), body(CHAT), response_head(status, JSON_TYPE | headers))
        assert stream.refused == refused
        assert agent.counted() == {outcome: 1.0}


@pytest.mark.parametrize("status", [400, 404, 422, 500])
async def test_other_errors_of_engines_are_the_response(tmp_path: Path, status: int) -> None:
    async with picking(tmp_path) as agent:
        stream = PickerStream(parts_of(agent))
        stream.receive(head(), body(CHAT), response_head(status, JSON_TYPE), response_body(b"{}", ends=True))
        assert (stream.refused, stream.response_body()) == (None, b"{}")
        assert agent.counted() == {"client_error" if status < 500 else "engine_error": 1.0}


@pytest.mark.parametrize("ends", ["with the head", "with an empty body", "with trailers"])
async def test_envoy_receives_the_end_of_an_empty_body(tmp_path: Path, ends: str) -> None:
    route = Route("raw", "/raw/{model}", frozenset({"GET"}), IN_PATH, body=BodyKind.OPAQUE)
    async with picking(tmp_path) as agent:
        agent.config.policy = replace(agent.config.policy, routes=(*agent.config.policy.routes, route))
        stream = PickerStream(parts_of(agent))
        stream.receive(head(path=f"/raw/{MODEL}", method="GET", ends=ends == "with the head"))
        following = {"with an empty body": [body(b"")], "with trailers": [body(b"", ends=False), TRAILERS]}
        stream.receive(*following.get(ends, []))
        expected = {"with an empty body": ["request_body"], "with trailers": ["request_trailers"]}
        assert stream.kinds() == ["request_headers", *expected.get(ends, [])]
        if ends == "with an empty body":
            assert stream.sent[1].request_body.response.body_mutation.streamed_response.end_of_stream
        stream.stream.close()


async def test_a_body_in_one_message_is_whole_though_trailers_follow(tmp_path: Path) -> None:
    async with picking(tmp_path) as agent:
        stream = PickerStream(parts_of(agent))
        stream.receive(head(request_mode=BUFFERED, response_mode=STREAMED), body(CHAT, ends=False), TRAILERS)
        assert stream.kinds() == ["request_headers", "request_body", "request_trailers"]
        with pytest.raises(InvalidTransition):
            stream.receive(TRAILERS)
        stream.stream.close()


async def test_internal_headers_of_clients_do_not_pass(tmp_path: Path) -> None:
    forged = (
        (b"x-gateway-destination-endpoint", b"10.9.9.9:1"),
        (b"x-penstock-route", b"forged"),
        (b"x-penstock-endpoint", b"gpu-9"),
        (b"authorization", b"Bearer secret"),
        (b"x-forwarded-for", b"192.0.2.1"),
        (b"x_penstock_route", b"forged"),
        (b"x-envoy-max-retries", b"100"),
        (b"x-envoy-upstream-rq-timeout-ms", b"1"),
    )
    async with picking(tmp_path, anonymous="open") as agent:
        add_tenant(agent, Tenant("t", "open", key("secret")))
        stream = PickerStream(parts_of(agent))
        stream.receive(head(*forged), body(CHAT))
        mutation = stream.sent[0].request_headers.response.header_mutation
        written = {"x-gateway-destination-endpoint", "x-envoy-max-retries"}
        assert set(mutation.remove_headers) >= {name.decode() for name, _ in forged} - written
        assert set_headers(mutation)["x-envoy-max-retries"] == "1"
        assert set_headers(mutation)["x-gateway-destination-endpoint"] == ",".join(stream.destinations)
        assert "10.9.9.9:1" not in stream.destinations
        stream.stream.close()


def key(name: str) -> tuple[str, ...]:
    return (sha256(name.encode()).hexdigest(),)


def add_tenant(agent: Agent, tenant: Tenant) -> None:
    policy = agent.config.policy
    agent.config.policy = replace(policy, tenants={**policy.tenants, tenant.name: tenant})


BEARER = (b"authorization", b"Bearer secret")


@pytest.mark.parametrize(
    ("messages", "refused"),
    [
        ([head((b"authorization", b"Bearer nothing"))], (401, "invalid_api_key")),
        ([head(BEARER, path="/v1/nothing")], (404, "not_found")),
        ([head(BEARER, (b"content-length", b"999999999"))], (413, "body_too_large")),
        ([head(BEARER, (b"content-length", b"-1"))], (400, "bad_request")),
        ([head(BEARER, BEARER)], (400, "bad_request")),
        ([head(BEARER, *((b"x-%d" % n, b"1") for n in range(200)))], (431, "head_too_large")),
        ([head(BEARER), body(b"x" * 70_000, ends=False)], (413, "body_too_large")),
        ([head(BEARER), body(b"{")], (400, "bad_request")),
        ([head(BEARER), body(b'{"model": "no-such"}')], (404, "model_not_found")),
    ],
)
async def test_refusals_are_immediate_responses(tmp_path: Path, messages: list[Any], refused: tuple[int, str]) -> None:
    async with picking(tmp_path, anonymous=None) as agent:
        add_tenant(agent, Tenant("t", "open", key("secret")))
        stream = PickerStream(parts_of(agent))
        stream.receive(*messages)
        assert stream.refused == refused
        assert stream.kinds() == ["immediate_response"]
        assert "x-request-id" in set_headers(stream.sent[0].immediate_response.headers)


@pytest.mark.parametrize(
    ("before", "status", "details", "refused"),
    [
        ([], 400, "missing_host_header", (400, "bad_request")),
        ([], 400, "path_normalization_failed", (400, "bad_request")),
        ([], 403, "upgrade_failed", (400, "bad_request")),
        ([], 431, "http1.headers_too_large", (431, "head_too_large")),
        ([], 503, "overload", (503, "none_ready")),
        ([head(BEARER), body(CHAT[:9], ends=False)], 400, "http1.codec_error", (400, "bad_request")),
        ([head(BEARER), body(CHAT[:9], ends=False)], 408, "stream_idle_timeout", (408, "request_timeout")),
    ],
)
async def test_what_envoy_refuses_before_it_has_a_target_is_an_error_in_the_format_of_the_api(
    tmp_path: Path, before: list[Any], status: int, details: str, refused: tuple[int, str]
) -> None:
    async with picking(tmp_path, anonymous=None) as agent:
        add_tenant(agent, Tenant("t", "open", key("secret")))
        stream = PickerStream(parts_of(agent))
        stream.receive(*before, response_head(status, details=details))
        assert stream.refused == refused
        stream.stream.close()


async def test_health_checks_of_load_balancers_before_envoy_need_no_key(tmp_path: Path) -> None:
    async with picking(tmp_path, anonymous=None) as agent:
        (readiness, endpoints), parts = (agent.service._readiness, agent.endpoints), parts_of(agent)

        def checked(path: str) -> tuple[int, bytes, str | None]:
            stream = PickerStream(parts)
            stream.receive(head(path=path, method="GET", ends=True))
            response = stream.sent[-1].immediate_response
            return response.status.code, response.body, set_headers(response.headers).get("x-penstock-weight")

        assert checked("/readyz") == (200, b"ok\n", "1.00")
        assert checked("/livez") == (200, b"ok\n", None)
        for endpoint in endpoints.every():
            endpoint.view.ready = False
        endpoints.pools[MODEL].recount()
        assert checked("/readyz") == (503, b"not ready: no endpoint is ready\n", None)
        readiness.shutting_down = True
        assert checked("/readyz") == (503, b"not ready: shutting down\n", None)
        assert checked("/livez") == (200, b"ok\n", None)


@pytest.mark.parametrize("converter", ["comfyui", "comfyui-file"])
async def test_what_the_agent_converts_is_sent_to_no_endpoint(tmp_path: Path, converter: Any) -> None:
    """An endpoint would return the files of other tenants, of which the agent checks whose they are."""
    route = Route("own", "/raw/{model}", frozenset({"GET"}), IN_PATH, body=BodyKind.OPAQUE, converter=converter)
    async with picking(tmp_path) as agent:
        agent.config.policy = replace(agent.config.policy, routes=(*agent.config.policy.routes, route))
        stream = PickerStream(parts_of(agent))
        stream.receive(head(path=f"/raw/{MODEL}", method="GET", ends=True))
        assert stream.refused == (501, "not_offered")
        stream.stream.close()


@pytest.mark.parametrize("details", ["", "via_upstream"])
async def test_a_response_of_an_endpoint_that_the_picker_has_not_named_is_no_answer(
    tmp_path: Path, details: str
) -> None:
    async with picking(tmp_path) as agent:
        stream = PickerStream(parts_of(agent))
        with pytest.raises(InvalidTransition):
            stream.receive(response_head(200, details=details))
        stream.stream.close()


async def test_a_forbidden_region_and_a_used_up_budget_refuse_before_the_body(tmp_path: Path) -> None:
    only_us = ResidencyRule("us", data_classes=frozenset({"personal"}), allow=frozenset({"us-east"}))
    tenant = Tenant("t", "open", key("secret"), quota=Quota(None, None, 1))
    async with picking(tmp_path, anonymous=None) as agent:
        policy = agent.config.policy
        abroad = Tenant("abroad", "personal", key("abroad"))
        tenants = {**policy.tenants, "t": tenant, "abroad": abroad}
        agent.config.policy = replace(policy, tenants=tenants, residency=(only_us,))
        stream = PickerStream(parts_of(agent))
        stream.receive(head((b"authorization", b"Bearer abroad")))
        assert stream.refused == (421, "misdirected")
        first, second = PickerStream(parts_of(agent)), PickerStream(parts_of(agent))
        first.receive(head(BEARER), body(CHAT))
        assert first.destinations
        second.receive(head(BEARER))
        assert second.refused == (429, "rate_limit_exceeded")
        first.stream.close()


async def test_authorized_requests_may_be_copied_for_a_version_in_a_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a rollout waits for copies, and would never begin where all requests come through Envoy."""
    copied: list[tuple[str, str, bytes]] = []

    def consider(plan: RegionPlan, context: RequestContext, peer_ip: str) -> None:
        copied.append((context.model, peer_ip, bytes(context.request.body)))

    async with picking(tmp_path) as agent:
        monkeypatch.setattr(agent.service.copies, "consider", consider)
        agent.service._reader.plan = plan("eu-de", "eu-de+eu-es+us-east", eu_de=1.0)
        stream, refused = PickerStream(parts_of(agent), "10.1.0.7"), PickerStream(parts_of(agent))
        stream.receive(head(), body(CHAT[:9], ends=False), body(CHAT[9:]))
        refused.receive(head(), body(b'{"model": "no-such"}'))
        assert copied == [(MODEL, "10.1.0.7", CHAT)]
        stream.stream.close()


async def test_a_request_waits_while_all_endpoints_are_full(tmp_path: Path) -> None:
    async with picking(tmp_path, ENGINES[:1], slots=1, queue=0) as agent:
        first, second, third = (PickerStream(parts_of(agent)) for _ in range(3))
        first.receive(head(), body(CHAT))
        second.receive(head(), body(CHAT))
        third.receive(head(), body(CHAT))
        assert first.destinations
        assert second.talk.state is third.talk.state is StreamState.QUEUED
        third.stream.close()
        assert agent.waiting() == 1
        first.receive(response_head(200, JSON_TYPE), response_body(ANSWER, ends=True))
        await until(lambda: bool(second.destinations))
        assert second.request_body() == CHAT
        second.receive(response_head(429, ends=True))
        assert second.refused == (429, "saturated")
        assert agent.counted() == {"ok": 1.0, "client_left": 1.0, "refused": 1.0}


async def test_bodies_that_never_end_stay_within_the_memory_of_all_bodies(tmp_path: Path) -> None:
    limits = Limits(max_kept_bytes=400_000, max_body_bytes=64_000, idle_linger_s=0.0)
    async with picking(tmp_path, limits=limits) as agent:
        parts, bodies = parts_of(agent), agent.listener.state.bodies
        streams = [PickerStream(parts) for _ in range(1000)]
        for stream in streams:
            stream.receive(head(), body(b'{"a":"' + b"x" * 10_000, ends=False))
            assert bodies.bytes_kept <= 400_000
        refused = [stream for stream in streams if stream.talk.is_done]
        assert {stream.refused for stream in refused} == {(429, "saturated")}
        assert len(refused) >= 950
        slow = [stream for stream in streams if not stream.talk.is_done]
        for stream in slow:
            stream.stream.check_body(inf)
            assert stream.refused == (408, "request_timeout")


@pytest.mark.parametrize(("request_mode", "response_mode"), [(NONE, STREAMED), (STREAMED, STREAMED), (BUFFERED, NONE)])
async def test_modes_that_hide_a_body_are_rejected(tmp_path: Path, request_mode: int, response_mode: int) -> None:
    async with picking(tmp_path) as agent:
        stream = PickerStream(parts_of(agent))
        with pytest.raises(BadMode, match="ext_proc"):
            stream.receive(head(request_mode=request_mode, response_mode=response_mode))
        stream.stream.close()


MESSAGES: list[Any] = [
    head(),
    head(ends=True),
    head(request_mode=BUFFERED, response_mode=STREAMED),
    head((b"authorization", b"Bearer nothing")),
    head(path="/v1/models", method="GET", ends=True),
    body(CHAT),
    body(CHAT[:5], ends=False),
    body(CHAT[5:], ends=True),
    body(b"x" * 70_000, ends=False),
    TRAILERS,
    response_head(200, JSON_TYPE),
    response_head(200, {"content-type": "text/event-stream"}),
    response_head(503, ends=True),
    response_head(0),
    response_head(200, details="no_healthy_upstream"),
    response_head(408, details="stream_idle_timeout"),
    response_head(200, served="10.9.9.9:1"),
    response_body(ANSWER),
    response_body(ANSWER, ends=True),
    trailers("response_trailers"),
]


async def test_no_order_of_messages_leaves_anything_held(tmp_path: Path) -> None:
    async with picking(tmp_path, anonymous="open") as agent:
        parts = parts_of(agent)

        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(st.sampled_from(range(len(MESSAGES))), max_size=8), st.booleans())
        def check(order: list[int], starts_well: bool) -> None:
            stream = PickerStream(parts)
            messages = [MESSAGES[0], MESSAGES[5]] if starts_well else []
            try:
                stream.receive(*messages, *(MESSAGES[number] for number in order))
            except InvalidTransition:
                pass
            finally:
                stream.stream.close()
                parts.early_ends.settle_all()
            assert stream.talk.is_done
            assert agent.held() == 0
            assert parts.bodies.bytes_kept == 0
            assert not list(agent.proxy.active)
            assert stream.kinds().count("immediate_response") <= 1

        check()


async def test_inferences_over_grpc_go_to_endpoints_with_a_port_for_them(tmp_path: Path) -> None:
    path, types = "/inference.GRPCInferenceService/ModelInfer", (b"content-type", b"application/grpc")
    message = infer_request(MODEL)
    framed = body(b"\0" + len(message).to_bytes(4) + message)
    async with picking(tmp_path) as agent:
        agent.config.policy = replace(agent.config.policy, routes=(*agent.config.policy.routes, *KSERVE_ROUTES))
        endpoint = agent.endpoints.pools[MODEL].endpoints[1]
        endpoint.spec = replace(endpoint.spec, grpc_port=9001)
        for subset, expected in ((None, ["127.0.0.1:9001"]), (["127.0.0.1:9001"], ["127.0.0.1:9001"])):
            for _ in range(3):
                stream = PickerStream(parts_of(agent, forwards=True))
                stream.receive(head(types, path=path, subset=subset), framed)
                assert stream.destinations == expected
                stream.stream.close()
        ends = [({"grpc-status": "0"}, "ok"), ({"grpc-status": "8"}, "client_error"), ({}, "engine_error")]
        for status, outcome in (*ends, (None, "engine_error")):
            before = agent.counted().get(outcome, 0.0)
            stream = PickerStream(parts_of(agent))
            stream.receive(head(types, path=path), framed, response_head(200, {"content-type": "application/grpc"}))
            stream.receive(response_body(b"", ends=True) if status is None else trailers("response_trailers", status))
            assert agent.counted()[outcome] == before + 1.0
        stream = PickerStream(parts_of(agent))
        stream.receive(
            head(types, path=path, subset=[str(ENGINES[0])]), body(b"\0" + len(message).to_bytes(4) + message)
        )
        assert stream.sent[-1].immediate_response.grpc_status.status == 14
