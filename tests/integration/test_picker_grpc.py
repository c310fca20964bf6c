"""Inferences over gRPC (KServe V2) through a real Envoy and the picker, to a stand-in that speaks Triton's protocol."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.routes.presets.kserve import KSERVE_ROUTES
from regional_agent.telemetry.access_log import AccessLog
from regional_agent.upstream.address import Address
from tests.support.agents import Agent, running_agent
from tests.support.envoys import clusters, lb_endpoints, running_envoy, running_picker
from tests.support.grpc_client import GrpcClient, grpc_client
from tests.support.planet import MODEL
from tests.support.triton import INFER, STREAM_INFER, UNAVAILABLE, Triton, infer_request, running_triton
from tests.support.wait import until

INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION, UNIMPLEMENTED, UNAUTHENTICATED = 3, 5, 9, 12, 16
RESOURCE_EXHAUSTED, INTERNAL = 8, 13


class Way(NamedTuple):
    """A client, through Envoy, and what is behind it."""

    client: GrpcClient
    triton: Triton
    agent: Agent
    log: Path


@asynccontextmanager
async def through_envoy(directory: Path) -> AsyncIterator[Way]:
    log = AccessLog(directory / "access.jsonl", 1.0, Random(1))
    async with running_triton() as triton:
        # The HTTP port of the endpoint, to which no inference is sent.
        http = Address("127.0.0.1", 9)

        def use_grpc(config: dict[str, Any]) -> None:
            clusters(config)["eu-grpc"]["load_assignment"]["endpoints"] = [
                {"lb_endpoints": lb_endpoints([triton.address])}
            ]

        options = {"grpc_port": triton.address.port}
        async with (
            running_agent(directory / "agent", [http], options=options, access_log=log) as agent,
            running_picker(agent) as picker,
            running_envoy(directory, picker, [http], use_grpc) as front,
            grpc_client(front) as client,
        ):
            policy = agent.config.policy
            agent.config.policy = replace(policy, routes=(*policy.routes, *KSERVE_ROUTES))
            yield Way(client, triton, agent, directory / "access.jsonl")
    log.close()


async def test_inferences_over_grpc_are_placed_and_accounted_by_their_first_message(tmp_path: Path) -> None:
    async with through_envoy(tmp_path) as way:
        call = way.client.call(INFER)
        call.write(infer_request(MODEL, b"\x07" * 50_000))
        await way.client.drain()
        call.done_writing()
        answer = await call.read()
        assert (answer or b"").endswith(b"\x07" * 4), (call.status, call.detail)
        assert await call.ended() == 0
        assert way.triton.received == [(INFER, infer_request(MODEL, b"\x07" * 50_000))]
        # A stream: each message is answered before the next one is sent.
        call = way.client.call(STREAM_INFER)
        for number in range(3):
            call.write(infer_request(MODEL, bytes([number] * 4)))
            assert (await call.read() or b"").endswith(bytes([number] * 4))
        call.done_writing()
        assert await call.ended() == 0
        await until(lambda: way.agent.counted() == {"ok": 2.0})
        # The status of gRPC is in the trailers, after a head with 200.
        way.triton.statuses = [UNAVAILABLE]
        call = way.client.call(INFER)
        call.write(infer_request(MODEL))
        call.done_writing()
        assert await call.ended() == UNAVAILABLE
        await until(lambda: sum(way.agent.counted().values()) == 3)
        assert way.agent.counted()["ok"] == 2.0
        assert way.agent.held() == 0
        for metadata, message, status, words in (
            ((), infer_request("nothing"), NOT_FOUND, "nothing"),
            ((), b"\x1a\x01a", INVALID_ARGUMENT, "names no model"),
            ((), infer_request(MODEL) + infer_request("other"), INVALID_ARGUMENT, "two models"),
            ((("authorization", "Bearer wrong"),), infer_request(MODEL), UNAUTHENTICATED, "key"),
        ):
            call = way.client.call(INFER, *metadata)
            call.write(message)
            call.done_writing()
            assert (await call.ended(), words in call.detail) == (status, True), call.detail
        assert len(way.triton.received) == 5
    lines = [json.loads(line) for line in way.log.read_text().splitlines()]
    assert [line["outcome"] for line in lines[:3]] == ["ok", "ok", "engine_error"]
    assert {line["model"] for line in lines[:3]} == {MODEL}


@pytest.mark.parametrize(
    ("status", "reason", "charged"),
    [(RESOURCE_EXHAUSTED, "engine_busy", 0), (INTERNAL, "engine_error", 1), (UNAVAILABLE, "engine_error", 1)],
)
async def test_envoy_repeats_an_inference_that_an_engine_fails_or_rejects(
    tmp_path: Path, status: int, reason: str, charged: int
) -> None:
    async with running_triton() as broken, running_triton() as good:
        broken.statuses = [status] * 9
        tritons = [broken.address, good.address]
        http = [Address("127.0.0.1", 9), Address("127.0.0.1", 10)]

        def use_grpc(config: dict[str, Any]) -> None:
            clusters(config)["eu-grpc"]["load_assignment"]["endpoints"] = [{"lb_endpoints": lb_endpoints(tritons)}]

        async with (
            running_agent(tmp_path / "agent", http) as agent,
            running_picker(agent) as picker,
            running_envoy(tmp_path, picker, http, use_grpc) as front,
            grpc_client(front) as client,
        ):
            agent.config.policy = replace(agent.config.policy, routes=(*agent.config.policy.routes, *KSERVE_ROUTES))
            first, second = agent.endpoints.pools[MODEL].endpoints
            first.spec = replace(first.spec, grpc_port=broken.address.port)
            second.spec = replace(second.spec, grpc_port=good.address.port)
            while not broken.received:
                call = client.call(INFER)
                call.write(infer_request(MODEL))
                call.done_writing()
                assert (await call.read() or b"").endswith(b"\x04"), (call.status, call.detail)
                assert await call.ended() == 0
            assert broken.received[0] == good.received[-1]
            await until(lambda: agent.counted() == {"ok": float(len(good.received))})
            assert (first.ejection.failures, agent.held()) == (charged, 0)
            assert agent.retried() == {reason: 1.0}


@pytest.mark.parametrize("method", [INFER, STREAM_INFER])
async def test_a_stream_that_changes_its_model_is_ended(tmp_path: Path, method: str) -> None:
    async with through_envoy(tmp_path) as way:
        call = way.client.call(method)
        call.write(infer_request(MODEL))
        await until(lambda: len(way.triton.received) == 1)
        call.write(infer_request("other"))
        await call.ended()
        assert len(way.triton.received) == 1, "the engine does not receive the message"
        await until(lambda: way.agent.held() == 0)


@pytest.mark.parametrize(
    ("cut", "outcome", "charged"),
    [("abort", "engine_cut", 1), ("reset", "engine_cut", 1), ("no status", "engine_error", 0)],
)
@pytest.mark.parametrize("method", [INFER, STREAM_INFER])
async def test_an_inference_that_breaks_off_is_its_endpoints_fault(
    tmp_path: Path, method: str, cut: str, outcome: str, charged: int
) -> None:
    async with through_envoy(tmp_path) as way:
        way.triton.cut = cut
        call = way.client.call(method)
        call.write(infer_request(MODEL))
        assert (await call.read() or b"").endswith(b"\x04")
        way.triton.cut_now.set()
        assert await call.ended() != 0
        await until(lambda: way.agent.counted() == {outcome: 1.0})
        (endpoint,) = way.agent.endpoints.every()
        # One error in place of an answer may be the fault of the request.
        assert (endpoint.ejection.failures, way.agent.held()) == (charged, 0)


@pytest.mark.parametrize("leaves", ["cancels", "disconnects"])
async def test_a_client_that_leaves_an_inference_charges_no_endpoint(tmp_path: Path, leaves: str) -> None:
    async with through_envoy(tmp_path) as way:
        call = way.client.call(STREAM_INFER)
        call.write(infer_request(MODEL))
        assert (await call.read() or b"").endswith(b"\x04")
        call.cancel() if leaves == "cancels" else way.client.close()
        await until(lambda: way.agent.counted() == {"client_left": 1.0})
        (endpoint,) = way.agent.endpoints.every()
        assert (endpoint.ejection.failures, way.agent.held()) == (0, 0)
        assert way.agent.metrics.registry.get_sample_value("penstock_agent_unreported_ends_total") == 0


async def test_only_endpoints_with_a_port_for_grpc_of_this_region_receive_inferences(tmp_path: Path) -> None:
    async with through_envoy(tmp_path) as way:
        pool = way.agent.endpoints.pools[MODEL]
        policy = way.agent.config.policy

        async def refused() -> tuple[int | None, str]:
            call = way.client.call(INFER)
            call.write(infer_request(MODEL))
            call.done_writing()
            return await call.ended(), call.detail

        port = pool.endpoints[0].spec.grpc_port
        pool.endpoints[0].spec = replace(pool.endpoints[0].spec, grpc_port=None)
        status, detail = await refused()
        assert (status, "grpc_port" in detail) == (UNIMPLEMENTED, True), detail
        pool.endpoints[0].spec = replace(pool.endpoints[0].spec, grpc_port=port)
        only_us = ResidencyRule("us", tenants=frozenset(), allow=frozenset({"us-east"}))
        way.agent.config.policy = replace(policy, residency=(only_us,))
        status, detail = await refused()
        assert status == FAILED_PRECONDITION, detail
        way.agent.config.policy = policy
        assert (await refused())[0] == 0
        assert len(way.triton.received) == 1
        assert way.agent.held() == 0
