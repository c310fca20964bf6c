"""Checks of documents that could contradict each other, apart from the names by which they refer to each other."""

from __future__ import annotations

from msgspec import UNSET

from control_plane.policy.catalogue import Catalogue
from control_plane.policy.references import References
from control_plane.policy.time_zones import clock_errors, zone_errors
from penstock.policy.adapter_patterns import matches, overlap
from penstock.policy.kinds.billing import Prices, UsageStore
from penstock.policy.kinds.issuers import Issuer
from penstock.policy.kinds.jobs import JobStore
from penstock.policy.kinds.model_rollouts import ModelRollout
from penstock.policy.kinds.models import Model, ModelVersions
from penstock.policy.kinds.operations import DrillSchedule, Event, MaintenanceWindow
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.residency_rules import AcceptedRemoval
from penstock.policy.kinds.tenants import Tenant

MAX_ADAPTERS = 2_000
"""Maximum number of adapter patterns in a bundle: each pattern is compared with every other pattern."""


def check_relations(catalogue: Catalogue, references: References) -> None:
    """Add every contradiction between documents to `references.errors`."""
    for document, region in catalogue.of(Region):
        if region.name in region.spillover_order:
            at = region.spillover_order.index(region.name)
            references.errors.append(document.error(("spillover_order", at), "is the region itself", "remove it"))
        references.errors += zone_errors(document, "price_time_zone", region.price_time_zone or None)
    _check_keys(catalogue, references)
    _check_models(catalogue, references)
    _check_rollouts(catalogue, references)
    _check_removals(catalogue, references)
    _check_billing(catalogue, references)
    _check_stores(catalogue, references)
    _check_issuers(catalogue, references)
    for document, window in catalogue.of(MaintenanceWindow):
        references.errors += clock_errors(document, window.starts_at, window.time_zone)
    for document, event in catalogue.of(Event):
        references.errors += clock_errors(document, event.starts_at, event.time_zone)
    for document, drill in catalogue.of(DrillSchedule):
        references.errors += clock_errors(document, drill.starts_at, drill.time_zone)


def _check_rollouts(catalogue: Catalogue, references: References) -> None:
    """Check that a rollout moves the share of one of two versions, and only upwards."""
    named = {versions.name: versions for _, versions in catalogue.of(ModelVersions)}
    for document, rollout in catalogue.of(ModelRollout):
        versions = named.get(rollout.name)
        if versions is None:
            continue
        if len(versions.versions) != 2:
            problem = f"{rollout.name} has {len(versions.versions)} versions"
            references.errors.append(document.error(("name",), problem, "give it two: the old one and the new one"))
            continue
        percent = next((each.percent for each in versions.versions if each.model == rollout.to), None)
        if percent is None:
            problem = f"{rollout.to} is no version of {rollout.name}"
            references.errors.append(document.error(("to",), problem, "name one of the versions"))
        elif percent >= rollout.steps[0]:
            problem = f"{rollout.to} has {percent:g} percent in ModelVersions already"
            references.errors.append(document.error(("steps", 0), problem, "begin with a larger share"))


def _check_issuers(catalogue: Catalogue, references: References) -> None:
    """Check that no two identity providers issue tokens with one value of `iss`."""
    owners: dict[str, str] = {}
    for document, issuer in catalogue.of(Issuer):
        owner = owners.setdefault(issuer.issuer, issuer.name)
        if owner != issuer.name:
            problem = f"is also that of the issuer {owner}"
            references.errors.append(document.error(("issuer",), problem, "write one document for each provider"))


def _check_billing(catalogue: Catalogue, references: References) -> None:
    """Check that price lists agree on the currency and begin on different days."""
    currencies: dict[str, str] = {}
    days: dict[float, str] = {}
    for document, prices in catalogue.of(Prices):
        currencies.setdefault(prices.currency, prices.name)
        if len(currencies) > 1 and prices.currency != next(iter(currencies)):
            problem = f"the prices {next(iter(currencies.values()))} are in another currency"
            references.errors.append(document.error(("currency",), problem, "use one currency in all documents"))
        other = days.setdefault(prices.valid_from, prices.name)
        if other != prices.name:
            problem = f"the prices {other} are valid from the same day"
            references.errors.append(document.error(("valid_from",), problem, "choose another day, or merge the lists"))


def _check_stores(catalogue: Catalogue, references: References) -> None:
    """Check that a region has one store of each kind."""
    usage, jobs = list(catalogue.of(UsageStore)), list(catalogue.of(JobStore))
    for stores, what in ((usage, "records"), (jobs, "jobs")):
        owners: dict[str, str] = {}
        for document, store in stores:
            for region in sorted(references.regions_in(store.jurisdictions).union(store.regions)):
                owner = owners.setdefault(region, store.name)
                if owner != store.name:
                    problem = f"the store {owner} holds the {what} of {region} already"
                    references.errors.append(
                        document.error((), problem, f"let one store hold the {what} of each region")
                    )


def _check_removals(catalogue: Catalogue, references: References) -> None:
    """A name that is in the bundle again is no removal, and must not permit a later one."""
    for document, accepted in catalogue.of(AcceptedRemoval):
        for field, kind, names in accepted.lists():
            references.errors += [
                document.error((field, index), f"the bundle has the {kind} {name}", "remove the name from the list")
                for index, name in enumerate(names)
                if name in catalogue.names.get(kind, {})
            ]


def _check_keys(catalogue: Catalogue, references: References) -> None:
    owners: dict[str, str] = {}
    for document, tenant in catalogue.of(Tenant):
        for index, digest in enumerate(tenant.key_digests):
            owner = owners.setdefault(digest, tenant.name)
            if owner != tenant.name:
                problem = f"tenant {owner} has this key already"
                references.errors.append(
                    document.error(("key_digests", index), problem, "give each tenant keys of its own")
                )


def _check_models(catalogue: Catalogue, references: References) -> None:
    """Check that fallbacks have no cycles, and that a versioned name does not hide a model."""
    lighter = {model.name: model.fallback for _, model in catalogue.of(Model)}
    for document, model in catalogue.of(Model):
        if model.fallback is None:
            continue
        passed = {model.name}
        step: str | None = model.fallback
        while step is not None and step not in passed:
            passed.add(step)
            step = lighter.get(step)
        if step is not None:
            problem = f"{model.name} falls back to itself" if step == model.name else f"leads into a cycle at {step}"
            references.errors.append(document.error(("fallback",), problem, "let the lightest have `fallback: null`"))
    _check_adapters(catalogue, references)
    models = {model.name: model for _, model in catalogue.of(Model)}
    for document, named in catalogue.of(ModelVersions):
        reservations = {models[each.model].reserved_for for each in named.versions if each.model in models}
        if len(reservations) > 1:
            problem = "some versions are reserved for tenants for whom others are not"
            remedy = "give all of them the same only_tiers, only_data_classes and only_tenants; see also for_tiers"
            references.errors.append(document.error(("versions",), problem, remedy))
        for own in ("for_tiers", "for_data_classes", "for_tenants"):
            only = own.replace("for_", "only_")
            for user, served_by in (getattr(named, own) or {}).items():
                if user not in (getattr(models.get(served_by), only, UNSET) or (user,)):
                    problem = f"{served_by} is reserved for other {only.removeprefix('only_').replace('_', ' ')}"
                    remedy = f"add {user} to the {only} of {served_by}, or choose another model"
                    references.errors.append(document.error((own, user), problem, remedy))
    for document, named in catalogue.of(ModelVersions):
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
