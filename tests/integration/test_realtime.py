"""WebSockets of OpenAI's Realtime API: keys in subprotocols, models in messages, and the codes of closes."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from msgspec.structs import replace

from adapters.tls_contexts import ClientTls, ServerTls
from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.policy.policy import Policy
from penstock.policy.residency import ResidencyRule
from penstock.tenancy.budget_reservations import FIRST_TOKENS
from regional_agent.upstream.address import Address
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.websocket.websocket_frames import BINARY, CLOSE, GOING_AWAY, PROTOCOL_ERROR, TEXT
from tests.integration.test_answer_accounts import meter, metered
from tests.integration.test_ledger_records import ledger_in, records_in
from tests.support.agents import Agent, running_agent
from tests.support.certificates import has_openssl_3, make_authority, make_certificate
from tests.support.chats import BODY, answers
from tests.support.on_uvloop import on_uvloop
from tests.support.planet import MODEL, plan, policy
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.tunnels import UPGRADE
from tests.support.wait import PATIENCE_S, until
from tests.support.websockets import UPGRADED, WebSocketEngine, frame, read_frame, websocket_engine

KEY = "sk-browser-1"
OFFER = f"Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.{KEY}, openai-beta.realtime-v1\r\n"
AWAY = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)


def keyed(*rules: ResidencyRule) -> Policy:
    """The test fleet's policy, in which the tenant `open` has one key."""
    base = policy(*rules)
    tenant = replace(base.tenants["open"], key_digests=(sha256(KEY.encode()).hexdigest(),))
    return replace(base, tenants=base.tenants | {"open": tenant})


async def upgrade(agent: Agent, lines: str = "") -> tuple[RawClient, int, dict[str, str]]:
    """Offer an upgrade; returns the client, and status and headers of the response."""
    client = await RawClient.connect(agent.traffic)
    client.send(UPGRADE + lines.encode() + b"\r\n")
    return client, *await client.head()


@pytest.mark.parametrize(
    ("selects", "selected"),
    [(b"", "realtime"), (b"Sec-WebSocket-Protocol: openai-beta.realtime-v1\r\n", "openai-beta.realtime-v1")],
)
async def test_a_browser_sends_its_key_as_a_subprotocol(tmp_path: Path, selects: bytes, selected: str) -> None:
    async with websocket_engine(selects) as gpu, running_agent(tmp_path, [gpu.address], anonymous=None) as agent:
        agent.config.policy = replace(keyed(), anonymous_tenant=None)
        client, status, headers = await upgrade(agent, OFFER)
        assert (status, headers["sec-websocket-protocol"]) == (101, selected)
        assert b"sec-websocket-protocol: realtime, openai-beta.realtime-v1\r\n" in gpu.heads[0]
        assert KEY.encode() not in gpu.heads[0]
        assert b"insecure" not in gpu.heads[0].lower()
        client.send(frame(b"{}"))
        assert await gpu.received() == (TEXT, b"{}")
        agent.config.policy = replace(policy(), anonymous_tenant=None)
        assert (await read_frame(client.reader))[0] == CLOSE, "the key was revoked"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (OFFER.replace(KEY, "nobody"), 401),
        (OFFER.replace(KEY, ""), 401),
        (OFFER + "Authorization: Bearer nobody\r\n", 401),
        (OFFER + "Sec-WebSocket-Protocol: openai-insecure-api-key.nobody\r\n", 401),
        (OFFER.replace("realtime,", "realtime, openai-insecure-api-key.nobody,"), 401),
        (f"Sec_WebSocket_Protocol: openai-insecure-api-key.{KEY}\r\n", 401),
        ("Sec-WebSocket-Protocol: realtime\r\n", 401),
        (OFFER + f"Authorization: Bearer {KEY}\r\n", 101),
        (OFFER.replace("openai-insecure", "OpenAI-Insecure"), 101),
        (f"Sec-WebSocket-Protocol: a\r\nSec-WebSocket-Protocol:openai-insecure-api-key.{KEY}\r\n", 101),
        (f"Sec-WebSocket-Protocol: openai-insecure-api-key.{KEY}\r\n", 101),
        (f"Authorization: Bearer {KEY}\r\nSec_WebSocket_Protocol: openai-insecure-api-key.{KEY}\r\n", 101),
    ],
)
async def test_keys_in_subprotocols_are_checked_and_removed(tmp_path: Path, lines: str, status: int) -> None:
    async with websocket_engine() as gpu, running_agent(tmp_path, [gpu.address], anonymous=None) as agent:
        agent.config.policy = replace(keyed(), anonymous_tenant=None)
        client, found, _ = await upgrade(agent, lines)
        assert found == status
        assert KEY.encode() not in b"".join(gpu.heads)
        assert bool(gpu.heads) is (status == 101)
        client.close()


async def test_a_subprotocol_of_an_ordinary_request_reaches_no_engine(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        for name in ("Sec-WebSocket-Protocol", "sec_websocket_protocol"):
            client = await RawClient.connect(agent.traffic)
            client.send(post(BODY, f"{name}: openai-insecure-api-key.{KEY}"))
            assert (await client.answer()).status == 200
            assert KEY.encode() not in gpu.requests[-1].head
        client.send(UPGRADE.replace(b"websocket", b"other") + OFFER.encode() + b"\r\n")
        assert (await client.answer()).status == 426
        client.send(post(BODY, "Connection: Upgrade", "Upgrade: h2c", OFFER.strip()))
        assert (await client.answer()).status == 200
        assert KEY.encode() not in gpu.requests[-1].head


async def test_a_key_is_not_forwarded_to_another_region(tmp_path: Path) -> None:
    async with (
        websocket_engine() as gpu,
        running_agent(tmp_path / "es", [gpu.address], region="eu-es") as server,
        running_agent(tmp_path / "de", [], plan=AWAY, peers={"eu-es": server.peer}, anonymous=None) as agent,
    ):
        agent.config.policy = server.config.policy = replace(keyed(), anonymous_tenant=None)
        client, status, headers = await upgrade(agent, OFFER)
        assert (status, headers["sec-websocket-protocol"]) == (101, "realtime")
        assert KEY.encode() not in gpu.heads[0]
        client.send(frame(b'{"session": {"model": "none"}}') + frame(b"{}"))
        assert await gpu.received() == (TEXT, b"{}")
        client.close()


def session_update(model: str) -> bytes:
    return json.dumps({"type": "session.update", "session": {"model": model}}).encode()


async def test_a_message_with_a_model_that_is_refused_is_not_forwarded(tmp_path: Path) -> None:
    async with websocket_engine() as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client, status, _ = await upgrade(agent)
        assert status == 101
        client.send(frame(session_update("none")) + frame(session_update(MODEL)))
        assert await gpu.received() == (TEXT, session_update(MODEL))
        opcode, payload = await read_frame(client.reader)
        event = json.loads(payload)
        assert (opcode, event["type"], event["error"]["code"]) == (TEXT, "error", "model_not_found")
        refused = {"reason": "model_not_found"}
        assert agent.metrics.registry.get_sample_value("penstock_agent_refusals_total", refused) == 1
        client.close()


async def test_the_serving_region_must_be_permitted_for_the_model_of_a_message(tmp_path: Path) -> None:
    async with websocket_engine() as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client, _, _ = await upgrade(agent)
        reauthorization = agent.router.reauthorization
        exchange = cast(Any, next(iter(agent.proxy.active)))
        assert reauthorization.refuse_model(exchange.context, MODEL, "eu-de") is None
        refusal = reauthorization.refuse_model(exchange.context, MODEL, "elsewhere")
        assert refusal is not None
        assert refusal.reason == "residency_denied"
        client.close()


async def test_an_error_event_waits_for_the_end_of_a_message_of_the_engine(tmp_path: Path) -> None:
    async with websocket_engine() as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client, _, _ = await upgrade(agent)
        client.send(frame(b"{}"))
        await gpu.received()
        whole = frame(b"x" * 1_000, mask=b"")
        gpu.writer.write(frame(b"begin", mask=b"", final=False) + whole[:7].replace(b"\x81", b"\x00", 1))
        assert await read_frame(client.reader) == (TEXT, b"begin")
        client.send(frame(session_update("none")) + frame(b"[]"))
        assert await gpu.received() == (TEXT, b"[]"), "the refusal has been processed"
        gpu.writer.write(whole[7:] + frame(b"end", 0, mask=b"") + frame(b"next", mask=b""))
        assert await read_frame(client.reader) == (0, b"x" * 1_000)
        assert await read_frame(client.reader) == (0, b"end")
        following = [await read_frame(client.reader), await read_frame(client.reader)]
        assert (TEXT, b"next") in following
        assert any(b"model_not_found" in payload for _, payload in following)
        client.close()


async def test_invalid_frames_end_the_connection_with_a_code(tmp_path: Path) -> None:
    async with websocket_engine() as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client, _, _ = await upgrade(agent)
        client.send(frame(b"{}", mask=b""))
        opcode, payload = await read_frame(client.reader)
        assert (opcode, int.from_bytes(payload[:2], "big")) == (CLOSE, PROTOCOL_ERROR)
        assert await client.closed()
        async with asyncio.timeout(PATIENCE_S):
            await gpu.ended.wait()
        assert gpu.frames.empty()
        assert (agent.held(), agent.counted()) == (0, {"client_error": 1})


async def test_invalid_frames_with_the_handshake_end_the_connection(tmp_path: Path) -> None:
    async with websocket_engine() as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(UPGRADE + b"\r\n" + frame(b"{}", mask=b""))
        assert (await client.head())[0] == 101
        opcode, payload = await read_frame(client.reader)
        assert (opcode, int.from_bytes(payload[:2], "big")) == (CLOSE, PROTOCOL_ERROR)
        assert await client.closed()
        await until(lambda: agent.held() == 0)


async def test_compression_is_not_negotiated_where_messages_are_read(tmp_path: Path) -> None:
    async with websocket_engine() as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        offer = "Sec-WebSocket-Extensions: permessage-deflate\r\n"
        client, _, _ = await upgrade(agent, offer)
        assert b"permessage" not in gpu.heads[0]
        client.close()
        routes = tuple(replace(route, message_model=()) for route in agent.config.policy.routes)
        agent.config.policy = replace(agent.config.policy, routes=routes)
        client, _, _ = await upgrade(agent, offer)
        assert b"sec-websocket-extensions: permessage-deflate\r\n" in gpu.heads[1]
        client.send(frame(b"not JSON", reserved=0x40))
        assert (await gpu.received())[1] == b"not JSON", "messages are not read"
        client.close()


async def close_with_a_code(gpu: WebSocketEngine, client: RawClient) -> None:
    client.send(frame(b"sound", BINARY) * 1_000)
    await gpu.received()
    gpu.writer.write(frame(b"\x0f\xa3no more", CLOSE, mask=b""))
    gpu.writer.close()
    client.send(frame(b"sound", BINARY) * 1_000)
    assert await read_frame(client.reader) == (CLOSE, b"\x0f\xa3no more"), "4003"


@pytest.mark.parametrize("over_tls", [False, True])
def test_the_close_code_of_an_engine_reaches_the_client(tmp_path: Path, over_tls: bool) -> None:
    if over_tls and not has_openssl_3():
        pytest.skip("needs openssl >= 3 to make certificates")

    @on_uvloop
    async def test() -> None:
        tls, pool, context, to_agent = None, None, None, None
        if over_tls:
            make_authority(tmp_path, "ours")
            make_certificate(tmp_path, "ours", "one")
            tls = ServerTls(tmp_path / "one.pem", tmp_path / "one.key")
            to_agent = ClientTls(tmp_path / "ours.pem")
            context, pool = tls(), UpstreamPool(to_agent)
        async with (
            websocket_engine(tls=context) as gpu,
            running_agent(tmp_path / "es", [gpu.address], region="eu-es", tls=tls, pool=pool) as server,
            running_agent(tmp_path / "de", [], plan=AWAY, peers={"eu-es": server.peer}, tls=tls) as agent,
        ):
            for address in (server.traffic, agent.traffic):
                streams = await asyncio.open_connection(*address[:2], ssl=to_agent() if to_agent else None)
                client = RawClient(*streams)
                client.send(UPGRADE + b"\r\n")
                assert (await client.head())[0] == 101
                await close_with_a_code(gpu, client)
                client.close()
                await until(lambda: server.held() == 0)

    test()


@on_uvloop
async def test_a_close_right_after_the_handshake_reaches_the_client(tmp_path: Path) -> None:
    async def closes(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(UPGRADED + b"\r\n" + frame(b"\x0f\xa3no more", CLOSE, mask=b""))
        writer.close()

    async with engine(closes) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(UPGRADE + b"\r\n" + frame(b"sound", BINARY) * 1_000)
        assert (await client.head())[0] == 101
        assert await read_frame(client.reader) == (CLOSE, b"\x0f\xa3no more")
        client.close()
        await until(lambda: agent.held() == 0)


@pytest.mark.parametrize(
    ("sent", "resets", "received", "outcome"),
    [
        (b"", False, 1011, "engine_cut"),
        (b"", True, 1011, "engine_cut"),
        (frame(b"{}", mask=b"")[:3], False, 0, "engine_cut"),
        (frame(b"\x03\xf3", CLOSE, mask=b""), False, 1011, "engine_cut"),
        (frame(b"\x03\xe9", CLOSE, mask=b""), False, 1001, "ok"),
    ],
)
async def test_an_engine_that_fails_within_a_tunnel_is_charged(
    tmp_path: Path, sent: bytes, resets: bool, received: int, outcome: str
) -> None:
    async def fails(e: ScriptedEngine, request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(UPGRADED + b"\r\n" + frame(b"hello", mask=b""))
        await may_fail.wait()
        writer.write(sent)
        if resets:
            writer.transport.abort()
        else:
            writer.close()

    may_fail = asyncio.Event()
    async with engine(fails) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client, _, _ = await upgrade(agent)
        assert await read_frame(client.reader) == (TEXT, b"hello")
        may_fail.set()
        if received:
            opcode, payload = await read_frame(client.reader)
            assert (opcode, int.from_bytes(payload[:2], "big")) == (CLOSE, received)
        else:
            assert await client.until_cut() == sent
        client.close()
        await until(lambda: agent.counted() == {outcome: 1})
        assert agent.held() == 0


async def test_a_session_without_a_model_is_refused_with_a_remedy_that_browsers_have(tmp_path: Path) -> None:
    async with websocket_engine() as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(UPGRADE.replace(b"?model=" + MODEL.encode(), b"") + b"\r\n")
        answer = await client.answer()
        assert (answer.status, gpu.heads) == (400, [])
        assert b"?model=NAME" in answer.body


DELTA = b'{"type": "response.output_text.delta", "delta": "hello"}'
REPORT = b'{"type": "response.done", "response": {"usage": {"input_tokens": 10, "output_tokens": 20}}}'
FAILURE = b'{"type": "error", "error": {"type": "server_error", "message": "out of memory"}}'
INVALID = b'{"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}'


@pytest.mark.parametrize(
    ("messages", "tokens"),
    [
        ((DELTA, REPORT, DELTA, DELTA, REPORT), (20, 0, 40, 0)),
        ((DELTA, REPORT, DELTA, DELTA), (10, 0, 22, 1)),
        ((DELTA,), (0, 0, 1, 1)),
        ((), (0, 0, 0, 0)),
    ],
)
@pytest.mark.parametrize("leaves", [False, True])
async def test_the_tokens_of_a_session_are_metered(
    tmp_path: Path, messages: tuple[bytes, ...], tokens: tuple[int, int, int, int], leaves: bool
) -> None:
    """At the serving agent, and in the ledger of the entry with their price, whichever side ends the session."""
    ledger = ledger_in(tmp_path)
    async with (
        websocket_engine() as gpu,
        running_agent(tmp_path / "es", [gpu.address], region="eu-es") as server,
        running_agent(tmp_path / "de", [], plan=AWAY, peers={"eu-es": server.peer}, ledger=ledger) as agent,
    ):
        meter(server)
        client, status, _ = await upgrade(agent)
        assert status == 101
        for message in messages:
            gpu.writer.write(frame(message, mask=b""))
            assert await read_frame(client.reader) == (TEXT, message)
        if not leaves:
            gpu.writer.write(frame(b"\x03\xe8", CLOSE, mask=b""))
            assert (await read_frame(client.reader))[0] == CLOSE
        client.close()
        await until(lambda: agent.counted() == {"ok": 1} and server.held() == 0)
        await until(lambda: metered(server) == tokens)
    (record,) = records_in(tmp_path)
    assert (record.input_tokens, record.output_tokens, record.is_estimated) == (tokens[0], tokens[2], bool(tokens[3]))
    assert round(record.price, 9) == round(tokens[0] * 3e-6 + tokens[2] * 10e-6 + 0.01, 9)


async def test_a_session_takes_from_a_budget_of_tokens_while_it_runs(tmp_path: Path) -> None:
    async with websocket_engine() as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        base = agent.config.policy
        budget = Budget(BudgetUnit.TOKENS, 0.001, burst=1000.0)
        open_to_all = replace(base.tenants["open"], own_budgets=(budget,))
        agent.config.policy = replace(base, tenants=base.tenants | {"open": open_to_all})
        client, status, _ = await upgrade(agent)
        assert status == 101
        (counted,) = agent.budgets.meters()
        for _ in range(60):
            gpu.writer.write(frame(REPORT, mask=b""))
            assert await read_frame(client.reader) == (TEXT, REPORT)
        await until(lambda: counted.held == 60 * 30)
        assert (await upgrade(agent))[1] == 429
        client.close()
        await until(lambda: agent.held() == 0)
        assert (counted.held, counted.used) == (0.0, 60 * 30)
        sender = agent.budgets.of(agent.config.policy.tenants["open"])
        assert sender is not None
        assert sender.usual_tokens == FIRST_TOKENS, "the output of a session is the length of no answer"


@pytest.mark.parametrize(
    ("messages", "outcome"),
    [
        ((FAILURE,), "engine_error"),
        ((DELTA, FAILURE), "engine_error"),
        ((INVALID,), "client_error"),
        ((FAILURE, DELTA), "ok"),
    ],
)
async def test_an_error_before_the_close_of_an_engine_is_the_outcome(
    tmp_path: Path, messages: tuple[bytes, ...], outcome: str
) -> None:
    async with websocket_engine() as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client, _, _ = await upgrade(agent)
        gpu.writer.write(b"".join(frame(message, mask=b"") for message in messages))
        gpu.writer.write(frame(b"\x03\xe8", CLOSE, mask=b""))
        for message in messages:
            assert await read_frame(client.reader) == (TEXT, message)
        assert (await read_frame(client.reader))[0] == CLOSE
        client.close()
        await until(lambda: agent.counted() == {outcome: 1})


async def test_an_error_within_a_session_is_no_failure(tmp_path: Path) -> None:
    async with websocket_engine() as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client, _, _ = await upgrade(agent)
        gpu.writer.write(frame(FAILURE, mask=b""))
        assert await read_frame(client.reader) == (TEXT, FAILURE)
        client.close()
        await until(lambda: agent.counted() == {"ok": 1})


async def test_a_client_that_closes_a_tunnel_ends_it(tmp_path: Path) -> None:
    """Also if the engine ends its connection without a Close frame in return."""
    async with websocket_engine() as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client, _, _ = await upgrade(agent)
        client.send(frame(b"\x03\xe8", CLOSE))
        assert (await gpu.received())[0] == CLOSE
        gpu.writer.close()
        assert await client.closed()
        client.close()
        await until(lambda: agent.counted() == {"ok": 1})


async def test_an_idle_tunnel_is_closed_with_a_code(tmp_path: Path) -> None:
    async with websocket_engine() as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client, _, _ = await upgrade(agent)
        await until(lambda: bool(agent.proxy.active))
        for exchange in list(agent.proxy.active):
            exchange.check(float("inf"))
        opcode, payload = await read_frame(client.reader)
        assert (opcode, int.from_bytes(payload[:2], "big")) == (CLOSE, GOING_AWAY)
        assert await client.closed()


async def test_a_websocket_client_and_server_work_through_the_agent(tmp_path: Path) -> None:
    """With compression offered by both, as browsers do."""

    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=("realtime",), compress=True)
        await socket.prepare(request)
        async for message in socket:
            if message.data == '"end"':
                await socket.close(code=4003, message=b"no more")
            else:
                await socket.send_str(message.data)
        return socket

    application = web.Application()
    application.router.add_get("/v1/realtime", serve)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = Address("127.0.0.1", runner.addresses[0][1])
    try:
        async with running_agent(tmp_path, [address], anonymous=None) as agent, aiohttp.ClientSession() as http:
            agent.config.policy = replace(keyed(), anonymous_tenant=None)
            url = f"http://{agent.traffic}/v1/realtime?model={MODEL}"
            offered = ("realtime", f"openai-insecure-api-key.{KEY}")
            async with http.ws_connect(url, protocols=offered, compress=15) as socket:
                assert socket.protocol == "realtime"
                sent = [session_update(MODEL).decode(), json.dumps({"audio": "A" * 300_000}), "{}"]
                for message in sent:
                    await socket.send_str(message)
                assert [(await socket.receive_str()) for _ in sent] == sent
                await socket.send_str(session_update("none").decode())
                assert json.loads(await socket.receive_str())["error"]["code"] == "model_not_found"
                await socket.send_str('"end"')
                closed = await socket.receive()
                assert (closed.type, socket.close_code) == (aiohttp.WSMsgType.CLOSE, 4003)
    finally:
        await runner.cleanup()
