"""Permissions of tenants: which models, adapters and routes a tenant may use."""

from __future__ import annotations

from msgspec import UNSET

from penstock.policy.adapter_patterns import matches
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.model_versions import reserved_model
from penstock.policy.policy import Policy

Patterns = tuple[tuple[str, ...], ...]
"""Restrictions that all apply: a permitted name matches a pattern of each. Empty: all names are permitted."""


def restrictions_of(policy: Policy, tenant: Tenant) -> Patterns:
    """The restrictions of a tenant: the models of its tier, and those that are not reserved for others.

    A tenant that may use a name may use the model that serves the name for its tier or data class.
    """
    found: list[tuple[str, ...]] = []
    own = tenant.models
    if own is not None:
        found.append(with_reserved_models(policy, tenant, own))
    if any(model.is_reserved for model in policy.models.values()):
        usable = {name: model for name, model in policy.models.items() if is_open_to(model, tenant)}
        adapters = (pattern for model in usable.values() for pattern in model.adapters)
        # The versions of a name are reserved alike. A name whose versions are reserved for others may still have a
        # model for this tenant.
        names = (
            name
            for name, each in policy.versions.items()
            if each.versions[0].model in usable or reserved_model(each, tenant) in usable
        )
        found.append((*usable, *adapters, *names))
    return tuple(found)


def with_reserved_models(policy: Policy, tenant: Tenant, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Patterns of names, with the models that serve permitted names for the tier or data class of a tenant."""
    served = (reserved_model(each, tenant) for each in policy.versions.values() if permits_name((patterns,), each.name))
    return (*patterns, *(model for model in served if model is not None))


def is_open_to(model: Model, tenant: Tenant) -> bool:
    """Whether a model is reserved for a tenant, or not reserved."""
    own = tenant.tier, tenant.data_class, tenant.name
    return all(only is UNSET or each in only for only, each in zip(model.reserved_for, own, strict=True))


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
