"""A control plane and its API in the process of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from adapters.access.callers import Caller, Role
from adapters.geoip_lookup import GeoIpLookup
from adapters.store.config_store import ConfigStore
from adapters.store.members import Member
from control_plane.auth.admin_token import AdminToken
from control_plane.auth.authentication import Access
from control_plane.daemon import ControlPlane
from control_plane.policy.folder import FolderReader
from lab.memory_store import MemoryStore
from penstock.wire.peer_keys import Keyring
from tests.support.identities import control_plane_keyring
from tests.support.paths import PLANET
from tests.support.wait import until

STEADY_LEASE_S = 60
"""Lease (s) of a leader in the test's process, because a busy machine may stop the process for more than 2 s."""

TOKEN = AdminToken("0123456789abcdef")
OPERATOR = {"authorization": TOKEN.header()}
REGIONS = ("eu-de", "eu-es", "eu-gb", "jp-tok", "us-east")
"""The regions of PLANET."""

_description: dict[str, Any] | None = None


def new_control_plane(
    store: ConfigStore, name: str = "north", *, policies: Path = PLANET, keyring: Keyring | None = None
) -> ControlPlane:
    """A control plane at `http://<name>` that is not started, with the policy of a folder.

    Args:
        keyring: its identity; None for the one that reports of `tests.support.reports` are signed for.
    """
    return ControlPlane(
        store,
        Member(name, f"http://{name}"),
        keyring=keyring or control_plane_keyring(),
        policy_reader=FolderReader(policies),
        leader_lease_s=STEADY_LEASE_S,
    )


@asynccontextmanager
async def leading_control_plane(
    store: MemoryStore | None = None, *, policies: Path = PLANET, keyring: Keyring | None = None
) -> AsyncIterator[ControlPlane]:
    """A control plane called north that leads and has published its first plan.

    Before a control plane leads, requests that need the state of the fleet are answered with 503.
    """
    store = store or MemoryStore()
    control_plane = new_control_plane(store, policies=policies, keyring=keyring)
    await control_plane.start()
    try:
        await leading(control_plane)
        yield control_plane
    finally:
        await control_plane.stop()
        await store.close()


async def leading(control_plane: ControlPlane) -> None:
    """Wait until a control plane leads and has a plan for each region of its policy."""

    def leads() -> bool:
        policy = control_plane.view.policy
        has_plans = policy is not None and control_plane.view.plans.keys() == policy.regions.keys()
        return has_plans and control_plane.reporter.status().leading

    await until(leads)


@asynccontextmanager
async def client_of(app: FastAPI, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an API in the process of the test, which returns an internal error as a response."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://north", headers=headers) as client:
        yield client


def is_problem(response: httpx.Response, status: int) -> bool:
    """Whether a response is a problem document (RFC 9457) with a status."""
    body = response.json()
    return (
        response.status_code == status
        and response.headers["content-type"] == "application/problem+json"
        and body["status"] == status
        and {"type", "title", "detail"} <= body.keys()
    )


CALLERS = {
    "duty": Caller("duty", Role.OPERATOR),
    "germany": Caller("germany", Role.OPERATOR, frozenset({"eu-de"})),
    "guest": Caller("guest", Role.VIEWER),
}


class SomeCallers(Access):
    """Access for CALLERS, by name, and the admin."""

    async def caller(self, credential: str) -> Caller | None:
        return CALLERS.get(credential) or await super().caller(credential)


def as_(name: str) -> dict[str, str]:
    """The header of a caller."""
    return {"authorization": f"Bearer {name}"}


@asynccontextmanager
async def leading_api(control_plane: ControlPlane) -> AsyncIterator[httpx.AsyncClient]:
    """The admin's client of a control plane that leads; see SomeCallers."""
    await leading(control_plane)
    async with client_of(served(control_plane, SomeCallers(TOKEN)), **OPERATOR) as client:
        yield client


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
