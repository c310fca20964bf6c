"""Client of an agent's admin listener, for explanations that use the agent's own state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import httpx
import msgspec

from control_plane.cli.api_client import ApiError, Unreachable
from penstock.routing.explain import Explanation

TIMEOUT_S = 5.0
"""Time limit (s) of a request to an agent."""


class AgentRefused(ApiError):
    """The agent rejected the request parameters."""

    is_usage_error = True


class _AgentProblem(msgspec.Struct, frozen=True):
    problem: str


def fetch_explanation(admin_url: str, query: Mapping[str, str | Sequence[str] | None]) -> Explanation:
    """Return an agent's explanation of a request.

    Args:
        admin_url: base URL of the agent's admin listener, as the agent registered it.
        query: parameters of `/explain`; None values are left out.

    Raises:
        Unreachable: the agent did not answer, or answered with an unexpected status or body.
        AgentRefused: the agent rejected the parameters.
    """
    given = {name: value for name, value in query.items() if value is not None}
    try:
        response = httpx.get(f"{admin_url}/explain", params=given, timeout=TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise Unreachable(f"{admin_url}: {reason}; check that this machine can reach the agent") from None
    try:
        if response.status_code == 400:
            raise AgentRefused(msgspec.json.decode(response.content, type=_AgentProblem).problem)
        if response.status_code != 200:
            raise Unreachable(f"{admin_url}: HTTP status {response.status_code}")
        return msgspec.json.decode(response.content, type=Explanation)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreachable(f"{admin_url}: the response does not match this version: {error}") from None
