"""Receives any probe and any response to a probe.

The first byte selects how the input is used: `q`, the payload of a probe that an agent of another region signs; `a`,
the response that such an agent signs; else, the token of a probe. `NOW` in the input stands for the current time.
Property: a probe is rejected with a reason or is its signer's, for this region and recent; a response is rejected with
BadSignature, or is within its limits and leaves no more credits than it grants.
"""

from __future__ import annotations

import time

from penstock.policy.kinds.spillover_and_failover import Failover
from penstock.routing.spill_credits import MAX_WANTED
from penstock.wire.peer_keys import BadSignature, Purpose
from penstock.wire.peer_probe import (
    MAX_CREDIT_TTL_S,
    MAX_EXPECTED_WAIT_S,
    PeerProbeRequest,
    open_request,
    open_response,
    seal_request,
    seal_response,
)
from penstock.wire.route_context import CLOCK_SKEW_S
from regional_agent.peers.peer_region import PeerRegion
from regional_agent.upstream.address import Address
from tests.support.identities import agent_keyring, introduce

WORDS = (
    *(b'"origin":"us"', b'"agent":"agent-1"', b'"server":"eu"', b'"nonce":"', b'"sent_at":NOW', b'"wanted":{"m":'),
    *(b'"region":"us"', b'"models":{"m":', b'{"ready":true,"expected_wait_s":', b'"credits":', b'"credit_ttl_s":'),
    *(b"1e308", b"-1", b"9223372036854775808", b"null", b"\xff", b"\\ud800", b"."),
)

NOW = time.time()

_RECEIVER = agent_keyring("eu")
_OTHER = agent_keyring("us")
_SENDER = introduce(_OTHER, _RECEIVER)
_TO_OTHER = introduce(_RECEIVER, _OTHER)
_REQUEST = PeerProbeRequest("eu", "agent-1", "us", "nonce", NOW)
_ADDRESS = Address("127.0.0.1", 1)


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    select, content = data[:1], data[1:].replace(b"NOW", b"%.3f" % NOW)
    if select == b"a":
        _check_response(_SENDER.sign(Purpose.PROBE_ANSWER, b"nonce" + content).encode() + b"\n" + content)
    elif select == b"q":
        _check_request(_SENDER.seal(Purpose.PROBE, content), signed=True)
    else:
        _check_request(content.decode("latin-1"), signed=False)
        _check_response(content)


def _check_request(token: str, *, signed: bool) -> None:
    try:
        opened = open_request(token, _RECEIVER, "eu", NOW)
    except BadSignature:
        return
    assert signed
    if isinstance(opened, str):
        return
    request, peer_keys = opened
    assert (request.origin, request.agent, request.server) == ("us", "agent-1", "eu")
    assert abs(request.sent_at - NOW) <= CLOCK_SKEW_S
    assert peer_keys.peer.id == _OTHER.identity.id
    again = open_request(seal_request(request, _SENDER), _RECEIVER, "eu", NOW)
    assert not isinstance(again, str)
    assert again[0] == request


def _check_response(body: bytes) -> None:
    try:
        response = open_response(body, _REQUEST, _TO_OTHER)
    except BadSignature:
        return
    assert 0.0 <= response.credit_ttl_s <= MAX_CREDIT_TTL_S
    region = PeerRegion("us")
    region.set_addresses([_ADDRESS])
    region.answered(_ADDRESS, response, 0.02, 1.0)
    region.round_succeeded(1.0, 1.0, Failover())
    assert region.held([0] * 64).blocks <= 64
    for model, readiness in response.models.items():
        assert 0.0 <= readiness.expected_wait_s <= MAX_EXPECTED_WAIT_S
        assert 0 <= readiness.credits <= MAX_WANTED
        view = region.view(model, 1.0, Failover())
        assert view.credits <= readiness.credits
    assert open_response(seal_response(response, _REQUEST, _SENDER), _REQUEST, _TO_OTHER) == response
