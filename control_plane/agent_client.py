"""Asking one agent, at its admin listener, what only it knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import httpx
import msgspec

from control_plane.cli.api_client import ApiError, NobodyAnswers
from penstock.routing.explain import Explanation

TIMEOUT_S = 5.0
"""How long (s) an agent may take to answer."""


class AgentRefused(ApiError):
    """The agent says that it cannot explain this."""

    at_fault = True


class _Problem(msgspec.Struct, frozen=True):
    problem: str


def ask_agent(admin_url: str, query: Mapping[str, str | Sequence[str] | None]) -> Explanation:
    """An agent's explanation.

    Args:
        admin_url: base URL of its admin listener, as it registered it.
        query: parameters of `/explain`; those that are None are left out.

    Raises:
        NobodyAnswers: it cannot be reached from here.
        AgentRefused: it says what is wrong with the question.
    """
    given = {name: value for name, value in query.items() if value is not None}
    try:
        response = httpx.get(f"{admin_url}/explain", params=given, timeout=TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NobodyAnswers(f"{admin_url}: {error or type(error).__name__}; is it reachable from here?") from None
    try:
        if response.status_code == 400:
            raise AgentRefused(msgspec.json.decode(response.content, type=_Problem).problem)
        if response.status_code != 200:
            raise NobodyAnswers(f"{admin_url}: answered {response.status_code}")
        return msgspec.json.decode(response.content, type=Explanation)
    except msgspec.DecodeError as error:
        raise NobodyAnswers(f"{admin_url}: no answer of this version: {error}") from None
