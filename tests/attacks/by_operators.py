"""Attacks by the holder of a viewer's API key, and the replacement of a file that processes use."""

from __future__ import annotations

import asyncio
import os
import time

import httpx

from adapters.store import keys
from tests.attacks.by_strangers import many_addresses, serves_others, slow_post
from tests.attacks.fleet import MONITOR, VIEWERS, Fleet
from tests.attacks.suite import attack, expect
from tests.support.control_planes import OPERATOR

VALIDATED_S = 20.0
LONGEST_REFUSAL_BYTES = 16 * 1024
SLOWEST_S = 3.0
"""Longest time (s) of another caller's request meanwhile. Long, because the machine may be busy."""


def viewer(number: int) -> dict[str, str]:
    """Headers of one of the viewers."""
    return {"authorization": f"Bearer {VIEWERS[number]}"}


@attack("5")
async def geoip_file_replaced_in_place(fleet: Fleet) -> None:
    """The GeoIP database is truncated and overwritten in place while it is used.

    No process ends, and locations stay known: clients whose data must stay in the EU are still recognised.
    """

    async def personal() -> int:
        headers = {"authorization": "Bearer demo-personal"}
        return (await fleet.chat("us-east/a", "victim", headers=headers)).status_code

    expected, good = await personal(), fleet.geoip.read_bytes()
    try:
        for content in (b"", b"x" * 100, good[: len(good) // 2], os.urandom(len(good))):
            with fleet.geoip.open("r+b") as file:
                file.truncate(0)
                file.write(content)
            await asyncio.sleep(0.7)
            for server in fleet.control_planes:
                url = f"{server.url}/v1/steer?ip=198.18.1.7&tenant=personal"
                await fleet.http.get(url, headers=OPERATOR)
            found = await personal()
            expect(not fleet.dead(), f"processes have ended: {fleet.dead()}")
            expect(found == expected, f"a request from Hamburg got {found} instead of {expected}")
    finally:
        fleet.geoip.write_bytes(good)


@attack("14")
async def costly_bundle(fleet: Fleet) -> None:
    """A viewer has bundles of 3 MB validated, one after the other.

    Each is answered within a bounded time, and other callers are served meanwhile; the leader stays.
    """
    rules = "".join(
        f"---\napiVersion: penstock/v1\nkind: Tenant\nname: t{number}\ndata_class: open\nkey_digests: "
        f'["{number:064x}"]\n'
        for number in range(22_000)
    )
    bundle = {file.name: file.read_text() for file in fleet.bundle.glob("*.yaml")}
    bundle["many.yaml"] = rules[:3_000_000].rpartition("---\n")[0]
    nested = {"deep.yaml": "[" * 1_500_000 + "]" * 1_500_000}
    aliases = {"aliases.yaml": "a: &a [x]\n" + "".join(f"b{n}: [*a, *a, *a]\n" for n in range(150_000))}
    leader = await fleet.leader()
    assert leader is not None
    slowest_s = 0.0
    for attacked in (bundle, nested, aliases):
        started = time.monotonic()
        validating = asyncio.create_task(
            fleet.http.post(f"{leader.url}/v1/policies/validate", json=attacked, headers=viewer(0))
        )
        while not validating.done() and time.monotonic() - started < VALIDATED_S:
            asked = time.monotonic()
            await fleet.http.get(f"{leader.url}/v1/whoami", headers=viewer(1))
            slowest_s = max(slowest_s, time.monotonic() - asked)
            await asyncio.sleep(0.05)
        took_s = time.monotonic() - started
        if not validating.done():
            validating.cancel()
        expect(took_s < VALIDATED_S, f"one validation took more than {VALIDATED_S:g} s")
    expect(slowest_s < SLOWEST_S, f"another viewer waited {slowest_s:.1f} s")
    expect(await fleet.leader() is leader, "the leader changed")


@attack("14.1")
async def megabytes_of_unknown_fields(fleet: Fleet) -> None:
    """A viewer and a monitor send 3.4 MB of unknown fields to each route of both control planes.

    The answers are short, the monitor's requests are refused by its role, and the leader stays.
    """
    body = b"{" + b",".join(b'"n%d":1' % number for number in range(340_000))[:3_400_000] + b"}"
    leader = await fleet.leader()
    assert leader is not None
    epoch = (await fleet.http.get(f"{leader.url}/v1/status", headers=viewer(1))).json()["epoch"]
    paths = (await fleet.http.get(f"{leader.url}/openapi.json")).json()["paths"]
    guarded = [
        (method.upper(), path, operation["x-required-role"])
        for path, methods in paths.items()
        for method, operation in methods.items()
        if "x-required-role" in operation
    ]
    # A connection that is not used again cannot be closed by the server as the next request is sent.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=60.0, limits=limits) as http:
        for method, path, role in guarded:
            for credential, permitted in ((VIEWERS[0], ("monitor", "viewer")), (MONITOR, ("monitor",))):
                for server in fleet.control_planes:
                    headers = {"authorization": f"Bearer {credential}", "content-type": "application/json"}
                    url = server.url + path.replace("{number}", "1").replace("{generation}", "1")
                    if path == "/v1/events" and role in permitted:
                        continue  # The response of a permitted request does not end.
                    answer = await http.request(method, url, content=body, headers=headers)
                    expect(role in permitted or answer.status_code == 403, f"{method} {path}: {answer.status_code}")
                    is_short = answer.status_code < 400 or len(answer.content) < LONGEST_REFUSAL_BYTES
                    expect(is_short, f"{method} {path}: a refusal of {len(answer.content)} bytes")
    status = (await fleet.http.get(f"{leader.url}/v1/status", headers=viewer(1))).json()
    expect(status["epoch"] == epoch, "the leader was deposed")


@attack("14.2")
async def cookies_of_a_stranger(fleet: Fleet) -> None:
    """A stranger sends cookies that Python's parsers take seconds for.

    Other callers are answered meanwhile.
    """
    hostile = {"cookie": 'a="' + "\\" * 60_000 + '"', "x-penstock-ui": "1"}
    for server in fleet.control_planes:
        sending = [asyncio.create_task(fleet.http.get(f"{server.url}/livez", headers=hostile)) for _ in range(5)]
        asked = time.monotonic()
        await fleet.http.get(f"{server.url}/v1/whoami", headers=viewer(1))
        took_s = time.monotonic() - asked
        await asyncio.gather(*sending)
        expect(took_s < SLOWEST_S, f"a viewer waited {took_s:.1f} s")


@attack("15.3")
async def changes_of_a_viewer(fleet: Fleet) -> None:
    """A viewer sets overrides and begins drills, with a new identifier each time.

    Each is refused with 403 and leaves nothing in etcd.
    """
    drain = {"kind": "drain", "region": "eu-de", "reason": "an attack", "expires_in_s": 600}
    drill = {"exercise": "step_down", "reason": "an attack"}
    changed = (keys.OVERRIDES, keys.DRILL, keys.AUDIT_HEAD)
    before = [await fleet.store.get(key) for key in changed]
    for number in range(30):
        url = fleet.control_planes[number % 2].url
        for path, body in ((f"overrides/attack-{number}", drain), (f"drills/{number + 1}", drill)):
            answer = await fleet.http.put(f"{url}/v1/{path}", json=body, headers=viewer(0))
            expect(answer.status_code == 403, f"a viewer's PUT of {path} got {answer.status_code}")
    expect([await fleet.store.get(key) for key in changed] == before, "etcd was changed")


@attack("15.4")
async def every_event_stream(fleet: Fleet) -> None:
    """Two viewers open as many event streams as they can.

    A third caller's stream is accepted.
    """
    server = fleet.control_planes[0]
    async with httpx.AsyncClient(timeout=httpx.Timeout(10.0, pool=None), limits=httpx.Limits()) as http:
        opened: list[httpx.Response] = []
        try:
            for number in (0, 1):
                while True:
                    request = http.build_request("GET", f"{server.url}/v1/events", headers=viewer(number))
                    response = await http.send(request, stream=True)
                    opened.append(response)
                    if response.status_code != 200 or len(opened) > 300:
                        break
            request = http.build_request("GET", f"{server.url}/v1/events", headers=viewer(2))
            response = await http.send(request, stream=True)
            opened.append(response)
            held = sum(response.status_code == 200 for response in opened)
            expect(response.status_code == 200, f"{response.status_code} while two callers hold {held} event streams")
        finally:
            for response in opened:
                await response.aclose()


@attack("15.6")
async def connections_of_a_viewer(fleet: Fleet) -> None:
    """A viewer opens 1,100 connections: with slow bodies, and with event streams.

    Requests of operators are answered, and no report is lost.
    """
    key = f"authorization: {viewer(0)['authorization']}\r\n".encode()
    await serves_others(fleet, slow_post("/v1/explain", key), b"x", many_addresses)
    await serves_others(fleet, b"GET /v1/events HTTP/1.1\r\nhost: x\r\n%b\r\n" % key, b"", many_addresses)
