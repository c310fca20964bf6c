"""The API of a control plane in the test's own process."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from adapters.geoip_lookup import GeoIpLookup
from control_plane.auth.authentication import Access
from control_plane.daemon import ControlPlane

STEADY_LEASE_S = 60
"""Lease (s) of a leader in the test's process: a busy machine may stop the process for longer than two seconds."""

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
