"""Attacks by a tenant whose requests agents and engines read differently, or at different times."""

from __future__ import annotations

import asyncio
import json

from tests.attacks.fleet import IMAGES, SMALL, Fleet, key_of, within
from tests.attacks.suite import attack, expect
from tests.support.sockets import RawClient


@attack("28")
async def decisions_by_headers_that_are_removed(fleet: Fleet) -> None:
    """A tenant has the Connection header remove the headers by which its request is located, identified and read.

    Each request is refused with 400 and reaches no engine.
    """
    engine = fleet.engines["eu-de"]
    engine.reset()
    body = json.dumps({"model": SMALL, "messages": [], "user": "attacker"}).encode()
    names = ("content-type", "Authorization", "x-api-key", "X-Forwarded-For", "content-encoding", "X-Session-Id", "Via")
    for name in names:
        client = await RawClient.connect(fleet.address("eu-de/a"))
        client.send(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer key-attacker\r\n"
            f"X-Forwarded-For: 198.18.1.7\r\nConnection: keep-alive, {name}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        status, _ = await client.head()
        client.close()
        expect(status == 400, f"{status} where Connection names {name}")
    expect(not engine.started, "a request reached an engine")


@attack("29")
async def forwarded_requests_outlive_their_model(fleet: Fleet) -> None:
    """A tenant keeps requests waiting in another region while the policy removes their model.

    None of them starts. An origin that has the earlier policy for a moment longer answers 503.
    """
    engine = fleet.engines["images"]
    engine.reset()
    before = await fleet.digests()

    async def image(agent: str, user: str, seconds: float) -> int:
        body = {"model": IMAGES, "prompt": "x", "n": 1, "size": "256x256", "user": user, "seconds": seconds}
        url = f"http://{fleet.address(agent)}/v1/images/generations"
        return (await fleet.http.post(url, json=body, headers=key_of("attacker"))).status_code

    async def waiting() -> bool:
        statuses = await asyncio.gather(fleet.status("eu-de/a"), fleet.status("eu-de/b"))
        return sum(status["waiting"].get(IMAGES, 0) for status in statuses) == 2

    async def changed() -> bool:
        return not before & await fleet.digests()

    running = [asyncio.create_task(image("eu-de/a", "first", 8.0)) for _ in range(4)]
    expect(await within(5.0, lambda: _equals(engine, 4)), "the engine is not full")
    waiters = [asyncio.create_task(image("eu-es/a", "late", 0.0)) for _ in range(2)]
    try:
        expect(await within(5.0, waiting), "the forwarded requests do not wait")
        fleet.write_models("")
        expect(await within(20.0, changed), "the agents did not accept the new policy within 20 s")
        statuses = await asyncio.gather(*waiters)
        await asyncio.gather(*running)
        expect("late" not in engine.started, "a request for a removed model started")
        expect({404, 503}.issuperset(statuses), f"the waiting requests got {statuses}")
    finally:
        await asyncio.gather(*running, *waiters, return_exceptions=True)
        fleet.write_models()

        async def restored() -> bool:
            return await fleet.digests() == before

        await within(20.0, restored)


async def _equals(engine: object, running: int) -> bool:
    return getattr(engine, "running", 0) == running
