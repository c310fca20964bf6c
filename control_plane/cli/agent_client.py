"""Client of an agent's admin listener, for what only the agent knows."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import TypeVar

import httpx
import msgspec

from control_plane.auth.admin_token import AdminToken
from control_plane.cli.api_client import ApiError, Unreachable
from penstock.routing.explain import Explanation
from penstock.wire.reserved_addresses import is_reserved

_Answer = TypeVar("_Answer")

TIMEOUT_S = 5.0
"""Time limit (s) of a request to an agent."""


class AgentRefused(ApiError):
    """The agent rejected the request parameters."""

    is_usage_error = True


class KeyRejected(ApiError):
    """The agent does not accept the key, or requires one."""


class _AgentError(msgspec.Struct, frozen=True):
    message: str


class _AgentRefusal(msgspec.Struct, frozen=True):
    error: _AgentError


class _AgentProblem(msgspec.Struct, frozen=True):
    problem: str


class BatchProgress(msgspec.Struct, frozen=True):
    """A batch that an agent runs."""

    completed: int
    failed: int
    total: int
    expires_at: float | None
    """Unix time (s); None without a deadline."""
    expected_completion_at: float | None = None
    """Unix time (s) by the rate so far; None if unknown."""


class JobsStatus(msgspec.Struct, frozen=True):
    """`jobs` of an agent's status page."""

    store: str | None
    """Name of the job store; None in a region without one."""
    store_problem: str | None
    requests: int
    """Asynchronous requests that the agent runs."""
    batches: dict[str, BatchProgress]
    waiting_requests: int = 0
    """Asynchronous requests that wait in the region."""
    last_request_starts_at: float | None = None
    """Unix time (s) at which the last one of them is expected to start; None if unknown."""


class _AgentStatusPage(msgspec.Struct, frozen=True):
    jobs: JobsStatus


class AgentAccess(msgspec.Struct, frozen=True):
    """The API key and the TLS configuration for the admin listeners of agents."""

    key: AdminToken | None = None
    """The API key; None sends no key."""
    tls: ssl.SSLContext | None = None
    """Trusted authorities and client certificate; None: the authorities that the system trusts, and no certificate."""


def fetch_explanation(
    admin_url: str, query: Mapping[str, str | Sequence[str] | None], access: AgentAccess
) -> Explanation:
    """Return an agent's explanation of a request.

    Args:
        admin_url: base URL of the agent's admin listener, as the agent registered it.
        query: parameters of `/explain`; None values are left out.
        access: the API key and the TLS configuration.

    Raises:
        KeyRejected, Unreachable: as for `fetch_jobs`.
        AgentRefused: the agent rejected the parameters.
    """
    given = {name: value for name, value in query.items() if value is not None}
    return _fetch(admin_url, "explain", given, access, Explanation)


def fetch_jobs(admin_url: str, access: AgentAccess) -> JobsStatus:
    """Return what an agent states of its jobs; see `fetch_explanation`.

    Raises:
        KeyRejected: the agent does not accept the key, or requires one.
        Unreachable: the agent did not answer, or answered with an unexpected status or body.
    """
    return _fetch(admin_url, "status", {}, access, _AgentStatusPage).jobs


def _fetch(
    admin_url: str, page: str, query: Mapping[str, str | Sequence[str]], access: AgentAccess, kind: type[_Answer]
) -> _Answer:
    headers = {"authorization": access.key.header()} if access.key is not None else {}
    try:
        if is_reserved(httpx.URL(admin_url).host):
            raise Unreachable(f"{admin_url} has a reserved address, so nothing was sent; check `advertise_admin_url`")
        verify = access.tls or ssl.create_default_context()
        response = httpx.get(f"{admin_url}/{page}", params=query, headers=headers, verify=verify, timeout=TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise Unreachable(f"{admin_url}: {reason}; check that this machine can reach the agent") from None
    try:
        if response.status_code == 400:
            raise AgentRefused(msgspec.json.decode(response.content, type=_AgentProblem).problem)
        if response.status_code in (401, 403, 429):
            detail = msgspec.json.decode(response.content, type=_AgentRefusal).error.message
            raise KeyRejected(f"{admin_url}: {detail}; name the file of your key for agents with --agents-key-file")
        if response.status_code != 200:
            raise Unreachable(f"{admin_url}: HTTP status {response.status_code}")
        return msgspec.json.decode(response.content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreachable(f"{admin_url}: the response does not match this version: {error}") from None
