"""Kinds of policy documents: tenants and their tiers, data classes, access without a key and from browsers."""

from __future__ import annotations

from math import ceil
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from penstock.policy.fields import (
    DERIVED,
    AdapterPattern,
    Conflict,
    DataClassRef,
    KeyDigest,
    Label,
    NonEmpty,
    Origin,
    PolicyStruct,
    TenantRef,
    TierRef,
    bounds,
    length,
)
from penstock.policy.kinds.budgets import Budget, BudgetScope, BudgetUnit, OnLoss, unusable_budget

DEFAULT_HOLD_S = 300.0

MIN_PRIORITY, MAX_PRIORITY = -1000, 1000
"""Bounds of priorities."""

BATCH_PRIORITY = MIN_PRIORITY - 1
"""Priority of batch tiers, below all others."""

MIN_WEIGHT, MAX_WEIGHT = 0.01, 100
"""Bounds of weights."""


class DataClass(PolicyStruct, frozen=True):
    """A kind of data that residency rules match; declared so that a misspelled name is an error."""

    name: Label
    """Unique name, such as `eu-personal`."""


class Quota(PolicyStruct, frozen=True):
    """Limits of a tenant in each region in which its clients enter: the short form of two budgets with the scope
    `region`, of requests per minute and of concurrent requests.
    """

    requests_per_s: Annotated[float, bounds(gt=0, le=1e6)] | None
    """Requests that may start per second; null: no limit."""
    burst_requests: Annotated[int, bounds(ge=1, le=1_000_000)] | None
    """Requests that may start at once after a pause. null: the number that `requests_per_s` allows in one second, at
    least 1."""
    concurrent: Annotated[int, bounds(ge=1, le=1_000_000)] | None
    """Requests that may run at once, from admission to the end of the response; null: no limit."""

    @property
    def burst(self) -> int:
        """Requests that may start at once after a pause."""
        return self.burst_requests or max(1, ceil(self.requests_per_s or 0.0))

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The budgets of which the quota is the short form."""
        found: list[Budget] = []
        if self.requests_per_s is not None:
            per_minute = self.requests_per_s * 60.0
            found.append(Budget(BudgetUnit.REQUESTS, per_minute, BudgetScope.REGION, burst=float(self.burst)))
        if self.concurrent is not None:
            found.append(Budget(BudgetUnit.CONCURRENT_REQUESTS, float(self.concurrent), BudgetScope.REGION))
        return tuple(found)

    def conflict(self) -> Conflict | None:
        if self.requests_per_s is not None or self.concurrent is not None:
            return None
        return Conflict("limits nothing", "write requests_per_s or concurrent, or remove the quota")


class Batch(PolicyStruct, frozen=True):
    """Requests that use only what is idle: none starts while a request with a priority waits, and they leave room for
    such requests."""

    max_use_percent: Annotated[float, bounds(ge=1, le=100)] = 75.0
    """Part (%) of the model's slots in a region up to which batch requests start; the others stay free for requests
    with a priority."""


class Tier(PolicyStruct, frozen=True):
    """The rules of a kind of tenant. Tenants that the API creates have a tier; tenants of the bundle may have one."""

    name: Label
    """Unique name."""
    data_class: DataClassRef
    """Name of the data class of all requests of tenants that the API creates with this tier."""
    priority: Annotated[int, bounds(ge=MIN_PRIORITY, le=MAX_PRIORITY)] = 0
    """Highest priority of a tenant's requests: requests with a higher priority leave a queue first. A request may ask
    for a lower one."""
    weight: Annotated[float, bounds(ge=MIN_WEIGHT, le=MAX_WEIGHT)] = 1.0
    """Share of a tenant among the tenants of its priority: twice the weight, twice the GPU time with backlog."""
    models: NonEmpty[tuple[AdapterPattern, ...]] | None = None
    """Models and adapters that the tenants may use, by name, with `*` for any characters; null: all."""
    routes: NonEmpty[tuple[Annotated[str, length(1, 128)], ...]] | None = None
    """Names of the routes that the tenants may use, with `*` for any characters; null: all."""
    budgets: tuple[Budget, ...] = ()
    """Limits of each tenant of the tier."""
    hold_s: Annotated[float, bounds(ge=0, le=86_400)] = DEFAULT_HOLD_S
    """Time (s) without a leader for which an agent continues with the last rates of budgets."""
    on_loss: OnLoss = OnLoss.SHARE
    """Rates of budgets after `hold_s` without a leader."""

    batch: Batch | None = None
    """For tenants whose requests use only idle slots, below all priorities; null: the tier has a priority."""

    def conflict(self) -> Conflict | None:
        if self.batch is not None and self.priority:
            return Conflict("has a priority besides `batch`", "remove one of them: batch is below all priorities")
        return unusable_budget(self.budgets)


class Tenant(PolicyStruct, frozen=True):
    """An owner of requests."""

    name: Label
    """Unique name, used in metrics and audit entries."""
    data_class: DataClassRef
    """Name of the data class of all its requests."""
    key_digests: tuple[KeyDigest, ...] = ()
    """SHA-256 of each of its API keys in lower-case hexadecimal; never the keys themselves."""
    priority: Annotated[int, bounds(ge=MIN_PRIORITY, le=MAX_PRIORITY)] = 0
    """Priority of the tenant's requests: requests with a higher priority leave a queue first."""
    quota: Quota | None = None
    """Limits of the tenant; requests beyond them are refused with 429 `quota_exceeded`. null: no limit."""
    tier: TierRef | UnsetType = UNSET
    """Tier whose priority, weight, models, routes and budgets the tenant has. Without one: weight 1, all models and
    routes, and no limits but its quota."""
    rules: Annotated[Tier | UnsetType, DERIVED] = UNSET
    """The tier. Like the following field, absent from stored policies without tiers, which keep their digest."""
    own_budgets: Annotated[tuple[Budget, ...] | UnsetType, DERIVED] = UNSET
    """Limits besides those of the tier and the quota."""

    @property
    def weight(self) -> float:
        """Share of the tenant among the tenants of its priority."""
        return 1.0 if self.rules is UNSET else self.rules.weight

    @property
    def max_use(self) -> float:
        """Part (0-1) of a model's slots in a region up to which requests of the tenant start."""
        batch = None if self.rules is UNSET else self.rules.batch
        return 1.0 if batch is None else batch.max_use_percent / 100.0

    @property
    def models(self) -> tuple[str, ...] | None:
        """Models and adapters that the tenant may use, with `*` for any characters; None: all."""
        return None if self.rules is UNSET else self.rules.models

    @property
    def routes(self) -> tuple[str, ...] | None:
        """Names of the routes that the tenant may use, with `*` for any characters; None: all."""
        return None if self.rules is UNSET else self.rules.routes

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """All limits of the tenant. Two may limit the same; the smaller one has an effect."""
        of_quota = () if self.quota is None else self.quota.budgets
        of_tier = () if self.rules is UNSET else self.rules.budgets
        return (*of_quota, *of_tier, *(self.own_budgets or ()))

    def conflict(self) -> Conflict | None:
        if self.tier is not UNSET and self.priority:
            return Conflict("has a priority besides a tier", "remove the priority, which the tier sets, or the tier")
        return None

    def under(self, tier: Tier) -> Tenant:
        """Return the tenant with the rules of its tier."""
        priority = tier.priority if tier.batch is None else BATCH_PRIORITY
        return replace(self, priority=priority, rules=tier)


class AnonymousAccess(PolicyStruct, frozen=True):
    """Handling of requests without a key. At most one per bundle."""

    tenant: TenantRef | None = None
    """Tenant to which such requests belong; null: refuse them."""


class BrowserAccess(PolicyStruct, frozen=True):
    """Web pages that may use the fleet from a browser (CORS). At most one per bundle; without it, none may.

    The pages need the API key of a tenant as all clients do. A key that a page contains is known to all its visitors:
    give such keys a tenant of their own, with a quota.
    """

    cors_origins: Annotated[frozenset[Origin], Meta(extra_json_schema={"maxItems": 100})] = frozenset()
    """Origins of the pages, such as `https://app.example`; `*` for all. Agents answer their preflight requests, and
    permit them to read responses, refusals included."""
