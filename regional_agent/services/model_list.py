"""The list of models, which agents create: in OpenAI's format with vLLM's fields for adapters, Anthropic's or Ollama's.

Sources: https://platform.openai.com/docs/api-reference/models, vllm/entrypoints/openai/models/protocol.py,
https://platform.claude.com/docs/en/api/models/list, and docs/api.md of https://github.com/ollama/ollama.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final
from urllib.parse import unquote

from penstock.policy.adapter_patterns import base_model_of
from penstock.policy.policy import Policy
from penstock.routes.route import ErrorFormat, Route
from penstock.tenancy.permissions import Patterns, permits_model, permits_name
from regional_agent.endpoints.endpoint import Endpoint

PATH: Final = b"/v1/models"

OLLAMA_PATH: Final = b"/api/tags"
"""The list of Ollama's API."""

ANTHROPIC_HEADER: Final = b"anthropic-version"
"""A header that every request of Anthropic's clients contains."""

MAX_ADAPTERS: Final = 1000
"""Maximum number of adapters in the list, in the order of their names."""

EPOCH: Final = "1970-01-01T00:00:00Z"
"""Release time of every model: the value that Anthropic's API specifies for an unknown time."""


def is_model_page(policy: Policy | None, path: bytes) -> bool:
    """Whether a path is that of the list, or of one model."""
    if path == OLLAMA_PATH:
        return policy is not None and ollama_route(policy) is not None
    return path == PATH or path.startswith(PATH + b"/")


def ollama_route(policy: Policy) -> Route | None:
    """The route of chats of Ollama's API; None if the policy does not offer that API."""
    return next((route for route in policy.routes if route.name == "ollama-chat"), None)


def anthropic_route(policy: Policy) -> Route | None:
    """A route of Anthropic's API that the policy offers; None if it offers none."""
    for route in policy.routes:
        if route.offered and route.errors is ErrorFormat.ANTHROPIC:
            return route
    return None


def model_page(
    policy: Policy, permitted: Patterns, endpoints: Iterable[Endpoint], path: bytes, *, for_anthropic: bool
) -> dict[str, Any] | None:
    """The list of models, names with versions and loaded adapters, or one of them; None if there is no such model.

    Args:
        permitted: restricts the names; others are absent, as if they did not exist.
        endpoints: the endpoints of this region, which report the adapters.
        path: `/v1/models`, or `/v1/models/<name>`; slashes in the name may be percent-encoded; or `/api/tags`.
        for_anthropic: whether the page has Anthropic's format.
    """
    every = dict.fromkeys((*policy.models, *policy.versions))
    names = [name for name in every if not permitted or _is_permitted(policy, permitted, name)]
    if path in (PATH, OLLAMA_PATH):
        loaded = sorted({name for endpoint in endpoints for name in endpoint.reported.adapters} - every.keys())
        adapters = [name for name in loaded if base_model_of(policy, name) and permits_name(permitted, name)]
        names += adapters[:MAX_ADAPTERS]
        if path == OLLAMA_PATH:
            return {"models": [_ollama_card(name) for name in names]}
        return _list(policy, names, for_anthropic=for_anthropic)
    name = unquote(path[len(PATH) + 1 :].decode("latin-1"))
    if name not in names:
        base = base_model_of(policy, name) if name not in every and permits_name(permitted, name) else None
        if base is None or not any(base in each.spec.models and each.has_adapter(name) for each in endpoints):
            return None
    return _anthropic_card(name) if for_anthropic else _card(policy, name)


def _is_permitted(policy: Policy, permitted: Patterns, name: str) -> bool:
    return permits_name(permitted, name) if name in policy.versions else permits_model(policy, permitted, name)


def _list(policy: Policy, names: list[str], *, for_anthropic: bool) -> dict[str, Any]:
    if not for_anthropic:
        return {"object": "list", "data": [_card(policy, name) for name in names]}
    first, last = (names[0], names[-1]) if names else (None, None)
    return {
        "data": [_anthropic_card(name) for name in names],
        "has_more": False,
        "first_id": first,
        "last_id": last,
    }


def _card(policy: Policy, name: str) -> dict[str, Any]:
    is_adapter = name not in policy.models and name not in policy.versions
    parent = base_model_of(policy, name) if is_adapter else None
    return {"id": name, "object": "model", "created": 0, "owned_by": "penstock", "root": name, "parent": parent}


def _ollama_card(name: str) -> dict[str, Any]:
    # Ollama's command line shows the beginning of the digest, and fails without one.
    card = {"name": name, "model": name, "modified_at": EPOCH, "size": 0, "digest": sha256(name.encode()).hexdigest()}
    return card | {"details": {"format": "", "family": "", "parameter_size": "", "quantization_level": ""}}


def _anthropic_card(name: str) -> dict[str, Any]:
    return {"type": "model", "id": name, "display_name": name, "created_at": EPOCH}
