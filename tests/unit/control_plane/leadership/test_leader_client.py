"""What one control plane hands on to another: signed, for a while, once, and never from TLS to none."""

from __future__ import annotations

import httpx
import pytest

from adapters.store.members import Member
from control_plane.api.leader_forwarding import OPERATIONS
from control_plane.auth.authentication import Access
from control_plane.daemon import ControlPlane
from control_plane.leadership.leader_client import HOP_HEADER, MAX_HOP_AGE_S, Hop, LeaderClient, LeaderUnavailable
from penstock.wire.signing import FleetKey, Purpose
from tests.support.api_app import served
from tests.support.reports import KEY
from tests.support.stores import SetClock
from tests.unit.control_plane.api.test_control_plane_app import OPERATOR, TOKEN, control_plane, leading

__all__ = ["control_plane"]


def sealed(clock: SetClock, key: FleetKey = KEY, purpose: Purpose = Purpose.HOP) -> str:
    return key.seal(purpose, b'{"by":"south","client":"192.0.2.7","at":%d}' % clock.now)


async def test_a_hop_is_known_by_its_signature_for_a_while() -> None:
    clock = SetClock()
    link = LeaderClient(Member("north", "http://north"), KEY, clock=clock)
    hop = sealed(clock)
    assert link.verify_hop(hop) == Hop("south", "192.0.2.7", clock.now)
    for other in (None, "", "x", hop[:-1], sealed(clock, FleetKey(b"x" * 32)), sealed(clock, purpose=Purpose.PROBE)):
        assert link.verify_hop(other) is None
    clock.now += MAX_HOP_AGE_S + 1
    assert link.verify_hop(hop) is None
    await link.close()


async def test_a_credential_that_came_over_tls_is_not_sent_without() -> None:
    link = LeaderClient(Member("north", "https://north"), KEY)
    with pytest.raises(LeaderUnavailable, match="plain http"):
        await link.forward(Member("south", "http://south"), "GET", "/", {}, client="", within_s=1.0)
    await link.close()


async def test_what_was_handed_on_is_not_handed_on_again(control_plane: ControlPlane) -> None:
    """Whoever does not lead says so; and failures are the client's, not those of the one between."""
    app = served(control_plane, Access(TOKEN))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://north") as http:
        hop = {
            HOP_HEADER: KEY.seal(Purpose.HOP, b'{"by":"south","client":"192.0.2.7","at":%d}' % control_plane.view.now())
        }
        early = await http.get("/v1/tenants", headers=OPERATOR | hop)
        assert (early.status_code, "does not lead" in early.json()["detail"]) == (503, True)
        await leading(control_plane)
        assert (await http.get("/v1/regions", headers=OPERATOR | hop)).status_code == 200
        bad = {"authorization": "Bearer nobody"} | hop
        while (refused := await http.get("/v1/regions", headers=bad)).status_code == 401:
            pass
        assert (refused.status_code, "192.0.2.7" in refused.json()["detail"]) == (429, True)
        assert (await http.get("/v1/regions", headers=OPERATOR)).status_code == 200


def test_what_is_asked_of_the_leader_is_there(control_plane: ControlPlane) -> None:
    paths = served(control_plane, Access(TOKEN)).openapi()["paths"]
    assert {(method, path) for method, path in OPERATIONS if method.lower() not in paths.get(path, {})} == set()
