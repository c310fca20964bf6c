"""The version of a model that serves a request: by shares, and constant within a session.

Each version is a model with its own endpoints, demand and plans; clients request a name that stands for all versions. A
canary is a version with a small share; a blue-green deployment changes shares between 100 and 0.
"""

from __future__ import annotations

from hashlib import blake2b

from msgspec import UNSET

from penstock.policy.kinds.models import ModelVersions
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy

WHOLE_PERCENT = 100.0


def versions_of(policy: Policy, name: str) -> ModelVersions | None:
    """The versions that a name stands for; None for the name of a model."""
    return policy.versions.get(name)


def model_of_tier(versions: ModelVersions, tenant: Tenant) -> str | None:
    """The model that serves all requests of a tenant's tier for a name; None: the versions do."""
    if versions.for_tiers is UNSET or tenant.tier is UNSET:
        return None
    return versions.for_tiers.get(tenant.tier)


def models_for(policy: Policy, name: str) -> tuple[str, ...]:
    """The models that serve requests for a name: the versions with a share, or the model of that name; empty if the
    name is unknown."""
    versions = policy.versions.get(name)
    if versions is not None:
        return tuple(version.model for version in versions.versions if version.percent > 0.0)
    return (name,) if name in policy.models else ()


def version_at(versions: ModelVersions, position: float) -> str:
    """The model at a position of the scale.

    Versions occupy their shares of the scale in the order of the policy, so that with two versions only the growth of
    one moves to another version. With more versions, a change of one share also shifts the ranges after it.

    Args:
        position: 0 up to 100; random, or of a session.
    """
    up_to = 0.0
    for version in versions.versions:
        up_to += version.percent
        if position < up_to:
            return version.model
    # Shares sum to 100 except for rounding errors.
    return next(version.model for version in reversed(versions.versions) if version.percent > 0.0)


def session_position(tenant: str, name: str, session: bytes) -> float:
    """The position of a tenant's session on the scale (0 up to 100), the same at every agent and at any time."""
    digest = blake2b(session, digest_size=8, key=blake2b(f"{tenant}/{name}".encode()).digest())
    return int.from_bytes(digest.digest()) / 2**64 * WHOLE_PERCENT
