"""Authorisation of routes: a parameter such as `caller: Operator`, and a check of the regions that change.

`create_app` rejects a route without such a parameter unless its router is open.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated

import structlog
from fastapi import Depends, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from msgspec.structs import replace

from adapters.access.callers import Caller, Role
from control_plane.api.responses import Problem
from control_plane.auth.authentication import Access, Unidentified

_REMEDY = "send an API key, a token of the identity provider, or the admin token as `Authorization: Bearer <key>`"

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="bearer",
    description="An API key, a JWT of the identity provider, or the admin token of this control plane.",
)
_log = structlog.get_logger(__name__)

_Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


def require(role: Role) -> Callable[..., Awaitable[Caller]]:
    """Return a dependency that provides the caller, or raises 401 (unauthenticated) or 403 (role too low)."""

    async def caller(request: Request, _: _Bearer) -> Caller:
        return await authorise(request, request.app.state.access, role)

    return caller


DryRun = Annotated[
    bool,
    Query(description="Check the change, and return what it would return, without making it."),
]


def require_for_change(role: Role) -> Callable[..., Awaitable[Caller]]:
    """Return a dependency as `require` does, for a route that makes a change: its requests may be dry runs."""

    async def caller(request: Request, _: _Bearer, dry_run: DryRun = False) -> Caller:
        found = await authorise(request, request.app.state.access, role)
        return replace(found, is_dry_run=dry_run)

    return caller


_monitor, _viewer = require(Role.MONITOR), require(Role.VIEWER)
_operator, _admin = require_for_change(Role.OPERATOR), require_for_change(Role.ADMIN)

Monitor = Annotated[Caller, Depends(_monitor)]
Viewer = Annotated[Caller, Depends(_viewer)]
Operator = Annotated[Caller, Depends(_operator)]
Admin = Annotated[Caller, Depends(_admin)]


async def authorise(request: Request, access: Access, role: Role) -> Caller:
    """Return the caller of a request, which is in `request.state.caller` afterwards.

    Raises:
        Problem: 401, the credential is missing or invalid; 403, the caller's role does not cover `role`; 429, the
            client's address has too many failed logins.
    """
    # A middleware, or another dependency of the same route, may have authenticated the caller.
    found = getattr(request.state, "caller", None)
    if not isinstance(found, Caller):
        request.state.caller = found = await _authenticate(request, access)
    if not found.role.covers(role):
        raise Problem(403, f"{found.name} has the role {found.role.value}; this requires {role.value}")
    return found


async def caller_of(request: Request, access: Access) -> Caller | None:
    """Return the caller of a request, which is in `request.state.caller` afterwards; None without a valid credential.

    Nothing is counted or logged: `authorise` does that for the routes that require a caller. After too many failed
    logins of the client's address the result is None for valid credentials too.
    """
    found = getattr(request.state, "caller", None)
    if isinstance(found, Caller):
        return found
    if access.failures.wait_s(request.client.host if request.client is not None else ""):
        return None
    credential = _credential(request)
    if not credential:
        found = access.certificate_caller(getattr(request.state, "client_certificate", None))
    else:
        try:
            found = await access.caller(credential)
        except Unidentified:
            return None
    if found is not None:
        request.state.caller = found
    return found


def _credential(request: Request) -> str:
    """Return the bearer token of a request; empty if there is none."""
    scheme, _, credential = request.headers.get("authorization", "").partition(" ")
    return credential.strip() if scheme.lower() == "bearer" else ""


async def _authenticate(request: Request, access: Access) -> Caller:
    address = request.client.host if request.client is not None else ""
    wait_s = access.failures.wait_s(address)
    if wait_s:
        detail = f"too many failed logins from {address}{_proxy_hint(request, address)}"
        raise Problem(429, detail, {"retry-after": str(wait_s)})
    credential = _credential(request)
    if not credential:
        if (known := access.certificate_caller(getattr(request.state, "client_certificate", None))) is not None:
            return known
        raise Problem(401, f"the credential is missing; {_REMEDY}", {"www-authenticate": "Bearer"})
    try:
        return await access.caller(credential)
    except Unidentified as error:
        access.failures.note(address)
        _log.warning("login failed", address=address, reason=str(error))
        headers = {"www-authenticate": 'Bearer error="invalid_token"'}
        raise Problem(401, f"{error}; {_REMEDY}", headers) from None


def _proxy_hint(request: Request, address: str) -> str:
    """Return a hint if the address may be a proxy that is not configured, whose clients share one limit."""
    is_untrusted = address not in request.headers.get("x-forwarded-for", address)
    return "; if it is a proxy, name it in PENSTOCK_TRUSTED_PROXIES" if is_untrusted else ""


def must_reach(caller: Caller, regions: Iterable[str] | None) -> None:
    """Raise 403 unless the caller may change all of `regions`; None stands for the whole fleet."""
    if not caller.reaches(regions):
        own = ", ".join(sorted(caller.regions or ())) or "no region"
        raise Problem(403, f"{caller.name} may change only {own}")


def required_role(dependant: Dependant) -> Role | None:
    """Return the role that a route requires; None if the route requires no caller."""
    roles = {_monitor: Role.MONITOR, _viewer: Role.VIEWER, _operator: Role.OPERATOR, _admin: Role.ADMIN}
    for dependency in dependant.dependencies:
        role = roles.get(dependency.call) if dependency.call is not None else None
        if found := role or required_role(dependency):
            return found
    return None
