"""`GET /v1/usage`: usage and cost of a range of days, from the ledger's segments."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Response
from msgspec.structs import replace

from control_plane.api.openapi import returns
from control_plane.api.responses import Problem, large_response
from control_plane.api.serving.client_location import require_policy
from control_plane.auth.required_roles import Viewer
from control_plane.status.fleet_view import FleetView
from control_plane.usage.segment_files import MAX_DAYS
from control_plane.usage.usage_request import Dimension, StoreToRead, UsageAnswer, UsageRequest
from control_plane.usage.usage_runner import UsageBusy, UsageFailed, UsageRunner
from penstock.ledger.prices import prices_at
from penstock.policy.policy import Policy

By = Annotated[
    str,
    Query(max_length=200, description="Dimensions, comma-separated: " + ", ".join(each.value for each in Dimension)),
]
First = Annotated[date | None, Query(alias="from", description="First day (UTC). Default: the first of the month.")]
Last = Annotated[date | None, Query(alias="to", description="Last day (UTC), included. Default: today.")]
OfTenant = Annotated[str | None, Query(max_length=128, description="Only this tenant.")]


def routes(view: FleetView, runner: UsageRunner) -> APIRouter:
    """Return the router of usage."""
    router = APIRouter(prefix="/v1", tags=["usage"])

    @router.get("/usage", responses=returns(UsageAnswer, "The sums, and what they lack."))
    async def usage(
        caller: Viewer, by: By = "tenant", first: First = None, last: Last = None, tenant: OfTenant = None
    ) -> Response:
        """Sum up requests, tokens, GPU seconds and money of a range of days.

        Requests are counted from the records of the agents that received them, GPU seconds from all records. `missing`
        names what the sums lack. The segments of the current minute are not in the store yet.
        """
        policy = require_policy(view.policy)
        today = datetime.now(UTC).date()
        end = last or today
        question = UsageRequest(stores_of(policy), first or end.replace(day=1), end, dimensions(by.split(",")), tenant)
        if question.first_day > end or (end - question.first_day).days >= MAX_DAYS:
            raise Problem(422, f"`from` must be at most {MAX_DAYS} days before `to`; correct one of them")
        if not question.stores:
            raise Problem(409, "the policy has no usage store, so that there is no ledger; add a UsageStore document")
        try:
            found = await runner.answer(question)
        except UsageBusy as error:
            raise Problem(429, str(error), {"Retry-After": "5"}) from None
        except UsageFailed as error:
            raise Problem(503, str(error)) from None
        missing = (*found.missing, *uncovered(policy))
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


def uncovered(policy: Policy) -> tuple[str, ...]:
    """Return a line for each region whose records no store holds."""
    names = sorted(region for region in policy.regions if policy.usage_store(region) is None)
    return tuple(f"no usage store covers {name}: its agents hold their records" for name in names)
