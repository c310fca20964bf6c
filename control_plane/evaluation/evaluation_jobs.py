"""The work of an evaluation process: validate a bundle, or compare two policies on the same demand."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from adapters.error_text import suggest
from control_plane.api.body_decoding import BadBody, decode_body, parse_json
from control_plane.evaluation.what_if_request import MAX_REQUESTS_PER_S, WhatIfRequest
from control_plane.overrides.override_fields import BadExpiry
from control_plane.policy.bundle_errors import PolicyError, PolicyRefused
from control_plane.policy.bundle_limits import MAX_FILES
from control_plane.policy.compiler import compile_bundle, compile_revision
from control_plane.policy.tarball import read_tar
from control_plane.status.query_responses import WhatIfResponse
from penstock.fleet.snapshot import Demand
from penstock.overrides.override_check import NO_REPORTS, OverrideRejection, RejectedBy, rejection
from penstock.overrides.override_effects import Interventions
from penstock.overrides.overrides import Override, OverrideKind, described, validation_error
from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy
from penstock.policy.policy_diff import Change, diff
from penstock.policy.removal_guard import unaccepted_removals
from penstock.what_if.assumed_demand import generated_demand, generated_fleet, max_generated_groups, sustainable_rate
from penstock.what_if.comparison import Side, compare
from penstock.what_if.demand_outcomes import Capacity, DemandGroup
from penstock.what_if.entry_regions import EntryResolver
from penstock.what_if.growth import Growth, grown
from penstock.what_if.reported_demand import as_reported

MAX_NAMES_OF_BUNDLE = 2 * MAX_FILES
"""Maximum number of names of a JSON object with a bundle: above MAX_FILES, whose error is clearer."""

MAX_ERRORS = 50
"""Maximum number of errors of a bundle in a response."""

MAX_GENERATED_ROWS = 50_000
"""Maximum number of rows of a generated demand."""

MAX_MOVES = 500
"""Maximum number of moves in a response."""

DEFAULT_REQUESTS_PER_S = 100.0
"""Total rate (requests/s) of a generated demand when regions report neither demand nor capacity."""


class Validation(msgspec.Struct, frozen=True):
    """Result of the validation of a bundle."""

    good: bool
    digest: str
    """Digest of the compiled policy; empty if the bundle is invalid."""
    errors: tuple[PolicyError, ...]
    """All errors, by file and line."""
    changes: tuple[Change, ...]
    """Differences from the policy in force."""
    removals: tuple[str, ...] = ()
    """Removed documents for which the bundle lacks an AcceptedRemoval: it would not be rolled out."""


class ValidationJob(msgspec.Struct, frozen=True, tag=True):
    """Validate a bundle."""

    bundle: bytes
    """A tar archive, or a JSON object of file contents by file name."""
    is_tar: bool
    current: Policy | None
    """The policy in force."""


class LiveFleet(msgspec.Struct, frozen=True):
    """The fleet as it is."""

    now: float
    """Unix time (s)."""
    capacities: tuple[Capacity, ...] = ()
    """Reported capacity of each pool."""
    reported: tuple[Demand, ...] = ()
    """Reported demand."""
    failed: tuple[str, ...] = ()
    """Regions that have failed."""
    overrides: tuple[Override, ...] = ()
    """The overrides of operators that still have an effect."""
    available: tuple[tuple[str, str, float], ...] | None = None
    """Region, model and available slots of each pool, for guard rails; None where the regions have not reported."""
    plans: tuple[RegionPlan, ...] = ()
    """The plan in force, if an override in force or proposed may be a freeze."""


class WhatIfJob(msgspec.Struct, frozen=True, tag=True):
    """Compare the policy in force with another one, or with the loss of regions."""

    policy: Policy
    """The policy in force."""
    request: bytes
    """A WhatIfRequest in JSON."""
    fleet: LiveFleet


Job = ValidationJob | WhatIfJob


class Refused(msgspec.Struct, frozen=True):
    """The job is invalid."""

    detail: str
    errors: tuple[dict[str, str], ...] = ()
    """The invalid fields, each with `field` and `problem`."""
    status: int = 422
    """HTTP status of the response."""


class JobRefused(Exception):
    """The job is invalid."""

    def __init__(self, refusal: Refused) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal


def run_job(job: Job) -> Validation | WhatIfResponse | Refused:
    """Return the result of one job; Refused if the job is invalid."""
    try:
        return _validate(job) if isinstance(job, ValidationJob) else _evaluate(job)
    except JobRefused as refused:
        return refused.refusal
    except BadBody as bad:
        return Refused(str(bad), tuple(bad.errors), bad.status)


def _validate(job: ValidationJob) -> Validation:
    try:
        policy, accepted = compile_revision(read_tar(job.bundle) if job.is_tar else _files(job.bundle))
    except PolicyRefused as refused:
        return Validation(False, "", refused.errors[:MAX_ERRORS], ())
    if job.current is None:
        return Validation(True, policy.digest(), (), ())
    removals = tuple(map(str, unaccepted_removals(job.current, policy, accepted)))
    return Validation(True, policy.digest(), (), diff(job.current, policy), removals)


def _files(bundle: bytes) -> dict[str, str]:
    try:
        return msgspec.convert(parse_json(bundle, MAX_NAMES_OF_BUNDLE), dict[str, str])
    except msgspec.ValidationError as error:
        raise JobRefused(Refused(f"not a JSON object of file contents by file name: {error}")) from None


def _evaluate(job: WhatIfJob) -> WhatIfResponse:
    fleet = job.fleet
    request = decode_body(job.request, WhatIfRequest, MAX_NAMES_OF_BUNDLE)
    policy = _compile(request.files_before, "files_before") if request.files_before is not None else job.policy
    proposed = _compile(request.files, "files") if request.files is not None else policy
    _check_names(request, policy, proposed)
    _check_lifted(request, fleet)
    rejections, added = _proposed(request, job)
    kept = tuple(override for override in fleet.overrides if override.id not in request.lift)
    before = Side(policy, frozenset((*fleet.failed, *request.lost_before)), fleet.overrides, fleet.plans)
    after = Side(proposed, before.lost | frozenset(request.lost), (*kept, *added), fleet.plans)
    given = None if request.demand is None else [row.group() for row in request.demand]
    reported = fleet.capacities if request.fleet is None else tuple(row.capacity() for row in request.fleet)
    described = "as given"
    if given is None:
        given, described = _assumed_demand(before, reported, fleet)
    asked = given
    growth = _growth(request, asked)
    found = compare(before, after, asked, reported or generated_fleet((policy, proposed), asked), fleet.now, growth)
    source = "as given" if request.fleet is not None else "as reported"
    return WhatIfResponse(
        before=found.before,
        after=found.after,
        moves=found.moves[:MAX_MOVES],
        moved_per_s=sum(move.requests_per_s for move in found.moves),
        policy_before=policy.digest(),
        policy_after=proposed.digest(),
        demand=described,
        fleet=source if reported else "generated: no region reports a pool",
        conditions_before=_conditions(before, fleet.now),
        conditions_after=_conditions(after, fleet.now),
        rejections=tuple(rejections),
    )


def _check_names(request: WhatIfRequest, policy: Policy, proposed: Policy) -> None:
    for name in request.lost:
        _require_region(proposed, name, "lost")
    for name in request.lost_before:
        _require_region(policy, name, "lost_before")
    for index, row in enumerate(request.demand or ()):
        if row.origin and row.origin not in policy.regions:
            _require_region(proposed, row.origin, f"demand[{index}].origin")
    for index, pool in enumerate(request.fleet or ()):
        if pool.region not in policy.regions:
            _require_region(proposed, pool.region, f"fleet[{index}].region")


def _check_lifted(request: WhatIfRequest, fleet: LiveFleet) -> None:
    known = {override.id for override in fleet.overrides}
    for index, id_ in enumerate(request.lift):
        if id_ not in known:
            remedy = suggest(id_, known, "GET /v1/overrides lists them; a maintenance window ends by the policy alone")
            raise JobRefused(Refused(f"lift[{index}]: there is no override {id_!r}; {remedy}"))


def _growth(request: WhatIfRequest, demand: list[DemandGroup]) -> list[Growth]:
    """Return the growth of the request, which must match some of the demand."""
    found = [row.growth() for row in request.growth]
    for index, each in enumerate(found):
        if grown(demand, [each]) == demand and each.factor != 1.0 and any(group.requests_per_s for group in demand):
            models = sorted({group.model for group in demand})
            remedy = suggest(each.model, models, "name a model and an origin of the demand")
            raise JobRefused(Refused(f"growth[{index}]: matches no demand; {remedy}"))
    return found


def _proposed(request: WhatIfRequest, job: WhatIfJob) -> tuple[list[OverrideRejection], list[Override]]:
    """Return the rejections of the proposed overrides, and the overrides, which are evaluated nevertheless.

    Each is checked after the previous one, as if the operator had set them in this order.
    """
    fleet = job.fleet
    rejections: list[OverrideRejection] = []
    added: list[Override] = []
    kept = [override for override in fleet.overrides if override.id not in request.lift]
    capacity = {(region, model): slots for region, model, slots in fleet.available or ()}
    for number, fields in enumerate(request.overrides):
        try:
            wanted = fields.override(f"proposed-{number}", "preview", "preview", fleet.now)
        except BadExpiry as bad:
            raise JobRefused(Refused(f"overrides[{number}].{bad}")) from None
        if (wrong := validation_error(wanted, job.policy)) is not None:
            raise JobRefused(Refused(f"overrides[{number}].{wrong}"))
        if wanted.endpoint is not None:
            field = f"overrides[{number}].kind"
            raise JobRefused(Refused(f"{field}: drains of endpoints are not evaluated; use `dry_run=true`"))
        if fleet.available is None and wanted.kind is not OverrideKind.FREEZE:
            rejections.append(OverrideRejection(RejectedBy.GUARD_RAIL, NO_REPORTS))
        elif (rejected := rejection(job.policy, (*kept, *added), wanted, capacity, fleet.now)) is not None:
            rejections.append(rejected)
        added.append(wanted)
    return rejections, added


def _conditions(side: Side, now: float) -> tuple[str, ...]:
    """Describe the lost regions, overrides and maintenance windows of a side."""
    lost = [f"{region} has failed" for region in sorted(side.lost)]
    return (*lost, *(f"{described(override)}: {override.reason}" for override in side.in_force(now)))


def _require_region(policy: Policy, name: str, field: str) -> None:
    if name not in policy.regions:
        remedy = suggest(name, policy.regions, "GET /v1/status lists them")
        raise JobRefused(Refused(f"{field}: there is no region {name!r}; {remedy}"))


def _assumed_demand(side: Side, capacities: Sequence[Capacity], fleet: LiveFleet) -> tuple[list[DemandGroup], str]:
    """Return the demand that regions report, or a generated one where they report none, and its description."""
    policy = side.policy
    rate_per_s = min(sustainable_rate(policy, capacities), MAX_REQUESTS_PER_S) or DEFAULT_REQUESTS_PER_S
    generated = _generate_demand(policy, rate_per_s)
    drained = Interventions(side.in_force(fleet.now), 0.0, fleet.now).drained
    resolver = EntryResolver(policy, capacities, side.lost, frozenset(drained))
    found = as_reported(generated, fleet.reported, resolver)
    if not found:
        return generated, f"generated, {rate_per_s:.1f} requests per second, because regions report none"
    rate_per_s = sum(group.requests_per_s for group in found)
    return found, f"{rate_per_s:.1f} requests per second as regions report, spread over tenants and countries"


def _generate_demand(policy: Policy, rate_per_s: float) -> list[DemandGroup]:
    """Return a demand in which every tenant requests every model."""
    if max_generated_groups(policy) > MAX_GENERATED_ROWS:
        detail = "demand: this policy has too many tenants, models and regions to generate one; give it"
        raise JobRefused(Refused(detail))
    return generated_demand(policy, rate_per_s)


def _compile(files: dict[str, str], field: str) -> Policy:
    try:
        return compile_bundle(files)
    except PolicyRefused as refused:
        listed = refused.errors[:MAX_ERRORS]
        errors = tuple({"field": f"body.{field}.{error.file}", "problem": str(error)} for error in listed)
        raise JobRefused(Refused(f"{field}: the bundle is invalid: {len(refused.errors)} error(s)", errors)) from None
