"""The API of a control plane in the test's own process."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI

from adapters.geoip_lookup import GeoIpLookup
from control_plane.auth.authentication import Access
from control_plane.daemon import ControlPlane
from control_plane.leadership import leader_election, leader_elector

_description: dict[str, Any] | None = None


def served(control_plane: ControlPlane, access: Access, geoip: GeoIpLookup | None = None) -> FastAPI:
    """The API, described beforehand as `penstock serve` does it: in the first request it would cost the lease.

    Every control plane's description is the same, so one is made for all the tests of a process.
    """
    global _description
    app = control_plane.create_api(access, geoip)
    app.openapi_schema = _description
    _description = app.openapi()
    return app


def lead_steadily(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give leaders in this process a lease of a minute: a busy machine may stop it for longer than two seconds."""
    for module in (leader_election, leader_elector):
        monkeypatch.setattr(module, "LEASE_TTL_S", 60)
