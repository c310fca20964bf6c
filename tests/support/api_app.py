"""The API of a control plane in the process of the test."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from adapters.geoip_lookup import GeoIpLookup
from control_plane.auth.authentication import Access
from control_plane.daemon import ControlPlane

STEADY_LEASE_S = 60
"""Lease (s) of a leader in the test's process, because a busy machine may stop the process for more than 2 s."""

_description: dict[str, Any] | None = None


def served(control_plane: ControlPlane, access: Access, geoip: GeoIpLookup | None = None) -> FastAPI:
    """The API, with its OpenAPI description created in advance as by `penstock serve`: its creation during a request
    would delay the renewal of the lease.

    The description is the same for every control plane, so all tests of a process share it.
    """
    global _description
    app = control_plane.create_api(access, geoip)
    app.openapi_schema = _description
    _description = app.openapi()
    return app
