"""Attacks by a tenant whose requests agents and engines read differently, or at different times."""

from __future__ import annotations

import asyncio
import json

from tests.attacks.fleet import IMAGES, SMALL, Fleet, key_of, within
from tests.attacks.suite import attack, expect
from tests.support.sockets import RawClient

CHATS = (
    b'{"model":"%b","Model":"other","messages":[]}',
    b'{"MODEL":"other","model":"%b","messages":[]}',
    b'{"model":"%b","m\\u006fdel":"other","messages":[]}',
    b'{"model":"%b","\\u004dodel":"other","messages":[]}',
    b'{"model":"%b","model\\u0000":"other","messages":[]}',
    b'{"model":"%b","messages":[],"stream":false,"Stream":true}',
    b'{"model":"%b","messages":[],"\xc5\xbftream":true}',
    b'{"model":"%b","messages":[],"max_tokens":1,"Max_Tokens":1000000}',
    b'{"model":"%b","messages":[],"max_to\xe2\x84\xaaens":1000000}',
    b'{"model":"%b","messages":[],"max_completion_tokens":1,"max_completion_tokens":1000000}',
    b'{"model":"%b","messages":[],"user":"a","USER":"b"}',
    b'{"model":"%b","messages":[],"N":100}',
    b'{"model":"%b","messages":[],"max_tokens":"1000000"}',
    b'{"model":"%b","messages":[],"stream":"true"}',
    b'{"model":"%b","messages":[],"stream":1}',
    b'{"model":"%b","messages":[],}',
    b'{"model":"%b","messages":[]}{"model":"other"}',
    b'{"model":"%b","messages":[]}\0',
    b'\xef\xbb\xbf{"model":"%b","messages":[]}',
    b'{"model":"%b","messages":["\xff"]}',
    b'{"model":"%b","messages":[],"mode\xff\x6c":"other"}',
)
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/images/edits")


@attack("27")
async def json_that_parsers_read_differently(fleet: Fleet) -> None:
    """A tenant sends JSON whose model, limits or flags two parsers read differently, on several routes, of any size.

    Each is refused with 400 and reaches no engine; the same JSON without the trick is served.
    """
    engine = fleet.engines["eu-de"]
    engine.reset()

    async def send(path: str, body: bytes, content_type: str = "application/json") -> int:
        headers = key_of("attacker") | {"content-type": content_type}
        answer = await fleet.http.post(f"http://{fleet.address('eu-de/a')}{path}", content=body, headers=headers)
        return answer.status_code

    for template in CHATS:
        body = template.replace(b"%b", SMALL.encode())
        long = body.replace(b'"messages":[]', b'"messages":["%b"]' % (b"x" * 200_000))
        for path in PATHS:
            expect(await send(path, body) == 400, f"{body!r} was not refused at {path}")
        expect(await send(PATHS[0], long) == 400, f"{body!r} was not refused with a long prompt")
    good = b'{"model":"%b","messages":[]}' % SMALL.encode()
    expect(await send(PATHS[0], good, "application/json; charset=utf-16") == 400, "another charset was accepted")
    form = "application/x-www-form-urlencoded"
    expect(await send(PATHS[0], good[:-1] + b',"x":"&model=other&"}', form) == 400, "a form in JSON was accepted")
    expect(not engine.started, "a request that was refused reached an engine")
    expect(await send(PATHS[0], good) == 200, "a request without a trick was refused")


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
