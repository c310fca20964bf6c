"""Checks of names by which documents of a bundle refer to each other."""

from __future__ import annotations

from control_plane.policy.catalogue import Catalogue
from control_plane.policy.references import References
from control_plane.policy.time_zones import clock_errors
from penstock.policy.adapter_patterns import matches, overlap
from penstock.policy.kinds.models import Model, ModelVersions
from penstock.policy.kinds.operations import DrillSchedule, MaintenanceWindow, RolloutRules
from penstock.policy.kinds.regions import GeoRouting, Region
from penstock.policy.kinds.residency_rules import AcceptedLoss, AcceptedRemoval
from penstock.policy.kinds.spillover_and_failover import SpilloverLimit
from penstock.policy.kinds.tenants import AnonymousAccess, Tenant

MAX_ADAPTERS = 2_000
"""Maximum number of adapter patterns in a bundle: each pattern is compared with every other pattern."""


def check_references(catalogue: Catalogue, references: References) -> None:
    """Adds every unknown or misplaced name to `references.errors`."""
    for document, region in catalogue.of(Region):
        references.country(document, ("country",), region.country)
        references.known(document, ("spillover_order",), "Region")
        if region.name in region.spillover_order:
            at = region.spillover_order.index(region.name)
            references.errors.append(document.error(("spillover_order", at), "is the region itself", "remove it"))
    _check_tenants(catalogue, references)
    _check_models(catalogue, references)
    for document, _ in catalogue.of(AcceptedLoss):
        references.known(document, ("regions",), "Region")
    _check_removals(catalogue, references)
    for document, window in catalogue.of(MaintenanceWindow):
        references.known(document, ("regions",), "Region")
        references.errors += clock_errors(document, window.starts_at, window.time_zone)
    for document, drill in catalogue.of(DrillSchedule):
        if drill.region is not None:
            references.check(document, ("region",), "Region", drill.region)
        references.errors += clock_errors(document, drill.starts_at, drill.time_zone)
    _check_spillover(catalogue, references)
    for document, _ in catalogue.of(RolloutRules):
        references.known(document, ("canary_regions",), "Region")
    _check_distances(catalogue, references)


def _check_removals(catalogue: Catalogue, references: References) -> None:
    """A name that is in the bundle again is no removal, and must not permit a later one."""
    for document, accepted in catalogue.of(AcceptedRemoval):
        for field, kind, names in accepted.lists():
            references.errors += [
                document.error((field, index), f"the bundle has the {kind} {name}", "remove the name from the list")
                for index, name in enumerate(names)
                if name in catalogue.names.get(kind, {})
            ]


def _check_tenants(catalogue: Catalogue, references: References) -> None:
    owners: dict[str, str] = {}
    for document, tenant in catalogue.of(Tenant):
        references.check(document, ("data_class",), "DataClass", tenant.data_class)
        for index, digest in enumerate(tenant.key_digests):
            owner = owners.setdefault(digest, tenant.name)
            if owner != tenant.name:
                problem = f"tenant {owner} has this key already"
                references.errors.append(
                    document.error(("key_digests", index), problem, "give each tenant keys of its own")
                )
    for document, access in catalogue.of(AnonymousAccess):
        if access.tenant is not None:
            references.check(document, ("tenant",), "Tenant", access.tenant)


def _check_distances(catalogue: Catalogue, references: References) -> None:
    for document, routing in catalogue.of(GeoRouting):
        for origin, servers in routing.rtt_ms.items():
            references.check(document, ("rtt_ms", origin), "Region", origin)
            for server in servers:
                references.check(document, ("rtt_ms", origin, server), "Region", server)


def _check_spillover(catalogue: Catalogue, references: References) -> None:
    for document, _ in catalogue.of(SpilloverLimit):
        references.known(document, ("origins",), "Region")
        references.known(document, ("models",), "Model")


def _check_models(catalogue: Catalogue, references: References) -> None:
    """Check that fallbacks have no cycles, and that a versioned name does not hide a model."""
    lighter = {model.name: model.fallback for _, model in catalogue.of(Model)}
    for document, model in catalogue.of(Model):
        if model.fallback is None:
            continue
        references.check(document, ("fallback",), "Model", model.fallback)
        passed = {model.name}
        step: str | None = model.fallback
        while step is not None and step not in passed:
            passed.add(step)
            step = lighter.get(step)
        if step is not None:
            problem = f"{model.name} falls back to itself" if step == model.name else f"leads into a cycle at {step}"
            references.errors.append(document.error(("fallback",), problem, "let the lightest have `fallback: null`"))
    _check_adapters(catalogue, references)
    for document, named in catalogue.of(ModelVersions):
        for index, version in enumerate(named.versions):
            references.check(document, ("versions", index, "model"), "Model", version.model)
        if named.name in lighter and named.name not in {version.model for version in named.versions}:
            problem = f"hides the model {named.name}, which clients could not request any more"
            remedy = f"add {named.name} to the versions, with 0 percent if need be, or choose another name"
            references.errors.append(document.error(("name",), problem, remedy))


def _check_adapters(catalogue: Catalogue, references: References) -> None:
    """Check that every name has one meaning: a model, versions of models, or an adapter of one model."""
    names = sorted({*catalogue.names.get("Model", {}), *catalogue.names.get("ModelVersions", {})})
    known: list[tuple[str, str]] = []
    for document, model in catalogue.of(Model):
        if len(known) + len(model.adapters) > MAX_ADAPTERS:
            problem = f"more than {MAX_ADAPTERS} patterns in all models"
            references.errors.append(document.error(("adapters",), problem, "use fewer, with wildcards"))
            return
        for index, pattern in enumerate(model.adapters):
            at = ("adapters", index)
            named = next((name for name in names if matches(pattern, name)), None)
            if named is not None:
                problem = f"matches {named}, which has a document of its own"
                remedy = "write a pattern that only adapters match, such as one with another separator"
                references.errors.append(document.error(at, problem, remedy))
            for other, base in known:
                if overlap(pattern, other):
                    problem = f"some names match this pattern and {other} of {base}"
                    remedy = "write patterns that have no name in common"
                    references.errors.append(document.error(at, problem, remedy))
                    break
            known.append((pattern, model.name))
