"""Attacks at the endpoint picker, by a client of Envoy and by a stranger who reaches the port of the picker."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from regional_agent.picker.processing_request import SERVICE
from tests.attacks.fleet import SMALL, Fleet, key_of, within
from tests.attacks.suite import attack, expect
from tests.support.ext_proc_messages import ProcessingResponse
from tests.support.grpc_client import grpc_client
from tests.support.picker_streams import body, head

AGENT = "eu-de/a"
PROCESS = f"/{SERVICE}/Process"
CHAT = json.dumps({"model": SMALL, "messages": []}).encode()
STREAMS = 1_000
PART_BYTES = 60_000

FORGED = (
    (b"x-gateway-destination-endpoint", b"192.0.2.66:80"),
    (b"x-penstock-route", b"forged"),
    (b"x-penstock-region", b"us-east"),
)


def _headers(tenant: str) -> tuple[bytes, bytes]:
    return b"authorization", key_of(tenant)["authorization"].encode()


@attack("46.1")
async def forged_headers_at_the_picker(fleet: Fleet) -> None:
    """A client sends Envoy a target, a route context and a region of its own, with and without a key.

    Without a key, and where residency forbids the region, the picker names no endpoint. With a key it names endpoints
    of the region only, also if the forged subset has other hosts.
    """
    own = str(fleet.engines["eu-de"].address)
    in_hamburg = (b"x-forwarded-for", b"198.18.1.7")
    cases: tuple[tuple[str, Any, int | None], ...] = (
        ("no key", head(*FORGED, in_hamburg), 401),
        ("a forbidden region", head(*FORGED, in_hamburg, _headers("us-attacker")), 421),
        ("another subset", head(*FORGED, in_hamburg, _headers("attacker"), subset=["192.0.2.66:80"]), 503),
        ("a key", head(*FORGED, in_hamburg, _headers("attacker")), None),
    )
    async with grpc_client(fleet.address(AGENT, "picker")) as client:
        for case, message, status in cases:
            call = client.call(PROCESS)
            call.write(message)
            if status in (None, 503):
                call.write(body(CHAT))
            answer = ProcessingResponse.FromString(await call.read() or b"")
            call.cancel()
            text = str(answer)
            expect("192.0.2.66" not in text, f"{case}: the picker names the forged target")
            if status is None:
                expect(own in text, f"{case}: the picker names no endpoint of its region: {text[:300]}")
            else:
                code = answer.immediate_response.status.code
                expect(code == status, f"{case}: {code} instead of {status}")
                expect(own not in text, f"{case}: the refusal names an endpoint")


@attack("46.2")
async def half_sent_bodies_at_the_picker(fleet: Fleet) -> None:
    """A tenant opens 1,000 requests at the picker and sends a part of each body; other tenants are served meanwhile.

    Afterwards nothing is counted.
    """
    async with grpc_client(fleet.address(AGENT, "picker")) as client:
        calls = [client.call(PROCESS) for _ in range(STREAMS)]
        try:
            for call in calls:
                call.write(head(_headers("attacker")))
                call.write(body(b'{"a":"' + b"x" * PART_BYTES, ends=False))
            for _ in range(5):
                answer = await fleet.chat(AGENT, "victim")
                expect(answer.status_code == 200, f"the victim gets {answer.status_code}")
                await asyncio.sleep(0.2)
        finally:
            for call in calls:
                call.cancel()
    expect(await within(10.0, fleet.idle), "requests of the attacker are still counted")
