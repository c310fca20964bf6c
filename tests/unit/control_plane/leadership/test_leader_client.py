"""Requests that a control plane forwards are signed, expire, are forwarded once, and never from TLS to plain HTTP."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import httpx
import pytest

from adapters.access.callers import Caller, Role
from adapters.store.members import Member
from control_plane.api.leader_forwarding import OPERATIONS
from control_plane.auth.authentication import Access
from control_plane.daemon import ControlPlane
from control_plane.leadership.forwarded_caller import (
    HEADER,
    LIFETIME_S,
    ForgedCaller,
    ForwardedCallers,
    request_digest,
    seal_caller,
)
from control_plane.leadership.leader_client import ForwardedRequest, LeaderClient, LeaderUnavailable
from lab.memory_store import MemoryStore
from penstock.wire.identity import ProcessRole, encode_certificate
from penstock.wire.peer_keys import Keyring
from tests.support.api_app import OPERATOR, TOKEN, leading, new_control_plane, served
from tests.support.clocks import SetClock
from tests.support.identities import CONTROL_PLANE, agent_keyring, control_plane_keyring
from tests.support.wait import PATIENCE_S

SOUTH, NORTH = control_plane_keyring("south"), control_plane_keyring(CONTROL_PLANE)
CALLER = Caller("olga", Role.OPERATOR)
DIGEST = request_digest("GET", "/v1/regions", b"")


def forwarded(clock: SetClock, sender: Keyring = SOUTH, digest: str = DIGEST) -> tuple[str, str]:
    """Token and certificate of a caller that `sender` forwards to the control plane of these tests."""
    peer_keys = sender.keys_with(NORTH.identity.peer.certificate, clock.now)
    token = seal_caller(CALLER, "192.0.2.7", digest, peer_keys, clock.now)
    return token, encode_certificate(sender.identity.peer.certificate)


@pytest.fixture
def clock() -> SetClock:
    clock = SetClock()
    clock.now = time.time()
    return clock


def test_a_forwarded_caller_is_accepted_once(clock: SetClock) -> None:
    callers = ForwardedCallers(NORTH, clock)
    token, certificate = forwarded(clock)
    accepted = callers.accept(token, certificate, DIGEST)
    assert (accepted.caller, accepted.client) == (CALLER, "192.0.2.7")
    with pytest.raises(ForgedCaller, match="forwarded before"):
        callers.accept(token, certificate, DIGEST)


def test_a_forwarded_caller_serves_one_request_for_a_while(clock: SetClock) -> None:
    callers = ForwardedCallers(NORTH, clock)
    token, certificate = forwarded(clock)
    with pytest.raises(ForgedCaller, match="another request"):
        callers.accept(token, certificate, request_digest("POST", "/v1/regions", b""))
    clock.now += LIFETIME_S + 1
    with pytest.raises(ForgedCaller, match="clocks"):
        callers.accept(token, certificate, DIGEST)


@pytest.mark.parametrize(
    "sender", [agent_keyring(), control_plane_keyring("south", fleet=1)], ids=["an agent", "another fleet"]
)
def test_only_a_control_plane_of_the_fleet_forwards_callers(clock: SetClock, sender: Keyring) -> None:
    if sender.identity.id.role is ProcessRole.AGENT:
        token, certificate = forwarded(clock, sender)
    else:
        token, certificate = forwarded(clock)[0], encode_certificate(sender.identity.peer.certificate)
    with pytest.raises(ForgedCaller):
        ForwardedCallers(NORTH, clock).accept(token, certificate, DIGEST)


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "x" * 10_000])
def test_other_tokens_are_rejected(clock: SetClock, token: str) -> None:
    _, certificate = forwarded(clock)
    with pytest.raises(ForgedCaller):
        ForwardedCallers(NORTH, clock).accept(token, certificate, DIGEST)


async def test_a_request_that_came_over_tls_is_not_sent_without() -> None:
    link = LeaderClient(Member("north", "https://north"), NORTH)
    with pytest.raises(LeaderUnavailable, match="plain http"):
        await link.forward(Member("south", "http://south"), ForwardedRequest("GET", "/", CALLER, ""), 1.0)
    await link.close()


async def forward(control_plane: ControlPlane, target: str, headers: dict[str, str]) -> int:
    """Forward a GET request to the control plane of these tests once it leads; returns the status."""
    link = LeaderClient(Member("south", "http://south"), SOUTH)
    await link.close()
    link._http = httpx.AsyncClient(transport=httpx.ASGITransport(served(control_plane, Access(TOKEN))))
    leader = Member(CONTROL_PLANE, "http://north")
    status = 503
    while status == 503:
        await leading(control_plane)
        reply = await link.forward(leader, ForwardedRequest("GET", target, CALLER, "", headers), PATIENCE_S)
        status = reply.status
    await link.close()
    return status


async def test_headers_of_the_client_may_have_any_bytes(control_plane: ControlPlane) -> None:
    assert await forward(control_plane, "/v1/regions", {"accept": "caf\xe9"}) == 200


async def test_the_signature_covers_the_query_as_it_is_sent(control_plane: ControlPlane) -> None:
    """httpx percent-encodes a quotation mark, which clients may send unencoded. There is no such model."""
    assert await forward(control_plane, '/v1/endpoints?model="none"', {}) == 404


async def test_a_forwarded_request_is_not_forwarded_again(control_plane: ControlPlane, clock: SetClock) -> None:
    """A follower refuses forwarded requests and names the leader; an accepted caller needs no credential."""
    app = served(control_plane, Access(TOKEN))
    follower = served(new_control_plane(MemoryStore()), Access(TOKEN))
    async with (
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://north") as leader_http,
        httpx.AsyncClient(transport=httpx.ASGITransport(follower), base_url="http://north") as follower_http,
    ):

        async def get(path: str, http: httpx.AsyncClient = leader_http) -> httpx.Response:
            token, certificate = forwarded(clock, digest=request_digest("GET", path, b""))
            return await http.get(path, headers={HEADER: token, "x-penstock-certificate": certificate})

        early = await get("/v1/tenants", follower_http)
        assert (early.status_code, "does not lead" in early.json()["detail"]) == (503, True)
        await leading(control_plane)

        async def get_from_leader(path: str) -> httpx.Response:
            # On a busy machine the lease may expire between two requests.
            while (response := await get(path)).status_code == 503:
                await leading(control_plane)
            return response

        assert (await get_from_leader("/v1/regions")).status_code == 200
        assert (await get_from_leader("/v1/whoami")).json()["name"] == "olga"
        forged = await leader_http.get("/v1/regions", headers={HEADER: "x", **OPERATOR})
        assert forged.status_code == 401


async def test_a_follower_does_not_answer_from_reports_that_it_lacks() -> None:
    app = served(new_control_plane(MemoryStore()), Access(TOKEN))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://north") as http:
        for path in ("/v1/regions", "/v1/budgets?tenant=personal", "/v1/tenants/personal/refusals"):
            answer = await http.get(path, headers=OPERATOR)
            assert (answer.status_code, "no control plane leads" in answer.text) == (503, True), path


async def test_the_body_of_a_forged_request_is_not_read(control_plane: ControlPlane) -> None:
    read = False

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        read = True
        yield b"x"

    transport = httpx.ASGITransport(served(control_plane, Access(TOKEN)))
    async with httpx.AsyncClient(transport=transport, base_url="http://north") as http:
        status = 503
        while status == 503:
            await leading(control_plane)
            status = (await http.post("/v1/explain", content=body(), headers={HEADER: "x"})).status_code
    assert (status, read) == (401, False)


def test_the_leader_serves_forwarded_requests(control_plane: ControlPlane) -> None:
    paths = served(control_plane, Access(TOKEN)).openapi()["paths"]
    assert {(method, path) for method, path in OPERATIONS if method.lower() not in paths.get(path, {})} == set()
