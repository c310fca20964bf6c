"""Attacks with the private key of one agent (us-east/a), on the agents and control planes of the same fleet."""

from __future__ import annotations

import asyncio
import time

import httpx
import msgspec

from penstock.policy.geography import Location
from penstock.wire import identity, peer_probe, route_context
from penstock.wire.identity import decode_certificate, encode_certificate
from penstock.wire.peer_keys import BadSignature, Keyring, PeerKeys
from penstock.wire.peer_probe import PeerProbeRequest
from penstock.wire.route_context import CLOCK_SKEW_S, RouteContext, content_digest
from penstock.wire.signed_report import report_headers
from tests.attacks.fleet import SLOTS, SMALL, Fleet
from tests.attacks.suite import attack, expect
from tests.support.identities import agent_keyring
from tests.support.reports import offered, report

BODY = f'{{"model": "{SMALL}", "messages": [], "user": "stolen"}}'.encode()
TARGET = "/v1/chat/completions"


def stolen() -> Keyring:
    """The keys of the stolen agent."""
    return agent_keyring("us-east", "a")


async def keys_with(fleet: Fleet, url: str, keyring: Keyring) -> PeerKeys:
    """The keys shared with the process at a URL."""
    shown = await fleet.peers.get(url + identity.PATH)
    return keyring.keys_with(decode_certificate(shown.content), time.time())


@attack("17")
async def report_for_another_region(fleet: Fleet) -> None:
    """An agent's key signs a report for another region, and for another agent of its own region.

    Each is rejected with 401 or 403, and the region's state does not change.
    """
    keyring = stolen()
    for server in fleet.control_planes:
        peer_keys = await keys_with(fleet, server.url, keyring)
        for region, agent in (("eu-de", "a"), ("eu-es", "z"), ("us-east", "b")):
            forged = report(region, offered(1e6, region), seq=2**40, epoch=2**50, agent=agent, ready=0)
            body = msgspec.msgpack.encode(forged)
            headers = report_headers(peer_keys, keyring.identity.peer.certificate, body)
            answer = await fleet.http.post(f"{server.url}/v1/reports", content=body, headers=headers)
            expect(answer.status_code in (401, 403), f"{answer.status_code} for a report of {region}/{agent}")


def made_context(origin: str, server: str, skew_s: float = 0.0, **changed: object) -> RouteContext:
    """A route context of a small request, `skew_s` ahead of the clock."""
    now = time.time() + skew_s
    context = RouteContext(
        "r-1",
        origin,
        server,
        "victim",
        "open",
        Location("DE"),
        SMALL,
        ("eu-de", "eu-es", "us-east"),
        "digest",
        now,
        now + 60.0,
        content=content_digest(b"POST", TARGET.encode(), BODY),
        body_bytes=len(BODY),
    )
    return msgspec.structs.replace(context, **changed)


async def forward(fleet: Fleet, agent: str, token: str) -> int:
    """Status of the forwarded request with a route context."""
    url = await fleet.peer_url(agent) + TARGET
    headers = {route_context.HEADER: token, "content-type": "application/json"}
    return (await fleet.peers.post(url, content=BODY, headers=headers)).status_code


@attack("17.1")
async def route_context_for_another_origin(fleet: Fleet) -> None:
    """An agent's key signs a route context that names another origin, another server or more hops, or is used twice.

    Each is rejected; only its own context for the agent that it was signed for is accepted, once.
    """
    peer_keys = await keys_with(fleet, await fleet.peer_url("eu-de/a"), stolen())
    for context, what in (
        (made_context("eu-es", "eu-de"), "another origin"),
        (made_context("us-east", "eu-es"), "another server"),
        (made_context("us-east", "eu-de", hops=2), "two hops"),
        (
            made_context("us-east", "eu-de", tenant="us-victim"),
            "a tenant of another region",
        ),
        (made_context("us-east", "eu-de", content="0" * 64), "another body"),
        (made_context("us-east", "eu-de", deadline_at=time.time() + 10**7), "a deadline months away"),
    ):
        status = await forward(fleet, "eu-de/a", route_context.seal(context, peer_keys))
        expect(status >= 400, f"{status} for a route context with {what}")
    token = route_context.seal(made_context("us-east", "eu-de"), peer_keys)
    expect(await forward(fleet, "eu-de/b", token) >= 400, "a context that was signed for another agent was accepted")
    expect(await forward(fleet, "eu-de/a", token) == 200, "an agent's own context was rejected")
    expect(await forward(fleet, "eu-de/a", token) >= 400, "a context was accepted twice")


async def _answer(fleet: Fleet, token: str) -> httpx.Response:
    headers = {
        peer_probe.HEADER: token,
        identity.HEADER: encode_certificate(stolen().identity.peer.certificate),
    }
    return await fleet.peers.get(await fleet.peer_url("eu-de/a") + peer_probe.PATH, headers=headers)


async def _probe(fleet: Fleet, token: str) -> int:
    return (await _answer(fleet, token)).status_code


@attack("15.1")
async def clock_skew(fleet: Fleet) -> None:
    """An agent's clock is off by 2 to 30 s.

    Where its probes are accepted, its requests are too: a region does not look healthy and refuse everything.
    """
    peer_keys = await keys_with(fleet, await fleet.peer_url("eu-de/a"), stolen())
    for skew_s in (-30.0, -7.0, -4.0, 0.0, 4.0, 7.0, 30.0):
        question = PeerProbeRequest("us-east", "a", "eu-de", f"nonce{skew_s}", time.time() + skew_s)
        probed = await _probe(fleet, peer_probe.seal_request(question, peer_keys))
        sent = await forward(fleet, "eu-de/a", route_context.seal(made_context("us-east", "eu-de", skew_s), peer_keys))
        expect(probed != 200 or sent == 200, f"with {skew_s:g} s a probe got {probed} and a request {sent}")
        expect(abs(skew_s) < 10.0 or probed != 200, f"a probe that is {skew_s:g} s off was accepted")


@attack("15.2")
async def probe_for_another_agent(fleet: Fleet) -> None:
    """An agent's key signs probes that name another region or agent, in order to take the credits granted to those.

    Each is rejected.
    """
    peer_keys = await keys_with(fleet, await fleet.peer_url("eu-de/a"), stolen())
    for origin, agent, server in (("eu-es", "a", "eu-de"), ("us-east", "b", "eu-de"), ("us-east", "a", "eu-es")):
        question = PeerProbeRequest(origin, agent, server, "nonce", time.time(), {SMALL: 1000})
        status = await _probe(fleet, peer_probe.seal_request(question, peer_keys))
        expect(status in (401, 403), f"{status} for a probe of {origin}/{agent} to {server}")


@attack("15.5")
async def replayed_probe(fleet: Fleet) -> None:
    """A recorded probe that asks for spill credits is sent again and again.

    The answers grant together no more than the first one, are signed for the recorded nonce alone, and end with the
    clock skew that is accepted.
    """
    peer_keys = await keys_with(fleet, await fleet.peer_url("eu-de/a"), stolen())
    signed_s = time.time() - CLOCK_SKEW_S + 2.0
    question = PeerProbeRequest("us-east", "a", "eu-de", "recorded", signed_s, {SMALL: 1000})
    token = peer_probe.seal_request(question, peer_keys)
    granted = []
    for _ in range(20):
        if granted and time.time() > signed_s + CLOCK_SKEW_S - 1.0:
            break  # A slow machine has used up the time in which the probe is accepted.
        answer = await _answer(fleet, token)
        expect(answer.status_code == 200, f"{answer.status_code} for a probe within the clock skew")
        granted.append(peer_probe.open_response(answer.content, question, peer_keys).models[SMALL].credits)
    expect(max(granted) <= 2 * SLOTS, f"{max(granted)} credits granted by {2 * SLOTS} slots")
    try:
        peer_probe.open_response(answer.content, msgspec.structs.replace(question, nonce="new"), peer_keys)
    except BadSignature:
        pass
    else:
        expect(False, "an old answer was accepted for a new probe")
    await asyncio.sleep(max(0.0, signed_s + CLOCK_SKEW_S + 0.1 - time.time()))
    expect(await _probe(fleet, token) == 403, "a probe was accepted after the clock skew")
