"""POST /v1/what-if: what would become of a demand under a proposed policy, or without some regions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from control_plane.api.client_location import Country, Subdivision, policy_in_force, region_of
from control_plane.api.json_responses import answer
from control_plane.api.openapi import gives
from control_plane.api.problems import Problem
from control_plane.auth.required_roles import Viewer
from control_plane.daemon import ControlPlane
from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.bundle_limits import MAX_FILES
from control_plane.policy.compiler import compile_bundle
from control_plane.status.what_if_response import WhatIf
from penstock.fleet.snapshot import demand, pools
from penstock.policy.policy import Policy
from penstock.what_if.assumed_demand import bearable_rate, generated_demand, generated_fleet, generated_kinds
from penstock.what_if.evaluation import outcome
from penstock.what_if.moved_demand import moves
from penstock.what_if.outcomes import Asked, Capacity

MAX_ROWS = 5_000
"""Kinds of request of one demand."""

MAX_MADE_UP = 50_000
"""Kinds of request of a demand that is made up."""

MAX_MOVES = 500
"""Moves that are told."""

USUAL_PER_S = 100.0
"""Requests per second of a demand that is made up, while regions report neither demand nor what they can run."""

MAX_RATE = 1e6


class DemandRow(BaseModel):
    """One kind of request, and how often it comes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    origin: str = Field("", max_length=253, description="Region that it lands on; without it, it is steered.")
    tenant: str = Field(max_length=512)
    model: str = Field(max_length=512)
    requests_per_s: float = Field(strict=True, ge=0.0, le=MAX_RATE, allow_inf_nan=False)
    country: Country | None = None
    subdivision: Subdivision | None = None


class WhatIfRequest(BaseModel):
    """What is proposed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: dict[str, str] | None = Field(
        None, max_length=MAX_FILES, description="A whole bundle, text by file name; without it, the policy in force."
    )
    lost: list[str] = Field(default_factory=list, max_length=1_000, description="Regions that have failed then.")
    demand: list[DemandRow] | None = Field(
        None,
        max_length=MAX_ROWS,
        description="Without it, every tenant asks for every model: as often in all as regions report, or where they "
        "report none, so often that half of what they can run is busy.",
    )


def routes(control_plane: ControlPlane) -> APIRouter:
    """Reckons."""
    router = APIRouter(prefix="/v1", tags=["explain"])
    at_work = asyncio.Lock()

    @router.post("/what-if", responses=gives(WhatIf, "The same demand, today and as proposed."))
    async def what_if(caller: Viewer, body: WhatIfRequest) -> Response:
        """Say what would become of a demand under another policy, or when regions are lost.

        Nothing is changed. Who moves, how far requests go, what it costs, what is refused: by the planner and the
        decisions that serve the fleet. One such question is answered at a time.
        """
        policy = policy_in_force(control_plane.policy)
        if at_work.locked():
            raise Problem(429, "another what-if is being reckoned", {"retry-after": "5"})
        async with at_work:
            found = await asyncio.to_thread(_reckon, policy, body, _fleet(control_plane), _reported_rate(control_plane))
        return answer(found)

    return router


def _fleet(control_plane: ControlPlane) -> list[Capacity]:
    """What regions can run, by their reports."""
    seen = pools(control_plane.snapshot, control_plane.now())
    return [
        Capacity(region, model, one.report.slots, one.report.service_s)
        for (region, model), one in sorted(seen.items())
        if one.report.slots > 0 and one.report.service_s > 0.0
    ]


def _reported_rate(control_plane: ControlPlane) -> float:
    return min(sum(one.requests_per_s for one in demand(control_plane.snapshot, control_plane.now())), MAX_RATE)


def _reckon(policy: Policy, body: WhatIfRequest, fleet: Sequence[Capacity], reported_per_s: float) -> WhatIf:
    proposed = _compiled(body.files) if body.files is not None else policy
    for name in body.lost:
        region_of(proposed, name, "lost")
    for at, row in enumerate(body.demand or ()):
        if row.origin and row.origin not in policy.regions:
            region_of(proposed, row.origin, f"demand[{at}].origin")
    rate_per_s = reported_per_s or min(bearable_rate(policy, fleet), MAX_RATE) or USUAL_PER_S
    asked = (
        [
            Asked(row.origin, row.tenant, row.country, row.model, row.requests_per_s, row.subdivision)
            for row in body.demand
        ]
        if body.demand is not None
        else _made_up(policy, rate_per_s)
    )
    able = fleet or generated_fleet((policy, proposed), asked)
    before, after = outcome(policy, asked, able), outcome(proposed, asked, able, frozenset(body.lost))
    moved = moves(asked, before, after)
    return WhatIf(
        before=before.totals,
        after=after.totals,
        moves=tuple(moved[:MAX_MOVES]),
        moved_per_s=sum(one.requests_per_s for one in moved),
        policy_before=policy.digest(),
        policy_after=proposed.digest(),
        demand="as given" if body.demand is not None else _told(rate_per_s, reported=reported_per_s > 0.0),
        fleet="as reported" if fleet else "made up: no region reports any pool",
    )


def _told(rate_per_s: float, *, reported: bool) -> str:
    told = f"made up, {rate_per_s:.1f} requests per second"
    return f"{told} as regions report" if reported else f"{told}, since regions report none"


def _made_up(policy: Policy, rate_per_s: float) -> list[Asked]:
    """A demand of every tenant for every model.

    Raises:
        Problem: 422, there are too many of them to reckon with beside the work of a control plane.
    """
    if generated_kinds(policy) > MAX_MADE_UP:
        raise Problem(422, "demand: this policy has too many tenants, models and regions to make one up; give it")
    return generated_demand(policy, rate_per_s)


def _compiled(files: dict[str, str]) -> Policy:
    """The proposed policy.

    Raises:
        Problem: 422, with everything that is wrong with the bundle.
    """
    try:
        return compile_bundle(files)
    except PolicyRefused as refused:
        errors = [{"field": f"body.files.{error.file}", "problem": str(error)} for error in refused.errors]
        raise Problem(422, f"the bundle is refused: {len(errors)} error(s)", errors=errors) from None
