"""The endpoint picker behind a real Envoy with the shipped configuration."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import yaml
from msgspec.structs import replace
from structlog.testing import capture_logs

from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY
from adapters.servers.free_ports import LOOPBACK
from adapters.tls_contexts import ServerTls
from penstock.policy.geography import Location
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.kinds.tenants import Quota, Tenant
from penstock.wire.identity import ProcessRole, SpiffeId, TrustBundle
from regional_agent.http.limits import Limits
from regional_agent.jobs.api import job_paths
from regional_agent.picker.envoy_responses import NOT_SERVING, SERVING
from regional_agent.picker.grpc_stream import (
    FAILED_PRECONDITION,
    INVALID_ARGUMENT,
    NOT_FOUND,
    OK,
    UNAVAILABLE,
    UNIMPLEMENTED,
)
from regional_agent.picker.picker_server import PickerServer, PickerTls
from regional_agent.picker.processing_request import HEALTH_SERVICE, SERVICE
from regional_agent.telemetry.access_log import AccessLog
from regional_agent.upstream.address import Address
from tests.support.agents import running_agent
from tests.support.chats import BODY, NOBODY, SSE_HEAD, chunk, code, streams_forever
from tests.support.envoys import (
    Config,
    clusters,
    ext_proc,
    http_manager,
    lb_endpoints,
    running_envoy,
    running_picker,
    running_translator,
)
from tests.support.ext_proc_messages import HealthCheckRequest, HealthCheckResponse
from tests.support.grpc_client import grpc_client
from tests.support.identities import FLEET, agent_id, authority, trust, write_identity
from tests.support.paths import ROOT
from tests.support.picker_streams import CHAT, body, head, parts_of
from tests.support.planet import MODEL, plan
from tests.support.relay import Relay
from tests.support.sockets import RawClient, ReceivedRequest, Script, ScriptedEngine, engine, post
from tests.support.wait import PATIENCE_S, until

PROCESS = f"/{SERVICE}/Process"

EVENTS = (
    b'data: {"id":"c1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n',
    b'data: {"id":"c1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b'data: {"id":"c1","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}'
    b"\n\ndata: [DONE]\n\n",
)


async def streams(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(SSE_HEAD)
    for event in EVENTS:
        writer.write(chunk(event))
        await writer.drain()
    writer.write(chunk(b""))


async def read_stream(client: RawClient) -> bytes:
    body = b""
    while part := await client.chunk():
        body += part
    return body


async def test_a_streamed_chat_through_envoy_is_placed_and_accounted_by_the_agent(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "access.jsonl", 1.0, Random(1))
    async with engine(streams) as first, engine(streams) as second:
        addresses = [first.address, second.address]
        async with (
            running_agent(tmp_path / "agent", addresses, access_log=log) as agent,
            running_picker(agent) as picker,
            running_envoy(tmp_path, picker, addresses) as front,
        ):
            for _ in range(4):
                client = await RawClient.connect(front)
                client.send(post(BODY))
                status, headers = await client.head()
                assert status == 200, await client.reader.read(1000)
                assert headers["x-penstock-endpoint"] in ("gpu-0", "gpu-1")
                assert await read_stream(client) == b"".join(EVENTS)
                client.close()
            await until(lambda: sum(agent.counted().values()) == 4)
            assert agent.counted() == {"ok": 4.0}
            assert agent.held() == 0
            assert len(first.requests) + len(second.requests) == 4
            received = (first.requests + second.requests)[0]
            assert json.loads(received.body) == json.loads(BODY)
            assert received.header("x-gateway-destination-endpoint")
            assert agent.proxy.via.decode() in (received.header("via") or "")
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "access.jsonl").read_text().splitlines()]
    assert [(line["outcome"], line["status"], line["input_tokens"]) for line in lines] == [("ok", 200, 7)] * 4


async def test_clients_of_http_1_0_are_served(tmp_path: Path) -> None:
    """As nginx is, unless `proxy_http_version` says otherwise."""
    async with (
        engine(streams) as gpu,
        running_agent(tmp_path / "agent", [gpu.address]) as agent,
        running_picker(agent) as picker,
        running_envoy(tmp_path, picker, [gpu.address]) as front,
    ):
        for request in (post(BODY), post(BODY).replace(b"Host: test\r\n", b"")):
            client = await RawClient.connect(front)
            client.send(request.replace(b"HTTP/1.1", b"HTTP/1.0"))
            response = await client.until_cut()
            assert response.startswith(b"HTTP/1.0 200 ")
            assert response.endswith(b"\r\n\r\n" + b"".join(EVENTS))
        await until(lambda: agent.counted() == {"ok": 2.0})


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_with_status_200_is_no_answer_to_the_client(stream: bool, tmp_path: Path) -> None:
    """Envoy sends the body to the picker before it has the head from it."""
    broken = b'{"error": {"message": "CUDA out of memory", "type": "server_error", "code": 500}}'
    kind = b"application/json"
    if stream:
        broken, kind = b": ping\n\ndata: %b\n\ndata: [DONE]\n\n" % broken, b"text/event-stream"

    async def fails(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(broken)))
        for part in (broken[:20], broken[20:]):
            writer.write(part)
            await writer.drain()

    async with (
        engine(fails) as gpu,
        running_agent(tmp_path / "agent", [gpu.address]) as agent,
        running_picker(agent) as picker,
        running_envoy(tmp_path, picker, [gpu.address]) as front,
    ):
        chat = json.dumps({"model": MODEL, "messages": [], "stream": stream}).encode()
        assert await refused(front, post(chat)) == (502, "engine_failed")
        await until(lambda: agent.counted() == {"engine_error": 1.0})


async def test_an_answer_that_breaks_off_before_the_client_has_its_head_is_an_error_of_the_api(tmp_path: Path) -> None:
    async def breaks_off(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"id": ')
        await writer.drain()
        writer.close()

    async with (
        engine(breaks_off) as gpu,
        running_agent(tmp_path / "agent", [gpu.address]) as agent,
        running_picker(agent) as picker,
        running_envoy(tmp_path, picker, [gpu.address]) as front,
    ):
        client = await RawClient.connect(front)
        client.send(post(json.dumps({"model": MODEL, "messages": []}).encode()))
        status, headers, body = await client.answer()
        client.close()
        assert (status, headers["content-type"], code(body)) == (502, "application/json", "engine_failed")
        await until(lambda: agent.counted() == {"engine_cut": 1.0})


def merged(into: Any, more: Any) -> Any:
    """What a document has with the values of another one; of lists, item by item."""
    if isinstance(more, dict) and isinstance(into, dict):
        return into | {key: merged(into.get(key), value) for key, value in more.items()}
    if isinstance(more, list) and isinstance(into, list):
        return [merged(*pair) for pair in zip(into, more, strict=True)]
    return more


@pytest.mark.parametrize("version", ["http2", "http3"])
async def test_chats_over_other_versions_of_http_are_placed_and_accounted(version: str, tmp_path: Path) -> None:
    """With the listeners of the guide, and another Envoy as the client."""
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "envoy.md").read_text(), re.DOTALL)
    block, filters = [found for found in blocks if "clients-http3" in found or "alt-svc" in found]
    own = write_identity(tmp_path / "identity", agent_id("eu-de"))
    for name in (CERTIFICATE, PRIVATE_KEY):
        block = block.replace(f"/etc/penstock/traffic/{name}", str(own / name))
    with_tls, with_quic = yaml.safe_load(block)["static_resources"]["listeners"]

    def serve_others(config: dict[str, Any]) -> None:
        (shipped,) = config["static_resources"]["listeners"]
        port = shipped["address"]["socket_address"]["port_value"]
        http_manager(config)["http_filters"][:0] = yaml.safe_load(filters)["http_filters"]
        listeners = [merged(shipped, each) for each in (with_tls, with_quic)]
        for each in listeners:
            each["address"]["socket_address"] |= {"address": LOOPBACK, "port_value": port}
        config["static_resources"]["listeners"] = listeners

    endless = json.dumps({"model": MODEL, "messages": [], "stream": True, "user": "endless"}).encode()

    async def serves(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await (streams_forever if b"endless" in received.body else streams)(e, received, writer)

    async with (
        engine(serves) as gpu,
        running_agent(tmp_path / "agent", [gpu.address]) as agent,
        running_picker(agent) as picker,
        running_envoy(tmp_path, picker, [gpu.address], serve_others) as front,
        running_translator(tmp_path, front, version, own / AUTHORITIES) as entry,
    ):
        for _ in range(3):
            client = await RawClient.connect(entry)
            client.send(post(BODY))
            status, headers = await client.head()
            assert (status, headers.get("x-penstock-endpoint")) == (200, "gpu-0")
            assert headers["alt-svc"].startswith("h3=")
            assert await read_stream(client) == b"".join(EVENTS)
            client.close()
        assert await refused(entry, post(b'{"model": "no-such"}')) == (404, "model_not_found")
        await until(lambda: agent.counted() == {"ok": 3.0})
        client = await RawClient.connect(entry)
        client.send(post(endless))
        await client.head()
        await client.reader.readexactly(1)
        client.close()
        await until(lambda: agent.counted() == {"ok": 3.0, "client_left": 1.0})
        unreported = agent.metrics.registry.get_sample_value("penstock_agent_unreported_ends_total")
        assert unreported == (version == "http3"), "Envoy states no flag of a client that leaves over HTTP/3"
        assert agent.held() == 0


def bearer(name: str) -> str:
    return f"Authorization: Bearer {name}"


def tenant(name: str, data_class: str = "open", quota: Quota | None = None) -> Tenant:
    return Tenant(name, data_class, (sha256(name.encode()).hexdigest(),), quota=quota)


async def test_refusals_reach_the_client_in_the_format_of_the_api_and_no_engine(tmp_path: Path) -> None:
    only_us = ResidencyRule("us", data_classes=frozenset({"personal"}), allow=frozenset({"us-east"}))
    known = tenant("a"), tenant("abroad", "personal"), tenant("one", quota=Quota(None, None, 1))
    async with (
        engine(streams_forever) as gpu,
        running_agent(tmp_path / "agent", [gpu.address], anonymous=None, slots=1, queue=0) as agent,
        running_picker(agent) as picker,
        running_envoy(tmp_path, picker, [gpu.address]) as front,
    ):
        tenants = {each.name: each for each in known}
        agent.config.policy = replace(agent.config.policy, tenants=tenants, residency=(only_us,))
        pool = agent.endpoints.pools[MODEL]
        pool.prior_s = 1000.0
        pool.recount()
        for request, status, reason in (
            (post(BODY), 401, "invalid_api_key"),
            (post(BODY, bearer("abroad")), 421, "misdirected"),
            (post(b'{"model": "no-such"}', bearer("a")), 404, "model_not_found"),
            (post(b"{", bearer("a")), 400, "bad_request"),
            (post(b"x" * 70_000, bearer("a")), 413, "body_too_large"),
            (post(BODY, bearer("a"), path="/v1/nothing"), 404, "not_found"),
            # Envoy itself refuses these.
            (post(BODY, bearer("a")).replace(b"Host: test\r\n", b""), 400, "bad_request"),
            (post(BODY, bearer("a"), path="/v1/chat/completions#a"), 400, "bad_request"),
            (post(b"", "Connection: upgrade", "Upgrade: websocket"), 400, "bad_request"),
        ):
            assert await refused(front, request) == (status, reason)
        assert gpu.requests == []

        running = await RawClient.connect(front)
        running.send(post(BODY, bearer("one")))
        assert (await running.head())[0] == 200
        assert await refused(front, post(BODY, bearer("one"))) == (429, "rate_limit_exceeded")
        assert await refused(front, post(BODY, bearer("a"))) == (429, "saturated"), "the queue would be too long"
        assert agent.held() == 1
        running.close()
        await until(lambda: agent.held() == 0)
        assert agent.counted()["client_left"] == 1.0
        async with asyncio.timeout(PATIENCE_S):
            await gpu.closed_by_client.wait()


async def refused(front: Address, request: bytes) -> tuple[int, str]:
    client = await RawClient.connect(front)
    client.send(request)
    status, headers, body = await client.answer()
    client.close()
    assert headers["x-penstock-refusal"]
    assert headers["content-type"] == "application/json"
    return status, code(body)


async def test_a_client_that_leaves_the_queue_leaves_nothing_behind(tmp_path: Path) -> None:
    async with (
        engine(streams_forever) as gpu,
        running_agent(tmp_path / "agent", [gpu.address], slots=1, queue=0) as agent,
        running_picker(agent) as picker,
        running_envoy(tmp_path, picker, [gpu.address]) as front,
    ):
        pool = agent.endpoints.pools[MODEL]
        pool.prior_s = 0.1
        pool.recount()
        first, second, unfinished = [await RawClient.connect(front) for _ in range(3)]
        first.send(post(BODY))
        await first.head()
        second.send(post(BODY))
        await until(lambda: agent.waiting() == 1)
        unfinished.send(post(BODY)[:-1])
        bodies = agent.listener.state.bodies
        await until(lambda: bodies.bytes_kept == len(BODY) - 1)
        for client in (second, unfinished, first):
            client.close()
        await until(lambda: agent.waiting() == 0 and agent.held() == 0 and bodies.bytes_kept == 0)
        await until(lambda: agent.counted() == {"client_left": 2.0})
        assert len(gpu.requests) == 1


async def test_envoy_sends_a_request_to_the_next_endpoint_and_the_account_follows(tmp_path: Path) -> None:
    async with engine(streams) as gpu:
        addresses = [NOBODY, gpu.address]
        async with (
            running_agent(tmp_path / "agent", addresses) as agent,
            running_picker(agent) as picker,
            running_envoy(tmp_path, picker, addresses) as front,
        ):
            async with asyncio.timeout(PATIENCE_S):
                while "connect_failed" not in agent.retried():
                    client = await RawClient.connect(front)
                    client.send(post(BODY))
                    status, headers = await client.head()
                    assert (status, headers.get("x-penstock-endpoint")) == (200, "gpu-1")
                    await read_stream(client)
                    client.close()
            await until(lambda: agent.counted() == {"ok": float(len(gpu.requests))})
            assert agent.held() == 0


async def disconnects(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def test_envoy_repeats_a_request_whose_endpoint_disconnects_before_it_responds(tmp_path: Path) -> None:
    async with engine(disconnects) as broken, engine(streams) as gpu:
        addresses = [broken.address, gpu.address]
        async with (
            running_agent(tmp_path / "agent", addresses) as agent,
            running_picker(agent) as picker,
            running_envoy(tmp_path, picker, addresses) as front,
        ):
            while not broken.requests:
                client = await RawClient.connect(front)
                client.send(post(BODY))
                status, headers = await client.head()
                assert (status, headers.get("x-penstock-endpoint")) == (200, "gpu-1")
                assert await read_stream(client) == b"".join(EVENTS)
                client.close()
            assert gpu.requests[-1].body == broken.requests[0].body
            assert b"x-envoy-retry-on" not in gpu.requests[-1].head
            await until(lambda: agent.counted() == {"ok": float(len(gpu.requests))})
            assert agent.held() == 0


def fails_with(status: int, *lines: bytes) -> Script:
    """An engine that responds to each request with a status and no more."""

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %d Failed\r\ncontent-length: 2\r\n%b\r\n{}" % (status, b"".join(lines)))

    return script


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (500, "engine_error"),
        (502, "engine_error"),
        (503, "engine_busy"),
        (429, "engine_busy"),
        (529, "engine_busy"),
    ],
)
async def test_envoy_repeats_a_request_that_an_engine_fails_or_rejects(
    status: int, reason: str, tmp_path: Path
) -> None:
    script = fails_with(status, b"retry-after: 1\r\n" if status in (429, 503) else b"")
    async with engine(script) as broken, engine(streams) as gpu:
        addresses = [broken.address, gpu.address]
        async with (
            running_agent(tmp_path / "agent", addresses) as agent,
            running_picker(agent) as picker,
            running_envoy(tmp_path, picker, addresses) as front,
        ):
            while not broken.requests:
                client = await RawClient.connect(front)
                client.send(post(BODY))
                status, headers = await client.head()
                assert (status, headers.get("x-penstock-endpoint")) == (200, "gpu-1")
                assert await read_stream(client) == b"".join(EVENTS)
                client.close()
            assert gpu.requests[-1].body == broken.requests[0].body
            await until(lambda: agent.counted() == {"ok": float(len(gpu.requests))})
            assert agent.retried() == {reason: 1.0}
            first = agent.endpoints.pools[MODEL].endpoints[0]
            assert first.ejection.failures == (1 if reason == "engine_error" else 0)
            assert agent.held() == 0


async def test_a_request_that_two_engines_fail_reaches_no_third_one(tmp_path: Path) -> None:
    async with engine(fails_with(500)) as one, engine(fails_with(500)) as two, engine(fails_with(500)) as three:
        engines = [one, two, three]
        addresses = [each.address for each in engines]
        async with (
            running_agent(tmp_path / "agent", addresses) as agent,
            running_picker(agent) as picker,
            running_envoy(tmp_path, picker, addresses) as front,
        ):
            client = await RawClient.connect(front)
            client.send(post(BODY))
            assert (await client.head())[0] == 500
            assert sum(len(each.requests) for each in engines) == 2
            await until(lambda: agent.counted() == {"engine_error": 1.0})
            client.close()


@pytest.mark.parametrize("known", ["dead", "missing"])
@pytest.mark.parametrize("host", [b"api.example.com", b"eu.api.example.com"])
async def test_only_endpoints_that_the_picker_has_named_receive_a_request(
    known: str, host: bytes, tmp_path: Path
) -> None:
    """Not the others of the cluster: of another model, with another credential, outside the subset."""
    async with engine(streams) as other, engine(streams) as missing:
        named, listed = (NOBODY, [NOBODY, other.address]) if known == "dead" else (missing.address, [other.address])
        async with (
            running_agent(tmp_path / "agent", [named]) as agent,
            running_picker(agent) as picker,
            running_envoy(tmp_path, picker, listed) as front,
        ):
            for _ in range(6):
                client = await RawClient.connect(front)
                client.send(post(BODY).replace(b"Host: test", b"Host: " + host))
                assert (await client.head())[0] in (502, 503)
                client.close()
            assert not other.requests
            assert agent.held() == 0


async def test_a_retry_after_the_only_endpoint_is_sent_to_it_again(tmp_path: Path) -> None:
    """Its connection may have ended, while it has not."""
    configs: list[Config] = []
    async with (
        running_agent(tmp_path / "agent", [NOBODY]) as agent,
        running_picker(agent) as picker,
        running_envoy(tmp_path, picker, [NOBODY], configs.append) as front,
    ):
        client = await RawClient.connect(front)
        client.send(post(BODY))
        assert (await client.head())[0] == 502
        client.close()
        admin = configs[0]["admin"]["address"]["socket_address"]
        url = f"http://{admin['address']}:{admin['port_value']}/stats?filter=eu-picked.upstream_cx_connect_fail"
        async with httpx.AsyncClient() as http:
            assert (await http.get(url)).text.split() == ["cluster.eu-picked.upstream_cx_connect_fail:", "2"]
        await until(lambda: agent.counted() == {"refused": 1.0})


@pytest.mark.parametrize(("host", "status"), [("eu.api.example.com", 200), ("api.example.com", 503)])
async def test_without_a_picker_only_names_of_a_jurisdiction_are_served(host: str, status: int, tmp_path: Path) -> None:
    """The endpoint of the other cluster stands for another jurisdiction: no request reaches it."""
    async with engine(streams) as here, engine(streams) as abroad:

        def add_cluster(config: dict[str, Any]) -> None:
            other = json.loads(json.dumps(clusters(config)["eu"]))
            other["name"] = other["load_assignment"]["cluster_name"] = "us"
            other["load_assignment"]["endpoints"] = [{"lb_endpoints": lb_endpoints([abroad.address])}]
            config["static_resources"]["clusters"].append(other)
            del clusters(config)["penstock-picker"]["health_checks"]

        async with running_envoy(tmp_path, NOBODY, [here.address], add_cluster) as front:
            for _ in range(8):
                client = await RawClient.connect(front)
                forged = f"x-gateway-destination-endpoint: {abroad.address}"
                request = post(BODY, forged, "x-penstock-route: x", "x-penstock-retry: failed")
                client.send(request.replace(b"Host: test", b"Host: " + host.encode()))
                answer = await client.answer()
                assert answer.status == status
                if status != 200:
                    assert (code(answer.body), answer.headers["retry-after"]) == ("none_ready", "1")
                client.close()
        assert abroad.requests == []
        assert bool(here.requests) == (status == 200)


TO_A_JURISDICTION = b"POST /v1/chat/completions HTTP/1.1\r\nHost: eu.api.example.com\r\n"


async def test_no_client_makes_envoy_continue_without_the_picker(tmp_path: Path) -> None:
    """Names of a jurisdiction work without a picker: an error of its call would let a request pass unchecked."""
    limits = Limits(max_body_bytes=64 * 1024, max_connections=1, idle_linger_s=0.0)
    async with (
        engine(streams_forever) as gpu,
        running_agent(tmp_path / "agent", [gpu.address], limits=limits) as agent,
        running_picker(agent) as picker,
        running_envoy(tmp_path, picker, [gpu.address]) as front,
    ):
        # Larger than a message to the picker, which Envoy does not know before the end of the body.
        large = await RawClient.connect(front)
        padding = b" " * 200_000
        large.send(TO_A_JURISDICTION + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(BODY + padding) + chunk(b""))
        answer = await large.answer()
        assert (answer.status, code(answer.body)) == (413, "body_too_large")
        large.close()
        # More requests at a time than the picker accepts.
        running, further = await RawClient.connect(front), await RawClient.connect(front)
        running.send(post(BODY).replace(b"Host: test", b"Host: eu.api.example.com"))
        assert (await running.head())[0] == 200
        further.send(post(BODY).replace(b"Host: test", b"Host: eu.api.example.com"))
        answer = await further.answer()
        assert (answer.status, code(answer.body)) == (429, "too_many_connections")
        further.close()
        running.close()
        await until(lambda: agent.held() == 0)
        # A defect of the picker.
        agent.config.policy = replace(agent.config.policy, models=None)
        defect = await RawClient.connect(front)
        defect.send(post(BODY).replace(b"Host: test", b"Host: eu.api.example.com"))
        answer = await defect.answer()
        assert (answer.status, code(answer.body)) == (502, "engine_failed")
        defect.close()
        assert len(gpu.requests) == 1


async def test_requests_that_fail_at_the_same_time_are_all_repeated(tmp_path: Path) -> None:
    """Envoy repeats three at a time unless its configuration states otherwise."""
    count, arrived = 20, asyncio.Event()

    async def fails_together(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if len(one.requests) + len(two.requests) >= count:
            arrived.set()
        await arrived.wait()
        if e is one:
            await fails_with(500)(e, received, writer)
        else:
            await streams(e, received, writer)

    async with engine(fails_together) as one, engine(fails_together) as two:
        addresses = [one.address, two.address]
        async with (
            running_agent(tmp_path / "agent", addresses, slots=count) as agent,
            running_picker(agent) as picker,
            running_envoy(tmp_path, picker, addresses) as front,
        ):
            clients = [await RawClient.connect(front) for _ in range(count)]
            for client in clients:
                client.send(post(BODY))
            assert [(await client.head())[0] for client in clients] == [200] * count
            assert len(one.requests) > 3
            for client in clients:
                client.close()
            await until(lambda: agent.held() == 0)


@pytest.mark.parametrize(("host", "status"), [("eu.api.example.com", 200), ("api.example.com", 503)])
async def test_a_picker_that_is_frozen_counts_as_absent(host: str, status: int, tmp_path: Path) -> None:
    def check_soon(config: dict[str, Any]) -> None:
        cluster = clusters(config)["penstock-picker"]
        (options,) = cluster["typed_extension_protocol_options"].values()
        keepalive = options["explicit_http_config"]["http2_protocol_options"]["connection_keepalive"]
        keepalive |= {"interval": "0.5s", "timeout": "0.5s"}
        del cluster["health_checks"]

    async def answers_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            pass
        writer.close()

    server = await asyncio.start_server(answers_nothing, LOOPBACK, 0)
    picker = Address(LOOPBACK, server.sockets[0].getsockname()[1])
    async with server, engine(streams) as gpu, running_envoy(tmp_path, picker, [gpu.address], check_soon) as front:
        client = await RawClient.connect(front)
        client.send(post(BODY).replace(b"Host: test", b"Host: " + host.encode()))
        assert (await client.head())[0] == status
        client.close()
        assert bool(gpu.requests) == (status == 200)


@pytest.mark.parametrize(("host", "is_whole"), [("eu.api.example.com", True), ("api.example.com", False)])
async def test_the_death_of_a_picker_cuts_responses_but_those_of_a_jurisdiction(
    host: str, is_whole: bool, tmp_path: Path
) -> None:
    goes_on = asyncio.Event()

    async def streams_on(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(EVENTS[0]))
        await writer.drain()
        await goes_on.wait()
        writer.write(chunk(EVENTS[2]) + chunk(b""))

    async with (
        engine(streams_on) as gpu,
        running_agent(tmp_path / "agent", [gpu.address]) as agent,
        running_picker(agent) as picker,
        Relay(picker.port) as relay,
        running_envoy(tmp_path, Address(LOOPBACK, relay.port), [gpu.address]) as front,
    ):
        client = await RawClient.connect(front)
        client.send(post(BODY).replace(b"Host: test", b"Host: " + host.encode()))
        assert (await client.head())[0] == 200
        assert await client.chunk() == EVENTS[0]
        relay.cut()
        await until(lambda: agent.held() == 0)
        goes_on.set()
        if is_whole:
            assert await read_stream(client) == EVENTS[2]
        else:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await read_stream(client)
        client.close()
        assert agent.counted() == {"client_left": 1.0}


@pytest.mark.parametrize(("host", "status"), [("eu.api.example.com", 200), ("api.example.com", 503)])
@pytest.mark.parametrize("framing", [b"length", b"chunked"])
async def test_a_picker_that_dies_amid_a_body_leaves_no_part_of_it_at_an_endpoint(
    host: str, status: int, framing: bytes, tmp_path: Path
) -> None:
    """For the name of a jurisdiction, Envoy still has the whole body; what others sent is lost with the picker."""
    request = post(BODY).replace(b"Host: test", b"Host: " + host.encode())
    if framing == b"chunked":
        head, _, content = request.partition(b"\r\n\r\n")
        head = re.sub(rb"Content-Length: \d+", b"Transfer-Encoding: chunked", head)
        request = head + b"\r\n\r\n" + chunk(content) + chunk(b"")
    async with (
        engine(streams) as gpu,
        running_agent(tmp_path / "agent", [gpu.address]) as agent,
        running_picker(agent) as picker,
        Relay(picker.port) as relay,
        running_envoy(tmp_path, Address(LOOPBACK, relay.port), [gpu.address]) as front,
    ):
        bodies = agent.listener.state.bodies
        client = await RawClient.connect(front)
        client.send(request[:-20])
        if status == 503:
            await until(lambda: bodies.bytes_kept > 0)
        relay.cut()
        client.send(request[-20:])
        assert (await client.head())[0] == status
        assert [received.body for received in gpu.requests] == ([BODY] if status == 200 else [])
        await until(lambda: bodies.bytes_kept == 0 and agent.held() == 0)
        client.close()


async def test_bodies_in_one_message_work_too(tmp_path: Path) -> None:
    def buffer(config: dict[str, Any]) -> None:
        mode = ext_proc(config)["processing_mode"]
        mode["request_body_mode"], mode["response_body_mode"] = "BUFFERED", "STREAMED"
        mode["request_trailer_mode"] = mode["response_trailer_mode"] = "SKIP"

    async with (
        engine(streams) as gpu,
        running_agent(tmp_path / "agent", [gpu.address]) as agent,
        running_picker(agent) as picker,
        running_envoy(tmp_path, picker, [gpu.address], buffer) as front,
    ):
        unasked = json.dumps({"model": MODEL, "stream": True, "messages": []}).encode()
        client = await RawClient.connect(front)
        client.send(post(unasked))
        status, headers = await client.head()
        assert (status, headers["x-penstock-endpoint"]) == (200, "gpu-0")
        assert await read_stream(client) == EVENTS[0] + EVENTS[1] + b"data: [DONE]\n\n", "without the usage"
        client.close()
        assert json.loads(gpu.requests[0].body)["stream_options"] == {"include_usage": True}
        assert gpu.requests[0].header("content-length") == str(len(gpu.requests[0].body))
        await until(lambda: agent.counted() == {"ok": 1.0})


async def test_a_bad_request_through_envoy_does_not_stop_the_metering_of_others(tmp_path: Path) -> None:
    async def rejects(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if b"bad" in received.body:
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}")
        else:
            await streams(e, received, writer)

    async with (
        engine(rejects) as gpu,
        running_agent(tmp_path / "agent", [gpu.address]) as agent,
        running_picker(agent) as picker,
        running_envoy(tmp_path, picker, [gpu.address]) as front,
    ):
        for number, text in enumerate(("good", "bad", "good")):
            client = await RawClient.connect(front)
            client.send(post(json.dumps({"model": MODEL, "stream": True, "messages": [text]}).encode()))
            assert (await client.answer()).status == (400 if text == "bad" else 200)
            assert json.loads(gpu.requests[number].body)["stream_options"] == {"include_usage": True}
            client.close()


async def test_other_regions_are_reached_through_envoy_with_the_certificate_of_the_agent(tmp_path: Path) -> None:
    here = write_identity(tmp_path / "identity", agent_id("eu-de"))
    there = write_identity(tmp_path / "there-identity", agent_id("eu-es"))
    peer_tls = ServerTls(there / CERTIFICATE, there / PRIVATE_KEY, there / AUTHORITIES)
    away = plan("eu-de", "eu-de+eu-es", eu_es=1.0)
    async with (
        engine(streams) as far,
        engine(streams) as near,
        running_agent(tmp_path / "server", [far.address], region="eu-es", anonymous=None, peer_tls=peer_tls) as server,
        running_agent(
            tmp_path / "origin", [near.address], anonymous="personal", plan=away, peers={"eu-es": server.peer}
        ) as origin,
        running_picker(origin, forwards=True, identity_dir=here) as picker,
        running_envoy(tmp_path, picker, [near.address], identity_dir=here) as front,
    ):
        origin.location = Location("DE")
        client = await RawClient.connect(front)
        client.send(post(BODY, "x-penstock-route: forged", "X-Request-Id: far-1"))
        status, headers = await client.head()
        assert (status, headers["x-penstock-region"]) == (200, "eu-es"), await client.reader.read(500)
        assert await read_stream(client) == b"".join(EVENTS)
        client.close()
        assert (len(far.requests), len(near.requests)) == (1, 0)
        assert far.requests[0].header("x-penstock-route") is None, "an engine never sees the route context"
        await until(lambda: server.counted() == origin.counted() == {"ok": 1.0})


async def test_a_region_without_endpoints_forwards_what_enters_through_envoy(tmp_path: Path) -> None:
    here = write_identity(tmp_path / "identity", agent_id("eu-de"))
    there = write_identity(tmp_path / "there-identity", agent_id("eu-es"))
    peer_tls = ServerTls(there / CERTIFICATE, there / PRIVATE_KEY, there / AUTHORITIES)
    away = plan("eu-de", "eu-de+eu-es", eu_es=1.0)
    async with (
        engine(streams) as far,
        running_agent(tmp_path / "server", [far.address], region="eu-es", anonymous=None, peer_tls=peer_tls) as server,
        running_agent(tmp_path / "origin", [], anonymous="personal", plan=away, peers={"eu-es": server.peer}) as origin,
        running_picker(origin, forwards=True, identity_dir=here) as picker,
        running_envoy(tmp_path, picker, [], identity_dir=here) as front,
    ):
        origin.location = Location("DE")
        client = await RawClient.connect(front)
        client.send(post(BODY))
        status, headers = await client.head()
        assert (status, headers["x-penstock-region"]) == (200, "eu-es"), await client.reader.read(500)
        assert await read_stream(client) == b"".join(EVENTS)
        client.close()
        await until(lambda: server.counted() == origin.counted() == {"ok": 1.0})


STORED = sorted({f"/v1/{collection.decode()}" for collection, _, _ in job_paths._METHODS})
"""The collections of the job APIs."""


@pytest.mark.parametrize("host", ["api.example.com", "eu.api.example.com"])
async def test_what_the_agent_stores_or_tunnels_reaches_its_own_listener(host: str, tmp_path: Path) -> None:
    """Without a picker, since the agent checks these requests itself."""

    async def responds(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if received.header("upgrade"):
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nframes")
        else:
            if received.head.startswith(b"POST /prompt/wait"):
                # The time limits are the agent's.
                await asyncio.sleep(2 * idle_s)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    idle_s = 2.0
    offer = (b"Connection: upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Key: eA==", b"Sec-WebSocket-Version: 13")
    async with engine(responds) as own:

        def to_agent(config: dict[str, Any]) -> None:
            http_manager(config)["stream_idle_timeout"] = f"{idle_s}s"
            clusters(config)["penstock-agent"]["load_assignment"]["endpoints"] = [
                {"lb_endpoints": lb_endpoints([own.address])}
            ]
            del clusters(config)["penstock-picker"]["health_checks"]

        async with running_envoy(tmp_path, NOBODY, [], to_agent) as front:
            for request, status in (
                (post(BODY, "x-penstock-route: forged", path="/v1/files"), 200),
                (post(BODY, path="/v1/batches/batch_1/cancel?a=b"), 200),
                *((post(BODY, path=path), 200) for path in STORED),
                (post(BODY, "Prefer: respond-async"), 200),
                (post(BODY, "Prefer: wait=5, respond-async", path="/api/chat"), 200),
                (post(BODY, path="/prompt/wait"), 200),
                (post(BODY, path="/view?filename=a"), 200),
                *(
                    (b"\r\n".join([b"GET %b HTTP/1.1" % path, b"Host: test", *offer, b"", b""]), 101)
                    for path in (b"/v1/realtime?model=m", b"/ws?clientId=a")
                ),
            ):
                client = await RawClient.connect(front)
                client.send(request.replace(b"Host: test", b"Host: " + host.encode()))
                assert (await client.head())[0] == status
                client.close()
        assert [each.head.split(b" ")[1] for each in own.requests] == [
            b"/v1/files",
            b"/v1/batches/batch_1/cancel?a=b",
            *(path.encode() for path in STORED),
            b"/v1/chat/completions",
            b"/api/chat",
            b"/prompt/wait",
            b"/view?filename=a",
            b"/v1/realtime?model=m",
            b"/ws?clientId=a",
        ]
        assert own.requests[0].body == BODY
        assert own.requests[0].header("x-penstock-route") is None
        assert own.requests[0].header("x-forwarded-for")


async def test_a_picker_that_envoy_does_not_forward_for_stays_in_its_region(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es", eu_es=1.0)
    async with (
        engine(streams) as near,
        running_agent(
            tmp_path / "origin", [near.address], anonymous="personal", plan=away, peers={"eu-es": NOBODY}
        ) as origin,
        running_picker(origin) as picker,
        running_envoy(tmp_path, picker, [near.address]) as front,
    ):
        origin.location = Location("DE")
        client = await RawClient.connect(front)
        client.send(post(BODY))
        status, headers = await client.head()
        assert (status, headers["x-penstock-region"]) == (200, "eu-de")
        client.close()


@pytest.mark.parametrize(
    ("role", "is_served"), [("agent", True), ("server", True), ("monitor", False), ("stranger", False)]
)
async def test_only_agents_and_servers_of_the_fleet_may_use_the_picker(
    role: str, is_served: bool, tmp_path: Path
) -> None:
    ids = {"server": SpiffeId(FLEET, ProcessRole.SERVER, "envoy"), "monitor": SpiffeId(FLEET, ProcessRole.MONITOR, "m")}
    own = write_identity(tmp_path / "identity", agent_id("eu-de"))
    fleet = 1 if role == "stranger" else 0
    given = write_identity(tmp_path / "given", ids.get(role, agent_id("eu-de", "envoy")), fleet)
    tls = ssl.create_default_context(cafile=own / AUTHORITIES)
    tls.load_cert_chain(given / CERTIFICATE, given / PRIVATE_KEY)
    tls.set_alpn_protocols(["h2"])
    async with running_agent(tmp_path / "agent", [NOBODY]) as agent, running_picker(agent, identity_dir=own) as picker:
        answer: bytes | None = None
        with suppress(OSError):
            async with grpc_client(picker, tls) as client:
                call = client.call(PROCESS)
                call.write(head())
                call.write(body(CHAT))
                answer = await call.read()
        assert (answer is not None) == is_served
        await until(lambda: agent.held() == 0)


async def test_a_connection_ends_when_its_certificate_is_revoked(tmp_path: Path) -> None:
    own = write_identity(tmp_path / "identity", agent_id("eu-de"))
    certificate, key, authorities = (own / name for name in (CERTIFICATE, PRIVATE_KEY, AUTHORITIES))
    tls = ssl.create_default_context(cafile=authorities)
    tls.load_cert_chain(certificate, key)
    tls.set_alpn_protocols(["h2"])
    serial = trust().verify(ssl.PEM_cert_to_DER_cert(certificate.read_text()), time.time()).serial
    bundle = trust()
    async with running_agent(tmp_path / "agent", [NOBODY]) as agent:
        picker_tls = PickerTls(ServerTls(certificate, key, authorities, alpn=["h2"]), lambda: bundle)
        server = PickerServer(parts_of(agent), lambda: None, picker_tls)
        address = await server.start(Address("127.0.0.1", 0))
        async with grpc_client(address, tls) as client:
            call = client.call(PROCESS)
            call.write(head())
            call.write(body(CHAT))
            assert await call.read()
            bundle = TrustBundle([authority().certificate], {serial})
            assert await call.ended() is None
        await until(lambda: agent.held() == 0)
        server.stop_accepting()
        await server.drain(0.0)


@pytest.mark.parametrize("trusted", [True, False])
async def test_an_envoy_that_is_no_trusted_proxy_is_reported_once(tmp_path: Path, trusted: bool) -> None:
    """Residency would judge all its clients by its address."""
    async with running_agent(tmp_path / "agent", [NOBODY]) as agent:
        server = PickerServer(parts_of(agent)._replace(trusts=lambda address: trusted), lambda: None)
        with capture_logs() as logs:
            address = await server.start(Address(LOOPBACK, 0))
            for _ in range(2):
                async with grpc_client(address) as client:
                    call = client.call(f"/{HEALTH_SERVICE}/Check")
                    call.write(HealthCheckRequest(service="liveness"))
                    call.done_writing()
                    assert await call.read()
        warned = [entry["address"] for entry in logs if entry["event"] == "an Envoy is no trusted proxy"]
        assert warned == ([] if trusted else [LOOPBACK])
        server.stop_accepting()
        await server.drain(0.0)


async def test_the_health_service_reports_liveness_and_readiness(tmp_path: Path) -> None:
    async with running_agent(tmp_path / "agent", [NOBODY]) as agent:
        reason: list[str | None] = [None]
        server = PickerServer(parts_of(agent), lambda: reason[0])
        address = await server.start(Address("127.0.0.1", 0))
        async with grpc_client(address) as client:

            async def status(service: str) -> int | None:
                call = client.call(f"/{HEALTH_SERVICE}/Check")
                call.write(HealthCheckRequest(service=service))
                call.done_writing()
                answer = await call.read()
                assert await call.ended() == (NOT_FOUND if answer is None else OK)
                return None if answer is None else int(HealthCheckResponse.FromString(answer).status)

            services = ("", "readiness", SERVICE)
            assert [await status(service) for service in services] == [SERVING] * 3
            reason[0] = "no endpoint is ready"
            assert [await status(service) for service in services] == [NOT_SERVING] * 3
            assert await status("liveness") == SERVING
            assert await status("unknown") is None
            reason[0] = None
            server.hand_over()
            assert await status("readiness") == NOT_SERVING
            late = client.call(PROCESS)
            assert await late.ended() == UNAVAILABLE
        server.stop_accepting()
        assert await server.wait_drained(PATIENCE_S)
        await server.drain(0.0)


async def test_a_stream_that_breaks_off_or_is_out_of_order_releases_what_it_holds(tmp_path: Path) -> None:
    async with running_agent(tmp_path / "agent", [NOBODY]) as agent, running_picker(agent) as picker:
        bodies = agent.listener.state.bodies
        async with grpc_client(picker) as client:
            half_sent = [client.call(PROCESS) for _ in range(150)]  # above the limit that h2 states by default
            for call in half_sent:
                call.write(head())
                call.write(body(CHAT[:9], ends=False))
            await until(lambda: bodies.bytes_kept == 9 * 150)
            for call in half_sent:
                call.cancel()
            await until(lambda: bodies.bytes_kept == 0)

            picked = client.call(PROCESS)
            picked.write(head())
            picked.write(body(CHAT))
            assert await picked.read()
            assert agent.held() == 1
            picked.write(head())
            assert await picked.ended() == INVALID_ARGUMENT
            assert agent.held() == 0

            hidden = client.call(PROCESS)
            hidden.write(head(request_mode=0))
            assert await hidden.ended() == FAILED_PRECONDITION
            assert "request_body_mode" in hidden.detail

            cut = client.call(PROCESS)
            cut.write(head())
            cut.write(body(CHAT))
            await cut.read()
            cut.done_writing()
            assert await cut.ended() == OK
            assert agent.held() == 0

            zipped, unreadable = client.call(PROCESS), client.call(PROCESS)
            zipped.write(head(), compressed=True)
            unreadable.write(b"\xff\xff")
            assert await zipped.ended() == UNIMPLEMENTED
            assert await unreadable.ended() == INVALID_ARGUMENT
            assert await client.call(f"/{SERVICE}/Other").ended() == UNIMPLEMENTED

            lost = client.call(PROCESS)
            lost.write(head())
            lost.write(body(CHAT))
            await lost.read()
        await until(lambda: agent.held() == 0)
        assert agent.counted() == {"client_left": 3.0}
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100_000):
            stranger = await RawClient.connect(picker)
            stranger.send(garbage)
            with suppress(ConnectionError):
                async with asyncio.timeout(PATIENCE_S):
                    await stranger.reader.read()
