"""Permissions of tenants: which models, adapters and routes a tenant may use."""

from __future__ import annotations

from penstock.policy.adapter_patterns import matches
from penstock.policy.policy import Policy

Patterns = tuple[tuple[str, ...], ...]
"""Restrictions that all apply: a permitted name matches a pattern of each. Empty: all names are permitted."""


def permits_name(restrictions: Patterns, name: str) -> bool:
    """Whether a name matches at least one pattern of each restriction."""
    return all(any(matches(pattern, name) for pattern in patterns) for patterns in restrictions)


def permits_model(policy: Policy, restrictions: Patterns, model: str) -> bool:
    """Whether a model of the policy may be used: by its own name, or as a version of a permitted name."""
    if not restrictions or permits_name(restrictions, model):
        return True
    return any(
        permits_name(restrictions, name) and any(version.model == model for version in versions.versions)
        for name, versions in policy.versions.items()
    )
