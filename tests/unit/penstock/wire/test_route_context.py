"""A route context is accepted only if it is signed, recent, for this region, and permitted by this agent's policy."""

from __future__ import annotations

import time

import msgspec
import pytest

from penstock.policy.geography import Location
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.routing.reasons import Reason, Refusal
from penstock.wire.peer_keys import PeerKeys, Purpose
from penstock.wire.route_context import REPLAY_WINDOW_S, ReplayGuard, RouteContext, accept, content_digest, seal
from tests.support.identities import agent_keyring, control_plane_keyring, introduce
from tests.support.planet import EU_ONLY, MODEL, policy

BOUND_BYTES = 16 * 1024
"""As documented, and not imported: a test fails if a tuned constant changes."""

NOW = time.time()
ORIGIN, SERVER, STRANGER = agent_keyring("eu-de"), agent_keyring("eu-es"), agent_keyring("eu-gb")
TO_SERVER, STRANGER_TO_SERVER = introduce(ORIGIN, SERVER), introduce(STRANGER, SERVER)

GOOD = RouteContext(
    request_id="r-1",
    origin="eu-de",
    server="eu-es",
    tenant="personal",
    data_class="personal",
    location=Location("DE"),
    model=MODEL,
    residency=("eu-de", "eu-es"),
    policy_digest="digest",
    issued_at=NOW,
    deadline_at=NOW + 60,
)


def verdict(context: RouteContext, *, here: str = "eu-es", peer_keys: PeerKeys = TO_SERVER, now: float = NOW) -> object:
    answer = accept(seal(context, peer_keys), SERVER, policy(), here, now)
    return answer.reason if isinstance(answer, Refusal) else answer


def test_a_good_one_comes_through_whole() -> None:
    assert verdict(GOOD) == GOOD
    assert verdict(GOOD, now=NOW + 29.0) == GOOD, "half a minute after it was issued"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hops": 2}, Reason.TOO_MANY_HOPS),
        ({"server": "us-east"}, Reason.BAD_ROUTE_CONTEXT),
        ({"issued_at": NOW - 31}, Reason.ROUTE_CONTEXT_EXPIRED),
        ({"issued_at": NOW + 7}, Reason.ROUTE_CONTEXT_EXPIRED),
        ({"deadline_at": NOW - 6}, Reason.DEADLINE_PASSED),
        ({"residency": ("eu-de",)}, Reason.RESIDENCY_DENIED),
        ({"deadline_at": 1e308}, Reason.BAD_ROUTE_CONTEXT),
        ({"request_id": "a\r\nx-evil: 1"}, Reason.BAD_ROUTE_CONTEXT),
        ({"request_id": "x" * 4000}, Reason.BAD_ROUTE_CONTEXT),
        ({"traceparent": "00-\u00e9"}, Reason.BAD_ROUTE_CONTEXT),
    ],
)
def test_what_is_wrong_with_it_is_refused_with_its_reason(change: dict[str, object], reason: Reason) -> None:
    assert verdict(msgspec.structs.replace(GOOD, **change)) is reason


@pytest.mark.parametrize(
    "peer_keys",
    [
        pytest.param(STRANGER_TO_SERVER, id="an agent of another region"),
        pytest.param(introduce(control_plane_keyring(), SERVER), id="a control plane"),
        pytest.param(
            agent_keyring("eu-de", "agent-9").keys_with(SERVER.identity.peer.certificate, NOW),
            id="an unknown agent",
        ),
    ],
)
def test_only_a_known_agent_of_the_origin_can_sign(peer_keys: PeerKeys) -> None:
    assert verdict(GOOD, peer_keys=peer_keys) is Reason.BAD_ROUTE_CONTEXT


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "%%%",
        "a.b",
        pytest.param("x" * 10_000, id="long"),
        pytest.param(TO_SERVER.seal(Purpose.PROBE, msgspec.json.encode(GOOD)), id="signed as a probe"),
    ],
)
def test_what_is_no_signed_route_is_refused(token: str) -> None:
    answer = accept(token, SERVER, policy(), "eu-es", NOW)
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.BAD_ROUTE_CONTEXT


def test_the_server_s_own_policy_has_the_last_word() -> None:
    lying = msgspec.structs.replace(GOOD, server="us-east", residency=("eu-de", "us-east"))
    assert verdict(lying, here="us-east") is Reason.RESIDENCY_DENIED


def test_a_newer_policy_at_the_server_refuses_what_the_origin_s_allowed() -> None:
    newer = policy(EU_ONLY, ResidencyRule("madrid-is-out", deny=frozenset({"eu-es"})))
    answer = accept(seal(GOOD, TO_SERVER), SERVER, newer, "eu-es", NOW)
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.RESIDENCY_DENIED
    assert "madrid-is-out" in answer.rejected[-1].detail


TARGET = b"/v1/chat/completions"
BODY = b'{"model": "m"}'


@pytest.mark.parametrize(
    ("came", "fits"),
    [
        ((b"POST", TARGET, BODY, len(BODY)), True),
        ((b"POST", TARGET, bytearray(BODY), len(BODY)), True),
        ((b"GET", TARGET, BODY, len(BODY)), False),
        ((b"POST", TARGET + b"?a", BODY, len(BODY)), False),
        ((b"POST", TARGET, BODY + b" ", len(BODY) + 1), False),
        ((b"POST", TARGET, BODY, None), False),
    ],
)
def test_it_fits_what_it_was_signed_for_alone(
    came: tuple[bytes, bytes, bytes | bytearray, int | None], fits: bool
) -> None:
    context = msgspec.structs.replace(GOOD, content=content_digest(b"POST", TARGET, BODY), body_bytes=len(BODY))
    assert context.fits(*came) is fits
    assert not GOOD.fits(*came), "one that was signed for nothing fits nothing"


def test_of_a_large_body_the_beginning_and_the_length_count() -> None:
    beginning = bytearray(b"x" * (BOUND_BYTES + 9))
    context = msgspec.structs.replace(GOOD, content=content_digest(b"POST", TARGET, beginning), body_bytes=900_000)
    assert context.fits(b"POST", TARGET, b"x" * BOUND_BYTES + b"y", 900_000)
    assert not context.fits(b"POST", TARGET, beginning, 900_001)
    chunked = msgspec.structs.replace(context, body_bytes=None)
    assert chunked.fits(b"POST", TARGET, beginning, None)


def test_each_is_used_once_and_remembered_for_as_long_as_it_is_good() -> None:
    used, tokens = (
        ReplayGuard(),
        [seal(msgspec.structs.replace(GOOD, request_id=f"r-{n}"), TO_SERVER) for n in range(3)],
    )
    assert used.first(tokens[0], 1000.0)
    assert not used.first(tokens[0], 1000.1)
    assert not used.first("A" + tokens[0][1:], 1000.2), "it goes by the signature"
    assert used.first(tokens[1], 1000.0 + REPLAY_WINDOW_S - 1)
    assert not used.first(tokens[1], 1000.0 + 2 * REPLAY_WINDOW_S - 2)
    assert used.first(tokens[2], 1000.0 + 9 * REPLAY_WINDOW_S)
    assert used.first(tokens[1], 1000.0 + 9 * REPLAY_WINDOW_S), "it would be refused as expired"
