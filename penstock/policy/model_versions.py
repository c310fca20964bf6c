"""The version of a model that serves a request: by shares, and constant within a session.

Each version is a model with its own endpoints, demand and plans; clients request a name that stands for all versions. A
canary is a version with a small share; a blue-green deployment changes shares between 100 and 0.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from penstock.policy.kinds.model_rollouts import ModelRollout, StickyBy
from penstock.policy.kinds.models import ModelVersions
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy

WHOLE_PERCENT = 100.0

CHOOSES_NEW: Final = b"new"
CHOOSES_OLD: Final = b"old"
"""Values of the header of a rollout."""


def versions_of(policy: Policy, name: str) -> ModelVersions | None:
    """The versions that a name stands for; None for the name of a model."""
    return policy.versions.get(name)


def reserved_model(versions: ModelVersions, tenant: Tenant) -> str | None:
    """The model that serves all requests of a data class, tenant or tier for a name; None: the versions do."""
    if versions.for_data_classes is not UNSET and tenant.data_class in versions.for_data_classes:
        return versions.for_data_classes[tenant.data_class]
    if versions.for_tenants is not UNSET and tenant.name in versions.for_tenants:
        return versions.for_tenants[tenant.name]
    if versions.for_tiers is UNSET or tenant.tier is UNSET:
        return None
    return versions.for_tiers.get(tenant.tier)


def models_for(policy: Policy, name: str) -> tuple[str, ...]:
    """The models that serve requests for a name: the versions with a share, and the one to which a rollout moves;
    or the model of that name; empty if the name is unknown."""
    versions = policy.versions.get(name)
    if versions is not None:
        rollout = rollout_of(policy, name)
        new = "" if rollout is None else rollout.to
        return tuple(each.model for each in versions.versions if each.percent > 0.0 or each.model == new)
    return (name,) if name in policy.models else ()


def rollout_of(policy: Policy, name: str) -> ModelRollout | None:
    """The rollout of the versions of a name; None without one."""
    return None if policy.model_rollouts is UNSET else policy.model_rollouts.get(name)


def old_version(versions: ModelVersions, rollout: ModelRollout) -> str:
    """The version that a rollout replaces."""
    return next(each.model for each in versions.versions if each.model != rollout.to)


def with_share(versions: ModelVersions, to: str, percent: float) -> ModelVersions:
    """The two versions of a name with another share (0-100) of one of them."""
    return replace(
        versions,
        versions=tuple(
            replace(each, percent=percent if each.model == to else WHOLE_PERCENT - percent)
            for each in versions.versions
        ),
    )


def receives_new(rollout: ModelRollout, tenant: str, choice: bytes | None) -> bool | None:
    """Whether a rollout gives a request the new version at any share; None: the share decides.

    Args:
        choice: value of the rollout's header; None without one.
    """
    if tenant in rollout.excluded_tenants:
        return False
    if choice is not None and choice in (CHOOSES_NEW, CHOOSES_OLD):
        return choice == CHOOSES_NEW
    return True if tenant in rollout.opt_in_tenants else None


def is_drawn(policy: Policy, rollout: ModelRollout, tenant: Tenant, choice: bytes | None) -> bool:
    """Whether the share of a rollout decides the version of a request: neither its tenant nor client does.

    Args:
        policy: has the versions of the rollout.
        choice: value of the rollout's header; None without one.
    """
    versions = policy.versions.get(rollout.name)
    is_reserved = versions is not None and reserved_model(versions, tenant) is not None
    return not is_reserved and receives_new(rollout, tenant.name, choice) is None


def sticky_key(rollout: ModelRollout, session: bytes) -> bytes | None:
    """What keeps the version of a request, beside its tenant; None if it is drawn."""
    if rollout.sticky_by is StickyBy.TENANT:
        return b""
    return session or None


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
