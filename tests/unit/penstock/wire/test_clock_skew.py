"""A region whose probes succeed accepts requests, whatever the difference of the two clocks."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.geography import Location
from penstock.routing.reasons import Refusal
from penstock.wire import route_context
from penstock.wire.peer_probe import PeerProbeRequest, open_request, seal_request
from penstock.wire.route_context import MAX_TRANSIT_S, RouteContext, accept
from tests.support.identities import agent_keyring, introduce
from tests.support.planet import MODEL, policy

CLOCK_SKEW_S = 5.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

NOW = time.time()
ORIGIN, SERVER = agent_keyring("eu-de"), agent_keyring("eu-es")
TO_SERVER = introduce(ORIGIN, SERVER)
TRANSIT_S = st.floats(0.0, MAX_TRANSIT_S)


def probe_accepted(skew_s: float, transit_s: float) -> bool:
    token = seal_request(PeerProbeRequest("eu-de", "agent-1", "eu-es", "nonce", NOW), TO_SERVER)
    return isinstance(open_request(token, SERVER, "eu-es", NOW + skew_s + transit_s), tuple)


def request_accepted(skew_s: float, transit_s: float, timeout_s: float) -> bool:
    context = RouteContext(
        "r-1", "eu-de", "eu-es", "open", "open", Location("DE"), MODEL, ("eu-es",), "digest", NOW, NOW + timeout_s
    )
    now = NOW + skew_s + transit_s
    return not isinstance(accept(route_context.seal(context, TO_SERVER), SERVER, policy(), "eu-es", now), Refusal)


@given(st.floats(-15.0, 15.0), TRANSIT_S, TRANSIT_S, st.floats(MAX_TRANSIT_S, 600.0))
def test_a_clock_that_probes_accept_is_good_for_requests(
    skew_s: float, probe_transit_s: float, request_transit_s: float, timeout_s: float
) -> None:
    if probe_accepted(skew_s, probe_transit_s):
        assert request_accepted(skew_s, request_transit_s, timeout_s)


@given(st.floats(-CLOCK_SKEW_S, CLOCK_SKEW_S - MAX_TRANSIT_S), TRANSIT_S)
def test_clocks_within_the_bound_are_accepted(skew_s: float, transit_s: float) -> None:
    assert probe_accepted(skew_s, transit_s)
