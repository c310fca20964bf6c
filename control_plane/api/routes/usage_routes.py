"""`GET /v1/usage`: usage and cost of a range of days, from the ledger's segments."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from msgspec.structs import replace

from control_plane.api.openapi import returns
from control_plane.api.responses import Problem, large_response
from control_plane.api.serving.client_location import require_policy
from control_plane.auth.required_roles import Viewer
from control_plane.status.fleet_view import FleetView
from control_plane.usage.segment_files import MAX_DAYS
from control_plane.usage.usage_request import Dimension, StoreToRead, UsageAnswer, UsageOrder, UsageRequest
from control_plane.usage.usage_runner import UsageBusy, UsageFailed, UsageRunner
from penstock.fleet.snapshot import FRESH_S, Snapshot
from penstock.ledger.prices import prices_at
from penstock.ledger.segment_names import SegmentName, parse_segment_name
from penstock.policy.policy import Policy

NO_STORE = "the policy has no usage store, so that there is no ledger; add a UsageStore document"

MAX_TOP = 1_000
"""Maximum number of the largest groups that a question can ask for."""

LATE_S = 300.0
"""Age (s) from which a segment that is not in the store is late."""

By = Annotated[
    str,
    Query(max_length=200, description="Dimensions, comma-separated: " + ", ".join(each.value for each in Dimension)),
]
First = Annotated[date | None, Query(alias="from", description="First day (UTC). Default: the first of the month.")]
Last = Annotated[date | None, Query(alias="to", description="Last day (UTC), included. Default: today.")]


def _days(first: First = None, last: Last = None) -> tuple[date, date]:
    end = last or datetime.now(UTC).date()
    begin = first or end.replace(day=1)
    if begin > end or (end - begin).days >= MAX_DAYS:
        raise Problem(422, f"`from` must be at most {MAX_DAYS} days before `to`, and not after it; correct one of them")
    return begin, end


Days = Annotated[tuple[date, date], Depends(_days)]
Top = Annotated[
    int | None,
    Query(ge=1, le=MAX_TOP, description="Only the groups that are largest by `order`; the others are summed up."),
]
Order = Annotated[UsageOrder, Query(description="With `top`: what the groups are ordered by, largest first.")]
OfTenant = Annotated[str | None, Query(max_length=128, description="Only this tenant.")]


def routes(view: FleetView, runner: UsageRunner) -> APIRouter:
    """Return the router of usage."""
    router = APIRouter(prefix="/v1", tags=["usage"])

    @router.get("/usage", responses=returns(UsageAnswer, "The sums, and what they lack."))
    async def usage(
        caller: Viewer,
        days: Days,
        by: By = "tenant",
        tenant: OfTenant = None,
        top: Top = None,
        order: Order = UsageOrder.REQUESTS,
    ) -> Response:
        """Sum up requests, tokens, GPU seconds and money of a range of days.

        Requests are counted from the records of the agents that received them, GPU seconds from all records. `missing`
        names what the sums lack. The segments of the current minute are not in the store yet.
        """
        policy = require_policy(view.policy)
        last_put = put_by_agents(view.snapshot, datetime.now(UTC).date())
        question = UsageRequest(stores_of(policy), *days, dimensions(by.split(",")), tenant, top, order, last_put)
        if not question.stores:
            raise Problem(409, NO_STORE)
        try:
            found = await runner.answer(question)
        except UsageBusy as error:
            raise Problem(429, str(error), {"Retry-After": "5"}) from None
        except UsageFailed as error:
            raise Problem(503, str(error)) from None
        missing = (*found.missing, *uncovered(policy), *held_by_agents(view.snapshot, time.time()))
        prices = prices_at(policy, datetime.now(UTC).timestamp())
        found = replace(found, missing=missing, currency="" if prices is None else prices.currency)
        return await large_response(lambda: found)

    return router


def dimensions(names: Sequence[str]) -> tuple[Dimension, ...]:
    """Return the dimensions with these names, once each.

    Raises:
        Problem: a name is unknown.
    """
    known = {each.value: each for each in Dimension}
    wanted = [name.strip() for name in names if name.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise Problem(422, f"`by`: {unknown[0]} is not a dimension; use some of {', '.join(known)}")
    return tuple(dict.fromkeys(known[name] for name in wanted))


def stores_of(policy: Policy) -> tuple[StoreToRead, ...]:
    """Return the stores of a policy."""
    return tuple(StoreToRead(store.name, store.url) for store in policy.usage_stores or ())


def held_by_agents(snapshot: Snapshot, now: float) -> tuple[str, ...]:
    """Return a line for each agent that holds segments longer than usual, lost records, or does not report at `now`."""
    lines = []
    for (region, agent), held in sorted(snapshot.agents.items()):
        report, ledger = held.report, held.report.ledger
        if ledger is None:
            continue
        if ledger.lost_records:
            lines.append(f"agent {agent} of {region} had no room for {ledger.lost_records} records, which are lost")
        if ledger.oldest_at is not None and report.sent_at - ledger.oldest_at > LATE_S:
            since = datetime.fromtimestamp(ledger.oldest_at, UTC).isoformat(timespec="seconds")
            lines.append(f"agent {agent} of {region} holds {ledger.waiting} segments, the oldest of {since}")
        if now - held.received_at > FRESH_S:
            lines.append(f"agent {agent} of {region} does not report; segments that it holds are missing")
    return tuple(lines)


def put_by_agents(snapshot: Snapshot, today: date) -> tuple[SegmentName, ...]:
    """Return the last segment that each agent has put into its store; none from before yesterday.

    Agents with endpoints put one every few minutes, and retention removes older ones.
    """
    reports = (held.report for _, held in sorted(snapshot.agents.items()))
    names = (parse_segment_name(report.ledger.last_put) for report in reports if report.ledger is not None)
    return tuple(name for name in names if name is not None and name.day >= today - timedelta(days=1))


def uncovered(policy: Policy) -> tuple[str, ...]:
    """Return a line for each region whose records no store holds."""
    names = sorted(region for region in policy.regions if policy.usage_store(region) is None)
    return tuple(f"no usage store covers {name}: its agents hold their records" for name in names)
