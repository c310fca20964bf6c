"""Attacks by a tenant with a valid API key: numbers, uploads, urgency, forms; and requests that outlive a policy."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress

import httpx

from tests.attacks.fleet import IMAGES, LARGE, SLOTS, SMALL, TENANTS, Fleet, key_of, within
from tests.attacks.suite import attack, expect
from tests.support.sockets import RawClient

HUGE = "9" * 400
NUMBERS = (
    HUGE,
    f"-{HUGE}",
    "1e400",
    f"{HUGE}.5",
    "-1",
    "0",
    "NaN",
    '"1"',
    "[1]",
    "null",
    "true",
    "18446744073709551616",
)
FIELDS = ("max_tokens", "max_completion_tokens", "n", "steps", "seed", "temperature")

FORMS = (
    ("multipart/form-data; xboundary=A; boundary=B", "B", 'form-data; name="model"'),
    ("multipart/form-data; boundary=B; boundary=A", "A", 'form-data; name="model"'),
    ("multipart/form-data; boundary=B; boundary*0=A", "A", 'form-data; name="model"'),
    ("multipart/form-data; boundary=B", "B", 'form-data; name*0="mod"; name*1="el"'),
    ("multipart/form-data; boundary=B", "B", "form-data; name*=utf-8''model"),
    ("multipart/form-data; boundary=B", "B", 'form-data; name="other"; name="model"'),
)
"""Content-Type, the delimiter that the body uses, and Content-Disposition of the part with the model."""


@attack("1")
async def numbers_in_bodies(fleet: Fleet) -> None:
    """A tenant sends numbers of any size in request bodies.

    No response is a server error, the log does not grow with the attack, and every slot, reservation and quota is
    released: a tenant that may have one request at a time is served afterwards.
    """
    address = fleet.address("eu-de/a")

    async def is_served() -> bool:
        return (await fleet.chat("eu-de/a", "single")).status_code == 200

    # Another agent of the region may hold the only place until this one asks for it.
    expect(await within(10.0, is_served), "the tenant is not served before the attack")
    log_bytes = fleet.agents["eu-de/a"].log_path.stat().st_size
    statuses = set()
    for field in FIELDS:
        for number in NUMBERS:
            body = f'{{"model": "{SMALL}", "messages": [], "user": "numbers", "{field}": {number}}}'.encode()
            headers = key_of("single") | {"content-type": "application/json"}
            try:
                answer = await fleet.http.post(f"http://{address}/v1/chat/completions", content=body, headers=headers)
            except httpx.TransportError as error:
                expect(False, f"{field} of {number[:20]} ended the connection without a response: {error!r}")
            statuses.add(answer.status_code)
            expect(answer.status_code < 500 and answer.status_code != 429, f"{answer.status_code} for {field} {number}")
    expect(200 in statuses, f"no request of the attack was served: {statuses}")
    expect(await is_served(), "the tenant's quota was not released")
    expect(await within(5.0, fleet.idle), "requests are still counted as in flight")
    grown_bytes = fleet.agents["eu-de/a"].log_path.stat().st_size - log_bytes
    expect(grown_bytes < 100_000, f"the log grew by {grown_bytes} bytes")


@attack("2")
async def unfinished_uploads(fleet: Fleet) -> None:
    """A tenant opens more large uploads than the listener has body memory for, and finishes none.

    Another tenant's request of 200 KB is served meanwhile.
    """
    address = fleet.address("eu-de/a")
    clients = []
    try:
        for length in (*[1_000_000] * 30, *[70_000] * 200):
            client = await RawClient.connect(address)
            client.send(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer key-attacker\r\n"
                b"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
            )
            client.send(f'{{"model": "{SMALL}", "messages": "'.encode() + b"x" * (length - 1000))
            clients.append(client)
        await asyncio.sleep(1.0)
        for _ in range(5):
            answer = await fleet.chat("eu-de/a", "victim", padding="x" * 200_000)
            expect(answer.status_code == 200, f"another tenant's large request got {answer.status_code}: {answer.text}")
    finally:
        for client in clients:
            client.close()


async def _send_chat(fleet: Fleet, tenant: str, agent: str = "eu-de/a", model: str = SMALL, key: str = "") -> RawClient:
    client = await RawClient.connect(fleet.address(agent))
    body = json.dumps({"model": model, "messages": [], "user": tenant, "stream": True, "seconds": 60}).encode()
    client.send(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key or f'key-{tenant}'}\r\n"
        f"Connection: close\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return client


async def open_queued(fleet: Fleet, tenant: str) -> RawClient:
    """A request that waits for the only slot of the only region that has its model."""
    client = await _send_chat(fleet, tenant, "eu-es/a", LARGE)

    async def queued() -> bool:
        return bool((await fleet.status("eu-es/a"))["waiting"][LARGE] == 1)

    expect(await within(10.0, queued), "the request is not queued")
    return client


async def open_stream(
    fleet: Fleet, tenant: str, agent: str = "eu-de/a", model: str = SMALL, key: str = ""
) -> RawClient:
    """A stream whose response has begun; with another key than that of a tenant of the policy, if `key` is set."""
    client = await _send_chat(fleet, tenant, agent, model, key)
    status, _ = await client.head()
    expect(status == 200, f"the stream began with {status}")
    return client


async def open_tunnel(fleet: Fleet, tenant: str) -> RawClient:
    """An open tunnel."""
    client = await RawClient.connect(fleet.address("eu-de/a"))
    client.send(
        f"GET /v1/realtime?model={SMALL} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer key-{tenant}\r\n"
        f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    status, _ = await client.head()
    expect(status == 101, f"the tunnel began with {status}")
    return client


async def open_upload(fleet: Fleet, tenant: str) -> RawClient:
    """An upload that is not complete."""
    client = await RawClient.connect(fleet.address("eu-de/a"))
    client.send(
        f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer key-{tenant}\r\n"
        f"X-Model: {SMALL}\r\nContent-Type: audio/wav\r\nContent-Length: 60000000\r\n\r\n".encode()
    )
    client.send(b"x" * 2_000_000)
    return client


async def ends(client: RawClient) -> float:
    """Reads until the connection ends; returns when (monotonic clock, s)."""
    with suppress(ConnectionError):
        while await client.reader.read(1 << 16):
            pass
    return time.monotonic()


RULE = """
---
apiVersion: penstock/v1
kind: ResidencyRule
name: moved-to-spain
description: Made by the attack.
match:
  tenants: [moved]
allow:
  regions: [eu-es]
"""


@attack("3")
async def open_requests_outlive_a_policy(fleet: Fleet) -> None:
    """A tenant keeps streams, a tunnel, an upload and a queued request open while a policy revokes what permits them.

    Everything that the new policy does not permit ends within a second of the policy.
    """
    before = await fleet.digests()
    permitted = [await open_stream(fleet, "victim"), await open_stream(fleet, "victim", "eu-es/a", LARGE)]
    clients = {
        "stream, key revoked": await open_stream(fleet, "revoked"),
        "tunnel, key revoked": await open_tunnel(fleet, "revoked"),
        "upload, key revoked": await open_upload(fleet, "revoked"),
        "queued, key revoked": await open_queued(fleet, "revoked"),
        "stream, region forbidden": await open_stream(fleet, "moved"),
    }
    ending = {name: asyncio.create_task(ends(client)) for name, client in clients.items()}
    going_on = [asyncio.create_task(ends(client)) for client in permitted]
    try:
        await asyncio.sleep(0.5)
        early = [name for name, task in ending.items() if task.done()]
        expect(not early, f"ended before the policy changed: {early}")
        without = {name: data_class for name, data_class in TENANTS.items() if name != "revoked"}
        fleet.write_policy(without, RULE)

        async def changed() -> bool:
            statuses = await asyncio.gather(fleet.status("eu-de/a"), fleet.status("eu-es/a"))
            return all(status["policy_digest"] not in before for status in statuses)

        expect(await within(20.0, changed), "the agents did not accept the new policy within 20 s")
        changed_at = time.monotonic()
        await asyncio.wait(ending.values(), timeout=1.0)
        late = [name for name, task in ending.items() if not task.done()]
        expect(not late, f"still open {time.monotonic() - changed_at:.1f} s after the policy: {', '.join(late)}")
        expect(not any(task.done() for task in going_on), "a permitted stream ended as well")
    finally:
        for client in (*clients.values(), *permitted):
            client.close()
        await asyncio.gather(*ending.values(), *going_on, return_exceptions=True)
        fleet.write_policy()

        async def restored() -> bool:
            return await fleet.digests() == before

        await within(20.0, restored)


@attack("6")
async def absurd_image(fleet: Fleet) -> None:
    """A tenant requests images of absurd size, so that an agent's published load is absurd.

    The region's other agent still counts the running requests: the engine never runs more than its slots.
    """
    engine = fleet.engines["images"]
    engine.reset()

    async def image(agent: str, size: str, count: int) -> int:
        body = {"model": IMAGES, "prompt": "x", "n": count, "size": size, "steps": 1000, "seconds": 3}
        url = f"http://{fleet.address(agent)}/v1/images/generations"
        return (await fleet.http.post(url, json=body, headers=key_of("attacker"))).status_code

    absurd = [asyncio.create_task(image("eu-de/a", "16384x16384", 128)) for _ in range(4)]
    await asyncio.sleep(1.0)
    normal = [asyncio.create_task(image("eu-de/b", "256x256", 1)) for _ in range(4)]
    await asyncio.gather(*absurd, *normal)
    expect(engine.max_running > 0, "no request reached the engine")
    expect(engine.max_running <= 4, f"the engine ran {engine.max_running} requests on 4 slots")


@attack("10")
async def long_queue_across_regions(fleet: Fleet) -> None:
    """A tenant fills another region's only engine, so that forwarded requests wait in two queues.

    A request waits at most 20 s in all before it is refused.
    """
    running = asyncio.create_task(fleet.chat("eu-es/a", "attacker", LARGE, seconds=26))
    await asyncio.sleep(0.5)

    async def waited() -> tuple[float, int]:
        started = time.monotonic()
        answer = await fleet.chat("eu-de/a", "victim", LARGE)
        return time.monotonic() - started, answer.status_code

    try:
        for seconds, status in await asyncio.gather(*(waited() for _ in range(4))):
            expect(status != 200 or seconds < 20.0, "the engine was not full")
            expect(seconds < 22.0, f"a request waited {seconds:.1f} s, and got {status}")
    finally:
        await running


@attack("11")
async def queue_full_of_bytes(fleet: Fleet) -> None:
    """A tenant fills the admission queue with few requests of 15.9 MiB.

    None of another tenant's small requests is displaced: those go that use the bytes.
    """
    running = [asyncio.create_task(fleet.chat("eu-es/a", "es-victim", seconds=6)) for _ in range(SLOTS)]
    await asyncio.sleep(0.3)
    small = [asyncio.create_task(fleet.chat("eu-es/a", "es-victim")) for _ in range(20)]
    await asyncio.sleep(0.3)
    padding = "x" * (16_600_000)
    large = [asyncio.create_task(fleet.chat("eu-es/a", "es-attacker", padding=padding)) for _ in range(18)]
    await asyncio.wait(large, timeout=20.0)
    statuses = [answer.status_code for answer in await asyncio.gather(*running, *small)]
    for task in large:
        task.cancel()
    await asyncio.gather(*large, return_exceptions=True)
    expect(
        set(statuses) == {200}, f"{len(statuses) - statuses.count(200)} small requests of another tenant were refused"
    )


@attack("12")
async def short_deadlines(fleet: Fleet) -> None:
    """A tenant sets a short `x-request-timeout-ms` on every request to overtake another tenant's in the queue.

    The other tenant, whose requests were there first, is served first.
    """
    engine = fleet.engines["us-east"]
    running = asyncio.create_task(fleet.chat("us-east/a", "us-victim", seconds=2))
    await asyncio.sleep(0.3)
    engine.reset()
    patient = [asyncio.create_task(fleet.chat("us-east/a", "us-victim", seconds=0.2)) for _ in range(6)]
    await asyncio.sleep(0.3)
    urgent = {"x-request-timeout-ms": "15000"}
    hurried = [
        asyncio.create_task(fleet.chat("us-east/a", "us-attacker", headers=urgent, seconds=0.2)) for _ in range(6)
    ]
    answers = await asyncio.gather(running, *patient, *hurried)
    first = engine.started[:6]
    expect({answer.status_code for answer in answers[:7]} == {200}, "requests of the patient tenant were refused")
    expect(first.count("us-victim") >= 3, f"the first six to run were {first}")


@attack("13")
async def ambiguous_forms(fleet: Fleet) -> None:
    """A tenant uploads forms whose model two parsers read differently: boundaries and names given twice or in parts.

    Each is refused with 400 and reaches no engine.
    """
    engine = fleet.engines["eu-de"]
    engine.reset()
    for content_type, delimiter, disposition in FORMS:
        body = (
            f"--{delimiter}\r\nContent-Disposition: {disposition}\r\n\r\n{SMALL}\r\n"
            f'--{delimiter}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx\r\n'
            f"--{delimiter}--\r\n"
        )
        headers = key_of("attacker") | {"content-type": content_type}
        url = f"http://{fleet.address('eu-de/a')}/v1/audio/transcriptions"
        answer = await fleet.http.post(url, content=body.encode(), headers=headers)
        expect(answer.status_code == 400, f"{answer.status_code} for {content_type!r} with {disposition!r}")
    late = b"x" * 100_000
    body_bytes = (
        b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\n'
        + SMALL.encode()
        + b"\r\n--B\r\nContent-Disposition:"
        b' form-data; name="file"; filename="a"\r\n\r\n' + late + b"\r\n--B\r\nContent-Disposition: form-data;"
        b' name="model"\r\n\r\nanother\r\n--B--\r\n'
    )
    headers = key_of("attacker") | {"content-type": "multipart/form-data; boundary=B"}
    url = f"http://{fleet.address('eu-de/a')}/v1/audio/transcriptions"
    answer = await fleet.http.post(url, content=body_bytes, headers=headers)
    expect(answer.status_code == 400, f"{answer.status_code} for a second model after 100 KB of file")
    expect(not engine.started, "a refused form reached an engine")


@attack("15")
async def endpoint_at_a_link_local_address(fleet: Fleet) -> None:
    """The holder of a registration token registers an endpoint at the cloud's metadata address, in every notation.

    Each is refused.
    """
    admin = f"http://{fleet.address('eu-de/a', 'admin')}/v1/endpoints"
    token = {"authorization": "Bearer a-registration-token-of-the-attacked-fleet"}
    hosts = (
        *("169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.169.254.", "169.254.43518"),
        *("[fe80::1]", "[::ffff:169.254.169.254]", "[::169.254.169.254]", "[::ffff:0:a9fe:a9fe]", "[fd00:ec2::254]"),
        *("[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "[2001:0:a9fe:a9fe::]"),
        *("１６９.254.169.254", "169。254。169。254", "%31%36%39.254.169.254", "ok@169.254.169.254", "[fe80::1%25lo]"),
        *("[fd20:ce::254]", "[64:ff9b:1:a9fe:a9:fe00::]", "100.100.100.200", "192.0.0.192", "0xa9.254.169.254"),
        *("[2001:db8::5efe:a9fe:a9fe]", "168.63.129.16", "[::ffff:168.63.129.16]", "255.255.255.255", "0.0.0.0"),
    )
    for host in hosts:
        spec = {"url": f"http://{host}:80", "models": [SMALL], "slots": 4, "engine": "http", "ttl_s": 5}
        answer = await fleet.http.put(f"{admin}/metadata", json=spec, headers=token)
        expect(answer.status_code == 400, f"{answer.status_code} for a registration at {host}")


@attack("18")
async def prompts_that_break_engines(fleet: Fleet) -> None:
    """A tenant's prompts make the only engine of a region break connections or respond with 500, forty times a second.

    Every request of another tenant, which may run in that region only, is served meanwhile.
    """
    stop = asyncio.Event()

    async def harm(**fields: bool) -> None:
        while not stop.is_set():
            with suppress(httpx.TransportError):
                await fleet.chat("eu-de/a", "attacker", **fields)
            await asyncio.sleep(0.1)

    harms = [{name: True, "stream": stream} for name in ("break", "fail") for stream in (False, True)]
    attackers = [asyncio.create_task(harm(**fields)) for fields in harms]
    refused: dict[int, int] = {}
    try:
        await asyncio.sleep(0.5)
        for _ in range(100):
            answer = await fleet.chat("eu-de/a", "de-victim")
            if answer.status_code != 200:
                refused[answer.status_code] = refused.get(answer.status_code, 0) + 1
            await asyncio.sleep(0.02)
    finally:
        stop.set()
        await asyncio.gather(*attackers)
    expect(not refused, f"requests of another tenant were refused, by status: {refused}")


@attack("49")
async def kept_responses_of_others(fleet: Fleet) -> None:
    """A tenant sends the request of another tenant, whose response is kept, to both agents of the region.

    The owner receives the kept response at both agents; for the attacker an engine runs, whatever tenant it names.
    """

    async def cache_status(agent: str, tenant: str, text: str, **headers: str) -> str:
        answer = await fleet.chat(agent, tenant, user=text, temperature=0, headers=headers)
        expect(answer.status_code == 200, f"{agent} answered {answer.status_code}: {answer.text}")
        return answer.headers.get("cache-status", "").split(";")[1].strip()

    for number, (agent, headers) in enumerate(
        [("eu-de/a", {}), ("eu-de/b", {}), ("eu-de/a", {"x-penstock-tenant": "victim"})]
    ):
        text = f"kept-{number}"

        async def is_kept(agent: str = agent, text: str = text) -> bool:
            return await cache_status(agent, "victim", text) == "hit"

        await cache_status("eu-de/a", "victim", text)
        expect(await within(10.0, is_kept), f"{agent} has not kept the response of the owner")
        started = len(fleet.engines["eu-de"].started)
        found = await cache_status(agent, "attacker", text, **headers)
        expect(found == "fwd=miss", f"{agent} sent the attacker a kept response")
        expect(len(fleet.engines["eu-de"].started) > started, "no engine has run for the attacker")
