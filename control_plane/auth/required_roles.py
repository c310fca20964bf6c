"""What a route requires of who calls it: `caller: Operator` as a parameter, and the region that is about to change.

A route without any of these is refused when the API is put together, unless it is on the short list of open ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated

import structlog
from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from control_plane.api.responses import Problem
from control_plane.auth.authentication import Access, Unidentified
from control_plane.auth.callers import Caller, Role

_HOW = "send an API key, a token of the identity provider, or the admin token as `Authorization: Bearer <key>`"

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="bearer",
    description="An API key, a JWT of the identity provider, or the admin token of this control plane.",
)
_log = structlog.get_logger(__name__)

_Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


def require(role: Role) -> Callable[..., Awaitable[Caller]]:
    """A dependency that gives the caller, or refuses: 401 for nobody, 403 for somebody whose role is too small."""

    async def caller(request: Request, given: _Bearer) -> Caller:
        found = await _identified(request, given.credentials.strip() if given is not None else None)
        if not found.role.covers(role):
            raise Problem(403, f"{found.name} is {found.role.value}, and this needs {role.value}")
        return found

    return caller


_viewer, _operator, _admin = require(Role.VIEWER), require(Role.OPERATOR), require(Role.ADMIN)

Viewer = Annotated[Caller, Depends(_viewer)]
Operator = Annotated[Caller, Depends(_operator)]
Admin = Annotated[Caller, Depends(_admin)]


async def _identified(request: Request, credential: str | None) -> Caller:
    """Who calls; refuses nobody (401), and an address that failed too often (429)."""
    if isinstance(known := getattr(request.state, "caller", None), Caller):
        # Another requirement of the same route has asked already.
        return known
    access: Access = request.app.state.access
    address = request.client.host if request.client is not None else ""
    wait_s = access.failures.wait_s(address)
    if wait_s:
        detail = f"too many failed logins from {address}{_forwarded(request, address)}"
        raise Problem(429, detail, {"retry-after": str(wait_s)})
    if credential is None:
        raise Problem(401, f"nothing says who calls; {_HOW}", {"www-authenticate": "Bearer"})
    try:
        request.state.caller = found = await access.caller(credential)
    except Unidentified as error:
        access.failures.note(address)
        _log.warning("login failed", address=address, reason=str(error))
        headers = {"www-authenticate": 'Bearer error="invalid_token"'}
        raise Problem(401, f"{error}; {_HOW}", headers) from None
    return found


def _forwarded(request: Request, address: str) -> str:
    """A hint for whoever has forgotten to name a proxy: all of its clients share the failures of one address."""
    unbelieved = address not in request.headers.get("x-forwarded-for", address)
    return "; if that is a proxy, name it in PENSTOCK_TRUSTED_PROXIES" if unbelieved else ""


def must_reach(caller: Caller, regions: Iterable[str] | None) -> None:
    """Refuse (403) a caller whose scope lacks one of `regions`; None stands for what concerns the whole fleet."""
    if not caller.reaches(regions):
        own = ", ".join(sorted(caller.regions or ())) or "no region"
        raise Problem(403, f"{caller.name} may change {own} and nothing else")


def is_guarded(dependant: Dependant) -> bool:
    """Whether a route asks who calls."""
    return any(one.call in (_viewer, _operator, _admin) or is_guarded(one) for one in dependant.dependencies)
