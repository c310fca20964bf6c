"""Attacks at the endpoint picker by what stands between it and clients: cut streams, other filters, another picker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from regional_agent.picker.processing_request import SERVICE
from tests.attacks.by_strangers import memory_kib
from tests.attacks.fleet import SMALL, Fleet, key_of, within
from tests.attacks.suite import attack, expect
from tests.support.ext_proc_messages import ProcessingResponse
from tests.support.grpc_client import GrpcClient, grpc_client
from tests.support.picker_streams import ANSWER, JSON_TYPE, body, head, response_body, response_head, trailers

AGENT, OTHER_AGENT = "eu-de/a", "eu-de/b"
PROCESS = f"/{SERVICE}/Process"
CHAT = json.dumps({"model": SMALL, "messages": []}).encode()
KEY = (b"authorization", key_of("attacker")["authorization"].encode())
MAX_GROWTH_KIB = 100 * 1024

WHOLE: tuple[Any, ...] = (
    head(KEY),
    body(CHAT[:9], ends=False),
    body(CHAT[9:]),
    response_head(200, JSON_TYPE),
    response_body(ANSWER[:20]),
    response_body(ANSWER[20:]),
    response_body(b"", ends=True),
)
"""The messages of one whole request."""


async def _idle_and_serving(fleet: Fleet) -> None:
    expect(await within(10.0, fleet.idle), "requests of the attacker are still counted")
    answer = await fleet.chat(AGENT, "victim")
    expect(answer.status_code == 200, f"another tenant gets {answer.status_code}")


async def _status_of(client: GrpcClient, messages: Sequence[Any]) -> int | None:
    """Return the status with which the picker refuses messages; None if it names an endpoint."""
    call = client.call(PROCESS)
    for message in messages:
        call.write(message)
    answer = ProcessingResponse.FromString(await call.read() or b"")
    call.cancel()
    is_refusal = answer.WhichOneof("response") == "immediate_response"
    return int(answer.immediate_response.status.code) if is_refusal else None


@attack("46.3")
async def streams_that_stop_midway(fleet: Fleet) -> None:
    """Streams of ext_proc are reset, half-closed or cut with their connection after each message, 50 times each.

    Nothing stays counted, and other tenants are served.
    """
    for length in range(1, len(WHOLE) + 1):
        async with grpc_client(fleet.address(AGENT, "picker")) as client:
            for number in range(50):
                call = client.call(PROCESS)
                for message in WHOLE[:length]:
                    call.write(message)
                await client.drain()
                if number % 3 == 0:
                    call.done_writing()
                elif number % 3 == 1:
                    call.cancel()
    await _idle_and_serving(fleet)


@attack("46.4")
async def bodies_without_end(fleet: Fleet) -> None:
    """Bodies at the picker, of requests and of responses, never end.

    Those of requests are refused with 413 or 429 within the limits, and the agent's memory stays bounded.
    """
    begun_kib = memory_kib(fleet.agents[AGENT].pid)
    async with grpc_client(fleet.address(AGENT, "picker")) as client:
        call = client.call(PROCESS)
        call.write(head(KEY))
        call.write(body(b'{"a":"', ends=False))
        status = None
        for _ in range(2_000):
            call.write(body(b"x" * 60_000, ends=False))
            if not call.messages.empty():
                status = ProcessingResponse.FromString(await call.read() or b"").immediate_response.status.code
                break
            await client.drain()
        expect(status in (413, 429), f"a request of 120 MB got {status}")
        call.cancel()
        call = client.call(PROCESS)
        for message in WHOLE[:4]:
            call.write(message)
        for _ in range(2_000):
            call.write(response_body(b" " * 60_000))
            await client.drain()
            while not call.messages.empty():
                await call.read()
        call.cancel()
    grown_kib = memory_kib(fleet.agents[AGENT].pid) - begun_kib
    expect(grown_kib < MAX_GROWTH_KIB, f"the agent uses {grown_kib // 1024} MiB more")
    await _idle_and_serving(fleet)


@attack("46.5")
async def hostile_mutations_by_other_filters(fleet: Fleet) -> None:
    """Filters before the picker repeat, forge or spoil headers, and state a served endpoint or a status of their own.

    Unclear heads are refused with 400 or 431; nothing forged selects a target, and no response counts twice.
    """
    long = tuple((b"x-%d" % number, b"y" * 600) for number in range(120))
    cases: tuple[tuple[str, tuple[Any, ...], tuple[int, ...]], ...] = (
        ("two lengths", (head(KEY, (b"content-length", b"5"), (b"content-length", b"6")),), (400,)),
        ("a length that is no number", (head(KEY, (b"content-length", b"-1")),), (400,)),
        ("a line end in a value", (head(KEY, (b"x-a", b"b\r\nx-penstock-route: c")),), (400,)),
        ("a name with a space", (head(KEY, (b"x a", b"b")),), (400,)),
        ("two keys", (head(KEY, (b"authorization", b"Bearer key-victim")), body(CHAT)), (400, 401)),
        ("no path", (head(KEY, path=""),), (400,)),
        ("a path with a line end", (head(KEY, path="/v1/chat/completions HTTP/1.1\r\nx: y"),), (400, 404)),
        ("many headers", (head(KEY, *long, *long),), (431,)),
        ("a key removed", (head(), body(CHAT)), (401,)),
        ("trailers for a head", (trailers("request_trailers"),), ()),
        ("a response before its request", (response_head(200),), ()),
    )
    async with grpc_client(fleet.address(AGENT, "picker")) as client:
        for case, messages, statuses in cases:
            status = await _status_of(client, messages)
            expect(status in statuses or (not statuses and status is None), f"{case}: {status}")
        for served, code in (("192.0.2.66:80", 200), ("not an address", 200), ("", 999), ("", 0)):
            call = client.call(PROCESS)
            for message in (*WHOLE[:3], response_head(code, JSON_TYPE, served=served), *WHOLE[4:]):
                call.write(message)
            call.done_writing()
            await call.ended()
    await _idle_and_serving(fleet)


@attack("46.6")
async def two_pickers_disagree(fleet: Fleet) -> None:
    """Two agents select for the same requests, and Envoy states to each that the other's endpoint has served.

    Both release what they hold, and the agents stay ready.
    """
    own, other = str(fleet.engines["eu-de"].address), str(fleet.engines["images"].address)
    async with (
        grpc_client(fleet.address(AGENT, "picker")) as first,
        grpc_client(fleet.address(OTHER_AGENT, "picker")) as second,
    ):
        for served in (own, other, "192.0.2.66:80") * 10:
            calls = [client.call(PROCESS) for client in (first, second)]
            for call in calls:
                for message in WHOLE[:3]:
                    call.write(message)
            for call in calls:
                named = ProcessingResponse.FromString(await call.read() or b"")
                expect(own in str(named), f"a picker names no endpoint: {str(named)[:200]}")
            for message in (response_head(200, JSON_TYPE, served=served), *WHOLE[4:]):
                calls[0].write(message)
            calls[0].done_writing()
            await calls[0].ended()
            calls[1].cancel()
    await _idle_and_serving(fleet)
