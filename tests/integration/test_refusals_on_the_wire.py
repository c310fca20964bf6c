"""Refused requests get a status and a machine-readable reason, and reach no engine."""

from __future__ import annotations

import json
import time
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from penstock.policy.geography import NOWHERE
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.kinds.tenants import BATCH_PRIORITY
from penstock.wire import route_context
from penstock.wire.peer_keys import PeerKeys
from penstock.wire.route_context import CLOCK_SKEW_S, LIFETIME_S, MAX_HOPS, RouteContext, content_digest
from regional_agent.http.limits import Limits
from regional_agent.telemetry.access_log import AccessLog
from tests.support.agents import MAX_BODY_BYTES, running_agent
from tests.support.chats import BODY, CHAT, answers, ask, code
from tests.support.dns_names import dns_policy
from tests.support.identities import agent_keyring, control_plane_keyring, introduce, keys_between, region_keyring
from tests.support.planet import MODEL
from tests.support.sockets import Answer, RawClient, engine, post

EVERYWHERE = ("eu-de", "eu-es", "us-east")


@pytest.mark.parametrize(
    ("request_bytes", "status", "reason"),
    [
        (post(b"{"), 400, "bad_request"),
        (post(b'{"model": 5}'), 400, "bad_request"),
        (post(b'{"model": "\xff"}'), 400, "bad_request"),
        (post(b'{"a": ' + b"[" * 30_000), 400, "bad_request"),
        (post(b'{"model": "no-such"}'), 404, "model_not_found"),
        (post(BODY, path="/v1/nothing"), 404, "not_found"),
        (b"GET /v1/chat/completions HTTP/1.1\r\nHost: a\r\n\r\n", 405, "method_not_allowed"),
        (post(BODY, "Authorization: Bearer nobody"), 401, "invalid_api_key"),
        (post(BODY, "Authorization: Basic Zm9v"), 401, "invalid_api_key"),
        (post(b"x" * (MAX_BODY_BYTES + 1)), 413, "body_too_large"),
        (post(BODY, "X-Big: " + "x" * 70_000), 431, "head_too_large"),
        (post(BODY, *(f"X-{n}: 1" for n in range(200))), 431, "head_too_large"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nX-Endless: " + b"x" * 700_000, 431, "head_too_large"),
        (b"POST /" + b"x" * 700_000, 431, "head_too_large"),
        (b"nonsense\r\n\r\n", 400, "bad_request"),
        (post(BODY, "Transfer-Encoding: chunked"), 400, "bad_request"),
        (post(BODY, "Content-Length: 3"), 400, "bad_request"),
        (b"POST / HTTP/1.1\r\nHost : a\r\n\r\n", 400, "bad_request"),
        (b"POST / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400, "bad_request"),
        (b"POST / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", 400, "bad_request"),
        (b"POST / HTTP/1.1\r\nHost: a\x00b\r\n\r\n", 400, "bad_request"),
        (CHAT + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "bad_request"),
    ],
)
async def test_refusals_have_the_format_of_openai(
    tmp_path: Path, request_bytes: bytes, status: int, reason: str
) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(request_bytes)
        answer = await client.answer()
        assert (answer.status, code(answer.body)) == (status, reason)
        assert agent.metrics.registry.get_sample_value("penstock_agent_refusals_total", {"reason": reason}) == 1
        assert not gpu.requests
        assert agent.held() == 0


@pytest.mark.parametrize("size_bytes", [10, 100_000], ids=["whole", "by-its-head"])
async def test_without_an_anonymous_tenant_a_key_is_required(tmp_path: Path, size_bytes: int) -> None:
    asked = json.dumps({"model": MODEL, "prompt": "x" * size_bytes}).encode()
    log = AccessLog(tmp_path / "access.log", 0.0, Random(1))
    roomy = Limits(idle_linger_s=0.0)
    async with (
        engine(answers) as gpu,
        running_agent(tmp_path, [gpu.address], anonymous=None, access_log=log, limits=roomy) as agent,
    ):
        status, headers, body = await ask(agent, body=asked)
        assert (status, code(body)) == (401, "invalid_api_key")
        assert headers["www-authenticate"] == "Bearer"
        assert agent.tally.report().ended == 0, "requests of strangers are no evidence"
    log.close()
    (line,) = (tmp_path / "access.log").read_text().splitlines()
    assert (json.loads(line)["status"], json.loads(line)["outcome"]) == (401, "invalid_api_key")


async def test_a_forbidden_origin_redirects_the_client(tmp_path: Path) -> None:
    async with (
        engine(answers) as gpu,
        running_agent(tmp_path, [gpu.address], region="us-east", anonymous="personal") as agent,
    ):
        status, headers, body = await ask(agent)
        assert (status, code(body)) == (421, "misdirected")
        assert headers["x-penstock-regions"] == "eu-es,eu-de", "nearest first"
        assert "x-penstock-entries" not in headers, "the policy states no URL"
        agent.config.policy = dns_policy(agent.config.policy)
        status, headers, body = await ask(agent)
        assert (status, headers["x-penstock-entries"]) == (421, "https://eu-es.example.com,https://eu-de.example.com")
        assert b"use https://eu-es.example.com" in body
        assert not gpu.requests
        assert agent.offered == [], "not this origin's demand"


async def test_no_permitted_region_is_451(tmp_path: Path) -> None:
    nowhere = (
        ResidencyRule("only-here", allow=frozenset({"eu-de"}), source="residency.yaml:3"),
        ResidencyRule("not-here", deny=frozenset({"eu-de"}), source="residency.yaml:9"),
    )
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        agent.config.policy = replace(agent.config.policy, residency=nowhere)
        answer = await ask(agent)
        assert answer.status == 451
        assert answer.headers["x-penstock-refusal"] == "no_permitted_region"
        error = json.loads(answer.body)["error"]
        assert (error["type"], error["code"]) == ("residency_error", "no_permitted_region")
        assert "retry-after" not in answer.headers, "time changes nothing"
        assert "x-penstock-regions" not in answer.headers, "nowhere to go"
        assert not gpu.requests


async def test_of_refusals_by_place_only_those_that_a_change_may_cause_to_keys_are_evidence(tmp_path: Path) -> None:
    async with running_agent(tmp_path, [], region="us-east", anonymous="personal") as agent:
        tenants = agent.config.policy.tenants
        personal = replace(tenants["personal"], key_digests=(sha256(b"known").hexdigest(),))
        policy = replace(agent.config.policy, tenants=tenants | {"personal": personal})
        agent.config.policy = policy
        assert code((await ask(agent, "Authorization: Bearer known")).body) == "misdirected"
        assert agent.tally.report().ended == 0, "a tenant could move the evidence"

        agent.config.policy = replace(policy, residency=())
        assert code((await ask(agent, "Authorization: Bearer known")).body) != "misdirected"
        before = agent.tally.report().failed
        agent.config.policy = policy
        assert code((await ask(agent)).body) == "misdirected"
        assert agent.tally.report().failed == before, "any client could move the evidence"
        assert code((await ask(agent, "Authorization: Bearer known")).body) == "misdirected"
        assert agent.tally.report().failed == before + 1


PATH = b"/v1/chat/completions"


def signed(peer_keys: PeerKeys | None = None, **fields: object) -> str:
    """A route context for eu-de, signed by the agent of us-east or by `peer_keys`."""
    now = time.time()
    context = RouteContext(
        request_id="r",
        origin="us-east",
        server="eu-de",
        tenant="open",
        data_class="open",
        location=NOWHERE,
        model=MODEL,
        residency=EVERYWHERE,
        policy_digest="digest",
        issued_at=now,
        deadline_at=now + 60,
        traceparent="",
        content=content_digest(b"POST", PATH, BODY),
        body_bytes=len(BODY),
    )
    return route_context.seal(replace(context, **fields), peer_keys or keys_between("us-east", "eu-de"))


def unknown_peer() -> PeerKeys:
    """The keys of an agent of us-east whose certificate the agent of eu-de has not received."""
    certificate = region_keyring("eu-de").identity.peer.certificate
    return agent_keyring("us-east", "stranger").keys_with(certificate, time.time())


async def forwarded(directory: Path, token: str, *rules: ResidencyRule) -> Answer:
    """The response of an agent of eu-de to a request with this route header; engines receive it only if it is 200."""
    async with engine(answers) as gpu, running_agent(directory, [gpu.address]) as agent:
        if rules:
            agent.config.policy = replace(agent.config.policy, residency=rules)
        client = await RawClient.connect(agent.peer)
        client.send(post(BODY, f"X-Penstock-Route: {token}"))
        answer = await client.answer()
        client.close()
        assert bool(gpu.requests) is (answer.status == 200)
        assert agent.held() == agent.waiting() == 0
        return answer


async def test_a_signed_request_is_served(tmp_path: Path) -> None:
    assert (await forwarded(tmp_path, signed())).status == 200


async def test_a_part_of_the_slots_beyond_all_is_all_of_them(tmp_path: Path) -> None:
    assert (await forwarded(tmp_path, signed(priority=BATCH_PRIORITY, max_use=1e308))).status == 200


async def test_a_signed_request_is_served_once(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.peer)
        request = post(BODY, f"X-Penstock-Route: {signed()}")
        client.send(request + request)
        assert (await client.answer()).status == 200
        again = await client.answer()
        assert (again.status, code(again.body)) == (403, "bad_route_context")
        assert len(gpu.requests) == 1


async def test_the_deadline_follows_the_clock_of_the_origin(tmp_path: Path) -> None:
    late = time.time() - CLOCK_SKEW_S
    token = signed(issued_at=late, deadline_at=late + CLOCK_SKEW_S - 0.5)
    assert (await forwarded(tmp_path, token)).status == 200, "its clock is some seconds behind ours"


@pytest.mark.parametrize(
    ("token", "status", "reason"),
    [
        (lambda: signed(unknown_peer()), 403, "bad_route_context"),
        (lambda: signed(keys_between("eu-es", "eu-de")), 403, "bad_route_context"),
        (lambda: signed(introduce(control_plane_keyring(), region_keyring("eu-de"))), 403, "bad_route_context"),
        (lambda: signed(keys_between("us-east", "eu-es")), 403, "bad_route_context"),
        (lambda: signed()[:-4] + "AAAA", 403, "bad_route_context"),
        (lambda: signed(server="eu-es"), 403, "bad_route_context"),
        (lambda: signed(issued_at=time.time() - LIFETIME_S - 5), 403, "route_context_expired"),
        (lambda: signed(issued_at=time.time() + CLOCK_SKEW_S + 60), 403, "route_context_expired"),
        (lambda: signed(deadline_at=time.time() - CLOCK_SKEW_S - 5), 504, "deadline_passed"),
        (lambda: signed(hops=MAX_HOPS + 1), 508, "too_many_hops"),
        (lambda: signed(residency=("us-east",)), 451, "residency_denied"),
        (lambda: signed(content=content_digest(b"POST", PATH, BODY + b" ")), 403, "bad_route_context"),
        (lambda: signed(content=content_digest(b"POST", PATH + b"?x=1", BODY)), 403, "bad_route_context"),
        (lambda: signed(content=content_digest(b"GET", PATH, BODY)), 403, "bad_route_context"),
        (lambda: signed(content=""), 403, "bad_route_context"),
        (lambda: signed(body_bytes=len(BODY) + 1), 403, "bad_route_context"),
    ],
    ids=[
        "unknown certificate",
        "agent of another origin",
        "control plane",
        "signed for another region",
        "tampered",
        "other region",
        "old",
        "from the future",
        "late",
        "hops",
        "not by its origin",
        "other body",
        "other target",
        "other method",
        "for nothing",
        "other length",
    ],
)
async def test_a_forwarded_request_is_refused_with_its_reason(
    tmp_path: Path, token: object, status: int, reason: str
) -> None:
    answer = await forwarded(tmp_path, token())  # type: ignore[operator]
    assert (answer.status, code(answer.body), answer.headers["x-penstock-refusal"]) == (status, reason, reason)


async def test_the_server_refuses_what_its_own_policy_forbids_despite_the_signature(tmp_path: Path) -> None:
    not_here = ResidencyRule("not-here", deny=frozenset({"eu-de"}))
    answer = await forwarded(tmp_path, signed(), not_here)
    assert (answer.status, code(answer.body)) == (451, "residency_denied")
