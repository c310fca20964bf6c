"""Compiles the text of a bundle to a policy. The bundle is accepted as a whole, or refused with all its errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any, NamedTuple

from adapters.configuration.strict_yaml import Path
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
from control_plane.policy.documents import Document, read_documents
from control_plane.policy.kinds.base import PolicyDocument
from control_plane.policy.kinds.models import CostSpec, ModelDocument, ModelVersionsDocument, QueueingSpec
from control_plane.policy.kinds.operations import (
    DrillDocument,
    GuardRailsDocument,
    MaintenanceWindowDocument,
    ObjectiveDocument,
    RolloutDocument,
)
from control_plane.policy.kinds.regions import RegionDocument
from control_plane.policy.kinds.residency import (
    AcceptedLossDocument,
    AcceptedRemovalDocument,
    RegionSelector,
    ResidencyRuleDocument,
)
from control_plane.policy.kinds.routing import (
    EntryMapDocument,
    FailoverDocument,
    GeoRoutingDocument,
    SpilloverDocument,
    SpilloverLimitDocument,
)
from control_plane.policy.kinds.tenants import AnonymousAccessDocument, BrowserAccessDocument, QuotaSpec, TenantDocument
from control_plane.policy.reference_checks import check_references
from control_plane.policy.references import References
from control_plane.policy.route_compiler import compile_routes, timeouts_of
from control_plane.policy.time_zones import moment_of, time_zone
from penstock.policy.kinds.models import (
    Cost,
    CostUnit,
    Model,
    ModelVersions,
    Queueing,
    QueueOrder,
    Scaling,
    Version,
    default_max_wait_s,
)
from penstock.policy.kinds.operations import (
    DrillSchedule,
    Exercise,
    GuardRails,
    MaintenanceWindow,
    Objective,
    PlannerKind,
    Recurrence,
    RolloutRules,
)
from penstock.policy.kinds.regions import EntryMap, Region
from penstock.policy.kinds.residency_rules import AcceptedLoss, ResidencyRule
from penstock.policy.kinds.spillover_and_failover import Failover, Spillover, SpilloverLimit
from penstock.policy.kinds.tenants import Quota, Tenant
from penstock.policy.policy import Policy
from penstock.policy.service_objective import ServiceObjective
from penstock.policy.time_zone import TimeZone
from penstock.routes.route import Route
from penstock.routes.route_query import unreached_models

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
    maps = [_entry_map(document, shaped, references) for document, shaped in catalogue.of(EntryMapDocument)]
    rules = [_rule(document, shaped, references) for document, shaped in catalogue.of(ResidencyRuleDocument)]
    routes = compile_routes(catalogue, references)
    check_references(catalogue, references)
    errors += misshapen + references.errors
    if errors:
        raise PolicyRefused(errors)
    policy = _policy(catalogue, references, rules, maps, routes)
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
    for _, document in catalogue.of(AcceptedRemovalDocument):
        for _, kind, names in document.lists():
            accepted[kind] = accepted.get(kind, frozenset()).union(names)
    return accepted


def _unreached_models(catalogue: Catalogue, policy: Policy) -> list[PolicyError]:
    """Return an error for each model that no request can name."""
    unreached = set(unreached_models(policy))
    remedy = "include a preset whose requests name their model, or add a Route for it"
    return [
        document.error(("name",), f"no route reaches the model {shape.name}", remedy)
        for document, shape in catalogue.of(ModelDocument)
        if shape.name in unreached
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
    known = len(references.errors)
    allow = _regions(document, ("allow",), rule.allow, references)
    unresolved = len(references.errors) > known or not references.complete
    if "allow" in rule.model_fields_set and not allow and not unresolved:
        remedy = "name a region of this bundle, or a jurisdiction of one"
        references.errors.append(document.error(("allow",), "allows no region", remedy))
    return ResidencyRule(
        name=rule.name,
        tenants=references.known(document, ("match", "tenants"), "Tenant", match.tenants),
        data_classes=references.known(document, ("match", "data_classes"), "DataClass", match.data_classes),
        client_countries=references.countries(references.places(document, ("match", "countries"), match.countries)),
        client_subdivisions=references.subdivisions(document, ("match", "subdivisions"), match.subdivisions),
        allow=allow if "allow" in rule.model_fields_set else None,
        deny=_regions(document, ("deny",), rule.deny, references),
        source=f"{document.file}:{document.line_of(('name',))}",
    )


def _regions(document: Document, path: Path, places: RegionSelector, references: References) -> frozenset[str]:
    named = references.known(document, (*path, "regions"), "Region", places.regions)
    inside = references.places(document, (*path, "jurisdictions"), places.jurisdictions)
    return named | references.regions_in(inside)


def _entry_map(document: Document, shape: EntryMapDocument, references: References) -> EntryMap:
    clients = shape.clients
    references.known(document, ("regions",), "Region", shape.regions)
    return EntryMap(
        name=shape.name,
        client_countries=references.countries(references.places(document, ("clients", "countries"), clients.countries)),
        client_subdivisions=references.subdivisions(document, ("clients", "subdivisions"), clients.subdivisions),
        regions=tuple(shape.regions),
    )


def _policy(
    catalogue: Catalogue,
    references: References,
    rules: list[ResidencyRule],
    maps: list[EntryMap],
    routes: tuple[Route, ...],
) -> Policy:
    routing = catalogue.single(GeoRoutingDocument)
    windows = tuple(
        sorted(
            (_window(document, shape) for document, shape in catalogue.of(MaintenanceWindowDocument)),
            key=lambda window: window.name,
        )
    )
    drills = tuple(
        sorted(
            (_drill(document, shape) for document, shape in catalogue.of(DrillDocument)), key=lambda drill: drill.name
        )
    )
    return Policy(
        regions={
            region.name: Region(
                **_fields(region) | {"spillover_order": tuple(region.spillover_order)},
                jurisdictions=references.jurisdictions(region.name),
            )
            for _, region in catalogue.of(RegionDocument)
        },
        models={model.name: _model(model) for _, model in catalogue.of(ModelDocument)},
        tenants={
            tenant.name: Tenant(
                **_fields(tenant) | {"key_digests": tuple(sorted(tenant.key_digests)), "quota": _quota(tenant.quota)}
            )
            for _, tenant in catalogue.of(TenantDocument)
        },
        residency=tuple(sorted(rules, key=lambda rule: rule.name)),
        rtt_ms=routing.rtt_ms,
        entry_maps=tuple(sorted(maps, key=lambda entry_map: entry_map.name)),
        spillover=Spillover(**_fields(catalogue.single(SpilloverDocument))),
        spillover_limits=tuple(
            sorted(
                (_limit(document, shape) for document, shape in catalogue.of(SpilloverLimitDocument)),
                key=lambda limit: limit.name,
            )
        ),
        failover=Failover(**_fields(catalogue.single(FailoverDocument))),
        objective=_objective(catalogue.single(ObjectiveDocument)),
        versions={
            split.name: ModelVersions(
                split.name, tuple(Version(version.model, version.percent) for version in split.versions)
            )
            for _, split in catalogue.of(ModelVersionsDocument)
        },
        accepted_losses=tuple(
            sorted(
                (
                    AcceptedLoss(shape.name, frozenset(shape.regions), shape.because)
                    for _, shape in catalogue.of(AcceptedLossDocument)
                ),
                key=lambda loss: loss.name,
            )
        ),
        rollout=_rollout(catalogue.single(RolloutDocument)),
        guard_rails=GuardRails(**_fields(catalogue.single(GuardRailsDocument))),
        maintenance=windows,
        drills=drills,
        time_zones=_time_zones((*windows, *drills)),
        routes=routes,
        anonymous_tenant=catalogue.single(AnonymousAccessDocument).tenant,
        cors_origins=frozenset(catalogue.single(BrowserAccessDocument).cors_origins),
    )


def _limit(document: Document, shape: SpilloverLimitDocument) -> SpilloverLimit:
    return SpilloverLimit(
        name=shape.name,
        origins=frozenset(shape.origins),
        models=frozenset(shape.models),
        max_cost_per_gpu_hour=shape.max_cost_per_gpu_hour,
        max_share=shape.max_share,
        source=f"{document.file}:{document.line_of(('name',))}",
    )


def _window(document: Document, shape: MaintenanceWindowDocument) -> MaintenanceWindow:
    return MaintenanceWindow(
        name=shape.name,
        regions=frozenset(shape.regions),
        starts_at=moment_of(shape.starts_at, shape.time_zone),
        duration_s=shape.duration_s,
        recurrence=Recurrence(shape.recurrence),
        lead_s=shape.lead_s,
        source=f"{document.file}:{document.line_of(('name',))}",
        time_zone=shape.time_zone,
    )


def _drill(document: Document, shape: DrillDocument) -> DrillSchedule:
    return DrillSchedule(
        name=shape.name,
        exercise=Exercise(shape.exercise),
        starts_at=moment_of(shape.starts_at, shape.time_zone),
        region=shape.region,
        recurrence=Recurrence(shape.recurrence),
        hold_s=shape.hold_s,
        max_burn_rate=shape.max_burn_rate,
        source=f"{document.file}:{document.line_of(('name',))}",
        time_zone=shape.time_zone,
    )


def _time_zones(scheduled: Iterable[MaintenanceWindow | DrillSchedule]) -> dict[str, TimeZone]:
    """Return the rules of every time zone that a recurring window or drill uses, from its first start on."""
    needed: dict[str, float] = {}
    for each in scheduled:
        if each.time_zone and each.recurrence is not Recurrence.NEVER:
            needed[each.time_zone] = min(each.starts_at, needed.get(each.time_zone, each.starts_at))
    return {name: time_zone(name, since) for name, since in needed.items()}


def _objective(shape: ObjectiveDocument) -> Objective:
    return Objective(**_fields(shape) | {"planner": PlannerKind(shape.planner)})


def _rollout(shape: RolloutDocument) -> RolloutRules:
    return RolloutRules(**_fields(shape) | {"canary_regions": tuple(sorted(shape.canary_regions))})


def _quota(shape: QuotaSpec | None) -> Quota | None:
    if shape is None:
        return None
    burst = shape.burst_requests
    if burst is None:
        burst = max(1, ceil(shape.requests_per_s or 0.0))
    return Quota(shape.requests_per_s, burst, shape.concurrent)


def _model(shape: ModelDocument) -> Model:
    wanted = shape.service_objective
    objective = None if wanted is None else ServiceObjective(wanted.first_byte_s, wanted.share, wanted.total_s)
    return Model(
        **_fields(shape)
        | {
            "cost": _cost(shape.cost),
            "service_objective": objective,
            "timeouts": timeouts_of(shape.timeouts),
            "adapters": tuple(shape.adapters),
            "scaling": Scaling(**shape.scaling.model_dump()),
            "queueing": _queueing(shape.queueing, shape.expected_service_s),
        }
    )


def _queueing(shape: QueueingSpec, expected_service_s: float) -> Queueing:
    follows_service = shape.max_wait_s is None
    max_wait_s = default_max_wait_s(expected_service_s) if shape.max_wait_s is None else shape.max_wait_s
    return Queueing(QueueOrder(shape.order), shape.max_overtaken_s, max_wait_s, follows_service, shape.max_length)


def _cost(shape: CostSpec) -> Cost:
    return Cost(CostUnit(shape.unit), shape.input_unit_s, shape.output_unit_s)


def _fields(document: PolicyDocument) -> dict[str, Any]:
    """Return a document's fields, for a type of the policy whose fields have the same names."""
    return document.model_dump(exclude={"api_version", "kind"})
