"""Which version of a model serves a request: shares by draw, and by session, so that a conversation keeps its version.

Versions are models of their own, with endpoints, demand and plans of their own; clients ask by the name that stands for
all of them. A canary is a small share, blue-green is a change of 100 and 0.
"""

from __future__ import annotations

from hashlib import blake2b

from penstock.policy.policy import ModelVersions, Policy

WHOLE_PERCENT = 100.0


def versions_of(policy: Policy, asked: str) -> ModelVersions | None:
    """The versions that a name stands for; None where it is a model's own."""
    return policy.versions.get(asked)


def models_for(policy: Policy, asked: str) -> tuple[str, ...]:
    """The models that serve what is asked for by a name: its versions that have a share, or itself; none if unknown."""
    versions = policy.versions.get(asked)
    if versions is not None:
        return tuple(version.model for version in versions.versions if version.percent > 0.0)
    return (asked,) if asked in policy.models else ()


def version_at(versions: ModelVersions, place: float) -> str:
    """The model that serves what falls at a place of the scale.

    Versions take their shares of the scale in the order they are written in. A share that grows takes places from its
    neighbours and gives up none of its own, so that of two versions only the growth changes sides.

    Args:
        place: 0 up to 100: drawn, or of a session.
    """
    up_to = 0.0
    for version in versions.versions:
        up_to += version.percent
        if place < up_to:
            return version.model
    # Shares sum to 100 but for rounding.
    return next(version.model for version in reversed(versions.versions) if version.percent > 0.0)


def place_of(tenant: str, asked: str, session: bytes) -> float:
    """Where a tenant's session falls on the scale (0 up to 100): the same for every agent, today and tomorrow."""
    digest = blake2b(session, digest_size=8, key=blake2b(f"{tenant}/{asked}".encode()).digest())
    return int.from_bytes(digest.digest()) / 2**64 * WHOLE_PERCENT
