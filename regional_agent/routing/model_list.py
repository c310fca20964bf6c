"""The models that agents list themselves, in the format of OpenAI's API."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

from penstock.policy.policy import Policy

PATH: Final = b"/v1/models"


def is_model_page(path: bytes) -> bool:
    """Whether a path is that of the list, or of one model."""
    return path == PATH or path.startswith(PATH + b"/")


def model_page(policy: Policy, path: bytes) -> dict[str, Any] | None:
    """The list of models and of names with versions, or one of them; None if there is no such model.

    Args:
        path: `/v1/models`, or `/v1/models/<name>`; slashes in the name may be percent-encoded.
    """
    if path == PATH:
        return {"object": "list", "data": [_card(name) for name in dict.fromkeys((*policy.models, *policy.versions))]}
    name = unquote(path[len(PATH) + 1 :].decode("latin-1"))
    return _card(name) if name in policy.models or name in policy.versions else None


def _card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "penstock"}
