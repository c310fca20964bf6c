"""Compiles the text of a bundle to a policy. The bundle is accepted as a whole, or refused with all its errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple, Protocol, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from adapters.store.codec import CodecError, encode
from control_plane.policy.bundle_errors import MAX_ERRORS, WHOLE_BUNDLE, PolicyError, PolicyRefused
from control_plane.policy.bundle_limits import (
    MAX_BUNDLE_BYTES,
    MAX_DOCUMENTS,
    MAX_FILE_BYTES,
    MAX_FILES,
    SUFFIX,
    is_policy_file,
    not_yaml,
)
from control_plane.policy.catalogue import Catalogue, build_catalogue
from control_plane.policy.dns_compiler import compile_dns_names
from control_plane.policy.documents import Document, read_documents
from control_plane.policy.references import References
from control_plane.policy.relations import check_relations
from control_plane.policy.route_compiler import compile_routes
from control_plane.policy.time_zones import moment_of, time_zone
from penstock.policy.fields import PLACE
from penstock.policy.kinds.billing import Prices, UsageStore
from penstock.policy.kinds.coalescing import Coalescing
from penstock.policy.kinds.dns_names import DnsName, DnsZone
from penstock.policy.kinds.external_sources import DemandSignal
from penstock.policy.kinds.issuers import Issuer
from penstock.policy.kinds.jobs import JobStore
from penstock.policy.kinds.model_rollouts import ModelRollout
from penstock.policy.kinds.models import Model, ModelVersions
from penstock.policy.kinds.operations import (
    DrillSchedule,
    Event,
    GuardRails,
    MaintenanceWindow,
    Objective,
    Recurrence,
    RolloutRules,
)
from penstock.policy.kinds.regions import EntryMap, EntryMapDocument, GeoRouting, Region
from penstock.policy.kinds.residency_rules import (
    AcceptedLoss,
    AcceptedRemoval,
    RegionSelector,
    ResidencyRule,
    ResidencyRuleDocument,
)
from penstock.policy.kinds.result_cache import ResultCache
from penstock.policy.kinds.spillover_and_failover import Failover, Spillover, SpilloverLimit
from penstock.policy.kinds.tenants import AnonymousAccess, BrowserAccess, Tenant, Tier
from penstock.policy.policy import Policy
from penstock.policy.time_zone import TimeZone
from penstock.routes.route import Route
from penstock.routes.route_query import unreached_models

_PRICES_SINCE = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
"""Unix time (s) from which prices by time of day need the rules of their time zone."""

_KIND = re.compile(r"^[ \t]*kind:[ \t]*[\"']?(\w+)", re.MULTILINE)
"""Pattern that finds the kinds of documents in a text that cannot be parsed as YAML."""


class CompiledBundle(NamedTuple):
    """The policy of a bundle, and what concerns only the change to this policy."""

    policy: Policy
    accepted_removals: Mapping[str, frozenset[str]]
    """Names of documents that the bundle no longer has on purpose, by kind."""


def compile_bundle(files: Mapping[str, str]) -> Policy:
    """Return the policy of a bundle; see `compile_revision`."""
    return compile_revision(files).policy


def compile_revision(files: Mapping[str, str]) -> CompiledBundle:
    """Compile a bundle.

    Args:
        files: text by file name; files that are not policy files are ignored or refused, as in a folder.

    Raises:
        PolicyRefused: the bundle has errors.
    """
    files = {file: text for file, text in files.items() if is_policy_file(file)}
    errors = _out_of_bounds(files)
    if errors:
        raise PolicyRefused(errors)
    documents: list[Document] = []
    for file, text in sorted(files.items()):
        found, unread = read_documents(file, text)
        documents += found
        errors += unread
        if len(documents) > MAX_DOCUMENTS:
            problem = f"more than {MAX_DOCUMENTS} documents in all"
            raise PolicyRefused([*errors, PolicyError(WHOLE_BUNDLE, 0, "", problem, "make the bundle smaller")])
    hidden = {kind for file in {error.file for error in errors} for kind in _KIND.findall(files[file])}
    catalogue, misshapen = build_catalogue(documents, hidden)
    if len(misshapen) >= MAX_ERRORS:
        remedy = "correct these first; the rest of the bundle was not checked"
        errors.append(PolicyError(WHOLE_BUNDLE, 0, "", f"{MAX_ERRORS} errors or more", remedy))
        raise PolicyRefused(errors + misshapen)
    references = References(catalogue)
    references.check_all(catalogue)
    maps = [_entry_map(written, references) for _, written in catalogue.of(EntryMapDocument)]
    rules = [_rule(document, written, references) for document, written in catalogue.of(ResidencyRuleDocument)]
    dns_names = compile_dns_names(catalogue, references)
    routes = compile_routes(catalogue, references)
    check_relations(catalogue, references)
    errors += misshapen + references.errors
    if errors:
        raise PolicyRefused(errors)
    policy = _policy(catalogue, references, rules, maps, dns_names, routes)
    errors = _unreached_models(catalogue, policy)
    if errors:
        raise PolicyRefused(errors)
    try:
        encode(policy)
    except CodecError as error:
        raise PolicyRefused([PolicyError(WHOLE_BUNDLE, 0, "", str(error), "make the bundle smaller")]) from None
    return CompiledBundle(policy, _accepted_removals(catalogue))


def _accepted_removals(catalogue: Catalogue) -> dict[str, frozenset[str]]:
    accepted: dict[str, frozenset[str]] = {}
    for _, document in catalogue.of(AcceptedRemoval):
        for _, kind, names in document.lists():
            accepted[kind] = accepted.get(kind, frozenset()).union(names)
    return accepted


def _unreached_models(catalogue: Catalogue, policy: Policy) -> list[PolicyError]:
    """Return an error for each model that no request can name."""
    unreached = set(unreached_models(policy))
    remedy = "include a preset whose requests name their model, or add a Route for it"
    return [
        document.error(("name",), f"no route reaches the model {model.name}", remedy)
        for document, model in catalogue.of(Model)
        if model.name in unreached
    ]


def _out_of_bounds(files: Mapping[str, str]) -> list[PolicyError]:
    errors = [
        PolicyError(file, 0, "", f"larger than {MAX_FILE_BYTES} bytes", "split it into several files")
        for file, text in files.items()
        if len(text.encode()) > MAX_FILE_BYTES
    ]
    errors += [not_yaml(file) for file in files if not file.endswith(SUFFIX)]
    if len(files) > MAX_FILES:
        errors.append(PolicyError(WHOLE_BUNDLE, 0, "", f"has {len(files)} files", f"use at most {MAX_FILES}"))
    if sum(len(text.encode()) for text in files.values()) > MAX_BUNDLE_BYTES:
        problem = f"larger than {MAX_BUNDLE_BYTES} bytes in all"
        errors.append(PolicyError(WHOLE_BUNDLE, 0, "", problem, "make the bundle smaller"))
    return errors


def _rule(document: Document, rule: ResidencyRuleDocument, references: References) -> ResidencyRule:
    match = rule.match
    allow = None if rule.allow is UNSET else _regions(rule.allow, references)
    if rule.allow is not UNSET and not allow and _is_resolved(rule.allow, references):
        remedy = "name a region of this bundle, or a jurisdiction of one"
        references.errors.append(document.error(("allow",), "allows no region", remedy))
    return ResidencyRule(
        name=rule.name,
        tenants=frozenset(match.tenants),
        data_classes=frozenset(match.data_classes),
        client_countries=references.countries(match.countries),
        client_subdivisions=frozenset(match.subdivisions),
        allow=allow,
        deny=frozenset() if rule.deny is UNSET else _regions(rule.deny, references),
        source=document.source,
    )


def _regions(selector: RegionSelector, references: References) -> frozenset[str]:
    return references.regions_in(selector.jurisdictions).union(selector.regions)


def _is_resolved(selector: RegionSelector, references: References) -> bool:
    """Whether the jurisdictions of a selector are known, and so are the regions in them."""
    return references.complete and all(references.has(PLACE, name) for name in selector.jurisdictions)


def _entry_map(written: EntryMapDocument, references: References) -> EntryMap:
    return EntryMap(
        name=written.name,
        client_countries=references.countries(written.clients.countries),
        client_subdivisions=frozenset(written.clients.subdivisions),
        regions=written.regions,
    )


def _policy(
    catalogue: Catalogue,
    references: References,
    rules: list[ResidencyRule],
    maps: list[EntryMap],
    dns_names: list[DnsName],
    routes: tuple[Route, ...],
) -> Policy:
    regions = [
        replace(region, jurisdictions=references.jurisdictions(region.name)) for _, region in catalogue.of(Region)
    ]
    windows = [
        replace(window, starts_at=moment_of(window.starts_at, window.time_zone), source=document.source)
        for document, window in catalogue.of(MaintenanceWindow)
    ]
    drills = [
        replace(drill, starts_at=moment_of(drill.starts_at, drill.time_zone), source=document.source)
        for document, drill in catalogue.of(DrillSchedule)
    ]
    events = [
        replace(event, starts_at=moment_of(event.starts_at, event.time_zone), source=document.source)
        for document, event in catalogue.of(Event)
    ]
    limits = [replace(limit, source=document.source) for document, limit in catalogue.of(SpilloverLimit)]
    rollout = catalogue.single(RolloutRules)
    coalescing = catalogue.single(Coalescing)
    tiers = _by_name(tier for _, tier in catalogue.of(Tier))
    prices = sorted((prices for _, prices in catalogue.of(Prices)), key=lambda prices: prices.valid_from)
    stores = [
        replace(store, covers=references.regions_in(store.jurisdictions).union(store.regions))
        for _, store in catalogue.of(UsageStore)
    ]
    job_stores = [
        replace(store, covers=references.regions_in(store.jurisdictions).union(store.regions))
        for _, store in catalogue.of(JobStore)
    ]
    return Policy(
        regions=_by_name(regions),
        models=_by_name(_model(model) for _, model in catalogue.of(Model)),
        tenants=_by_name(_tenant(tenant, tiers) for _, tenant in catalogue.of(Tenant)),
        tiers=tiers or UNSET,
        issuers=_by_name(issuer for _, issuer in catalogue.of(Issuer)) or UNSET,
        prices=tuple(prices) or UNSET,
        usage_stores=_sorted(stores) or UNSET,
        job_stores=_sorted(job_stores) or UNSET,
        coalescing=coalescing if coalescing.routes else UNSET,
        result_caches=_sorted(cache for _, cache in catalogue.of(ResultCache)) or UNSET,
        dns_zones=_by_name(zone for _, zone in catalogue.of(DnsZone)) or UNSET,
        dns_names=_by_name(dns_names) or UNSET,
        residency=_sorted(rules),
        rtt_ms=catalogue.single(GeoRouting).rtt_ms,
        entry_maps=_sorted(maps),
        spillover=catalogue.single(Spillover),
        spillover_limits=_sorted(limits),
        failover=catalogue.single(Failover),
        anonymous_tenant=catalogue.single(AnonymousAccess).tenant,
        objective=catalogue.single(Objective),
        rollout=replace(rollout, canary_regions=tuple(sorted(rollout.canary_regions))),
        versions=_by_name(versions for _, versions in catalogue.of(ModelVersions)),
        model_rollouts=_by_name(rollout for _, rollout in catalogue.of(ModelRollout)) or UNSET,
        accepted_losses=_sorted(loss for _, loss in catalogue.of(AcceptedLoss)),
        guard_rails=catalogue.single(GuardRails),
        maintenance=_sorted(windows),
        drills=_sorted(drills),
        events=_sorted(events) or UNSET,
        demand_signals=_sorted(signal for _, signal in catalogue.of(DemandSignal)) or UNSET,
        time_zones=_time_zones((*windows, *drills), regions),
        cors_origins=catalogue.single(BrowserAccess).cors_origins,
        routes=routes,
    )


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_N = TypeVar("_N", bound=_Named)


def _by_name(documents: Iterable[_N]) -> dict[str, _N]:
    return {document.name: document for document in documents}


def _sorted(documents: Iterable[_N]) -> tuple[_N, ...]:
    return tuple(sorted(documents, key=lambda document: document.name))


def _model(model: Model) -> Model:
    """Return a model whose maximum wait is a number, as agents of earlier releases expect it."""
    wait_is_set = UNSET if model.queueing.max_wait_s != model.default_max_wait_s else True
    return replace(model, queueing=replace(model.queueing, max_wait_s=model.max_wait_s, wait_is_set=wait_is_set))


def _tenant(tenant: Tenant, tiers: Mapping[str, Tier]) -> Tenant:
    if tenant.tier is not UNSET:
        tenant = tenant.under(tiers[tenant.tier])
    quota = tenant.quota
    if quota is not None:
        quota = replace(quota, burst_requests=quota.burst)
    return replace(tenant, key_digests=tuple(sorted(tenant.key_digests)), quota=quota)


def _time_zones(
    scheduled: Iterable[MaintenanceWindow | DrillSchedule], regions: Iterable[Region]
) -> dict[str, TimeZone]:
    """Return the rules of every time zone that prices or a recurring window or drill use, from its first start on."""
    needed: dict[str, float] = {region.price_time_zone: _PRICES_SINCE for region in regions if region.price_time_zone}
    for each in scheduled:
        if each.time_zone and each.recurrence is not Recurrence.NEVER:
            needed[each.time_zone] = min(each.starts_at, needed.get(each.time_zone, each.starts_at))
    return {name: time_zone(name, since) for name, since in needed.items()}
