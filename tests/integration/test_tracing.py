"""Spans of requests, as a collector decodes them: one trace over two regions, sampling, and a lost collector."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from adapters.servers.etcd import EtcdServer
from penstock.policy.geography import Location
from regional_agent.telemetry.agent_metrics import AgentMetrics
from regional_agent.telemetry.tracing import span_exporter, tracer
from regional_agent.telemetry.tracing.span_builder import SERVER, Span
from tests.support.agent_processes import AgentProcess, publish, write_endpoints
from tests.support.agents import running_agent
from tests.support.chats import BODY, NOBODY, SSE_HEAD, answers, ask, chunk
from tests.support.otlp_collector import attributes, collector
from tests.support.planet import MODEL, plan, policy
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.streamed_chats import chat, in_turn, is_complete, streams_chat
from tests.support.wait import PATIENCE_S, until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
USAGE = b'data: {"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\ndata: [DONE]\n\n'


def traceparent(sampled: bool) -> str:
    return f"Traceparent: 00-{TRACE}-{PARENT}-0{int(sampled)}"


async def streams(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(SSE_HEAD + chunk(b"data: 1\n\n") + chunk(USAGE) + b"0\r\n\r\n")


async def fails(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 500 X\r\nContent-Length: 2\r\n\r\n{}")


def dropped(metrics: AgentMetrics) -> float:
    return metrics.registry.get_sample_value("penstock_agent_trace_spans_dropped_total") or 0.0


async def test_a_forwarded_request_is_one_trace_from_the_client_to_the_engine(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es", eu_es=1.0)
    async with collector() as otlp, engine(streams) as far:
        there, here = otlp.exporter("eu-es"), otlp.exporter("eu-de")
        async with (
            running_agent(
                tmp_path / "server", [far.address], region="eu-es", anonymous=None, exporter=there, trace_share=0.0
            ) as server,
            running_agent(
                tmp_path / "origin", [], anonymous="personal", plan=away, peers={"eu-es": server.peer}, exporter=here
            ) as origin,
        ):
            origin.location = Location("DE")
            answer = await ask(origin, traceparent(sampled=False), "Tracestate: a=1", "X-Request-Id: far-1")
            assert (answer.status, answer.headers["x-penstock-region"]) == (200, "eu-es")
            received = far.requests[0]
        await there.close()
        await here.close()
        origin_spans, server_spans = otlp.named("eu-de"), otlp.named("eu-es")

    assert {span.trace_id.hex() for _, span in otlp.spans} == {TRACE}
    request, attempt = origin_spans["POST /v1/chat/completions"], origin_spans[f"chat {MODEL}"]
    served, generated = server_spans["POST /v1/chat/completions"], server_spans[f"chat {MODEL}"]
    assert request.parent_span_id.hex() == PARENT
    assert attempt.parent_span_id == request.span_id
    assert served.parent_span_id == attempt.span_id, "the serving region continues the attempt of the origin"
    assert generated.parent_span_id == served.span_id
    assert received.header("traceparent") == f"00-{TRACE}-{generated.span_id.hex()}-01"
    assert received.header("tracestate") == "a=1"
    assert set(origin_spans) == {request.name, "authorization", "selection", attempt.name}
    assert set(server_spans) == {served.name, "authorization", "selection", generated.name, "prefill", "stream"}
    assert {server_spans[name].parent_span_id for name in ("prefill", "stream")} == {generated.span_id}
    for _, span in otlp.spans:
        assert span.start_time_unix_nano <= span.end_time_unix_nano
    assert request.kind == SERVER

    of_request, of_attempt = attributes(request), attributes(generated)
    assert of_request["http.response.status_code"] == 200
    assert of_request["gen_ai.request.model"] == MODEL
    assert of_request["penstock.request_id"] == "far-1"
    assert of_request["penstock.tenant"] == "personal"
    assert "eu-es" in of_request["penstock.permitted_regions"]
    assert of_request["penstock.server"] == of_attempt["penstock.server"] == "eu-es"
    assert (of_attempt["gen_ai.usage.input_tokens"], of_attempt["gen_ai.usage.output_tokens"]) == (7, 2)
    assert of_attempt["gen_ai.response.time_to_first_chunk"] >= 0
    assert of_attempt["server.port"] == far.address.port


async def test_each_attempt_is_a_span_with_its_reason(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with collector() as otlp, engine(answers) as near:
        exporter = otlp.exporter()
        async with running_agent(
            tmp_path, [near.address], plan=away, peers={"eu-es": NOBODY}, exporter=exporter
        ) as origin:
            assert (await ask(origin)).status == 200
        await exporter.close()
    attempts = [span for _, span in otlp.spans if span.name == f"chat {MODEL}"]
    assert [attributes(span).get("penstock.reason") for span in attempts] == ["connect_failed", None]
    assert [attributes(span)["penstock.server"] for span in attempts] == ["eu-es", "eu-de"]
    assert [span.status.code for span in attempts] == [2, 0]
    assert near.requests[0].header("traceparent")[36:52] == attempts[1].span_id.hex()
    request = next(span for _, span in otlp.spans if span.kind == SERVER)
    assert attributes(request)["penstock.rejected_regions"] == ["eu-es=unreachable"]


async def test_the_continuation_of_a_stream_is_an_attempt(tmp_path: Path) -> None:
    script = in_turn(streams_chat(1, 5), streams_chat(2))
    async with collector() as otlp, engine(script) as first, engine(script) as second:
        exporter = otlp.exporter()
        async with running_agent(tmp_path, [first.address, second.address], exporter=exporter) as origin:
            origin.continue_streams()
            assert is_complete((await chat(origin))[2])
            await until(lambda: origin.counted() == {"ok": 1})
        await exporter.close()
    names = [span.name for _, span in otlp.spans]
    attempt = [f"chat {MODEL}", "prefill", "stream"]
    assert names == ["POST /v1/chat/completions", "authorization", "selection", *attempt, "selection", *attempt]
    reasons = [attributes(span).get("penstock.reason") for _, span in otlp.spans if span.name == attempt[0]]
    assert reasons == ["engine_failed", None]


@pytest.mark.parametrize(
    ("trusted", "sampled", "share", "kept"),
    [(True, True, 0.0, True), (True, False, 1.0, False), (False, True, 0.0, False), (False, False, 1.0, True)],
)
async def test_only_trusted_callers_determine_sampling(
    tmp_path: Path, trusted: bool, sampled: bool, share: float, kept: bool
) -> None:
    async with collector() as otlp, engine(answers) as near:
        exporter = otlp.exporter()
        async with running_agent(
            tmp_path, [near.address], trusted=trusted, exporter=exporter, trace_share=share
        ) as origin:
            await ask(origin, traceparent(sampled))
        await exporter.close()
    assert bool(otlp.spans) is kept


async def test_failed_requests_are_exported_at_any_sampling_share(tmp_path: Path) -> None:
    async with collector() as otlp, engine(fails) as near:
        exporter = otlp.exporter()
        async with running_agent(tmp_path, [near.address], exporter=exporter, trace_share=0.0) as origin:
            assert (await ask(origin)).status == 500
            assert (await ask(origin, body=b"{")).status == 400
        await exporter.close()
    assert [attributes(span)["error.type"] for _, span in otlp.spans if span.kind == SERVER] == ["500"]


@pytest.mark.parametrize(("slow_s", "kept"), [(0.0, True), (30.0, False)])
async def test_slow_requests_are_exported_at_any_sampling_share(tmp_path: Path, slow_s: float, kept: bool) -> None:
    async with collector() as otlp, engine(answers) as near:
        exporter = otlp.exporter()
        async with running_agent(
            tmp_path, [near.address], exporter=exporter, trace_share=0.0, trace_slow_s=slow_s
        ) as origin:
            assert (await ask(origin)).status == 200
        await exporter.close()
    assert bool(otlp.spans) is kept


async def test_a_request_that_is_not_admitted_is_a_span_with_the_reason(tmp_path: Path) -> None:
    async with collector() as otlp:
        exporter = otlp.exporter()
        async with running_agent(tmp_path, [], anonymous=None, exporter=exporter) as origin:
            assert (await ask(origin, traceparent(sampled=False))).status == 401
        await exporter.close()
    request = otlp.named("eu-de")["POST /v1/chat/completions"]
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
    assert attributes(request)["penstock.reason"] == "invalid_api_key"


def a_span(name: str = "a") -> Span:
    return Span(TRACE, PARENT, name, SERVER, "1", "2", [])


async def test_spans_are_kept_for_an_unavailable_collector_and_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_exporter, "INTERVAL_S", 0.01)
    metrics = AgentMetrics()
    async with collector() as otlp:
        exporter = otlp.exporter(metrics=metrics)
        otlp.answer = (503, b"")
        exporter.add([a_span(), a_span("b")])
        running = asyncio.create_task(exporter.run())
        await otlp.http.asked.wait()
        otlp.answer = (200, b'{"partialSuccess":{"rejectedSpans":"1"}}')
        await until(lambda: bool(otlp.spans))
        await until(lambda: dropped(metrics) == 1)
        running.cancel()
        await exporter.close()
    assert [span.name for _, span in otlp.spans] == ["a", "b"]


async def test_spans_in_flight_when_the_agent_stops_are_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_exporter, "INTERVAL_S", 0.01)
    async with collector() as otlp:
        exporter = otlp.exporter()
        otlp.http.answering.clear()
        exporter.add([a_span()])
        running = asyncio.create_task(exporter.run())
        await otlp.http.asked.wait()
        exporter.add([a_span("b")])
        running.cancel()
        closing = asyncio.create_task(exporter.close())
        await asyncio.wait([running])
        otlp.http.answering.set()
        await closing
    assert [span.name for _, span in otlp.spans] == ["a", "b"]


async def test_a_collector_that_does_not_answer_delays_the_stop_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(span_exporter, "INTERVAL_S", 0.01)
    monkeypatch.setattr(span_exporter, "LAST_TIMEOUT_S", 0.01)
    metrics = AgentMetrics()
    async with collector() as otlp:
        exporter = otlp.exporter(metrics=metrics)
        otlp.http.answering.clear()
        exporter.add([a_span()])
        running = asyncio.create_task(exporter.run())
        await otlp.http.asked.wait()
        running.cancel()
        await exporter.close()
        otlp.http.answering.set()
    assert dropped(metrics) == 1


async def test_dropped_and_rejected_spans_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_exporter, "MAX_QUEUED_BYTES", 300)
    metrics = AgentMetrics()
    async with collector() as otlp:
        exporter = otlp.exporter(metrics=metrics)
        otlp.answer = (400, b"")
        exporter.add([a_span()])
        exporter.add([a_span(), a_span()])
        assert dropped(metrics) == 2
        await exporter.close()
        assert dropped(metrics) == 3
        assert otlp.http.requests == 1


async def test_failed_requests_are_exported_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer, "MAX_KEPT_PER_S", 2)
    async with collector() as otlp, engine(fails) as near:
        exporter = otlp.exporter()
        async with running_agent(tmp_path, [near.address], exporter=exporter, trace_share=0.0) as origin:
            origin.proxy.recorder.wall_clock = lambda: 1000.0
            for _ in range(4):
                await ask(origin)
        await exporter.close()
    assert sum(span.kind == SERVER for _, span in otlp.spans) == 2


async def test_a_stopping_agent_sends_the_remaining_spans(tmp_path: Path, own_etcd: EtcdServer) -> None:
    await publish(own_etcd, msgspec.structs.replace(policy(), anonymous_tenant="open"))
    async with collector() as otlp, engine(answers) as gpu:
        process = AgentProcess(
            "a",
            tmp_path,
            region="eu-de",
            etcd_endpoint=own_etcd.endpoint,
            redis_url=None,
            endpoints_file=write_endpoints(tmp_path / "endpoints.yaml", [gpu.address], slots=1),
            settings={"OTLP_ENDPOINT": otlp.http.url, "TRACE_SHARE": "1"},
        )
        process.start()
        try:
            await asyncio.to_thread(process.wait_ready, PATIENCE_S)
            client = await RawClient.connect(process.faces()["traffic"])
            client.send(post(BODY))
            assert (await client.answer()).status == 200
            client.close()
        finally:
            await asyncio.to_thread(process.stop)
    assert [attributes(span)["penstock.server"] for _, span in otlp.spans if span.kind == SERVER] == ["eu-de"]
    resource, _ = otlp.spans[0]
    assert (resource["service.name"], resource["service.instance.id"]) == ("penstock-agent", "eu-de/a")
