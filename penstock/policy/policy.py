"""The compiled policy that control planes and agents use, and the digest that identifies it."""

from __future__ import annotations

from functools import cached_property
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from penstock.policy.geography import estimated_rtt_ms, great_circle_km, lifted_ms
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
    RolloutRules,
)
from penstock.policy.kinds.regions import STANDBY_MS, EntryMap, Region
from penstock.policy.kinds.residency_rules import AcceptedLoss, ResidencyRule
from penstock.policy.kinds.result_cache import ResultCache
from penstock.policy.kinds.spillover_and_failover import Failover, Spillover, SpilloverLimit
from penstock.policy.kinds.tenants import Tenant, Tier
from penstock.policy.time_zone import TimeZone
from penstock.routes.presets.openai import OPENAI_ROUTES
from penstock.routes.route import Route
from penstock.routes.route_table import RouteTable

BYTES_PER_GB = 1e9
MS_PER_S = 1000.0
SECONDS_PER_HOUR = 3600.0


def created_tenants_of(tier: str) -> str:
    """Return the name in `Policy.senders` of the tenants that the API creates with a tier; no tenant can have it."""
    return f"{tier}/*"


class Policy(msgspec.Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """One accepted revision of the bundle, compiled. Equal content has an equal digest."""

    regions: dict[str, Region]
    models: dict[str, Model]
    tenants: dict[str, Tenant]
    residency: tuple[ResidencyRule, ...]
    rtt_ms: dict[str, dict[str, float]] = {}
    """Measured round trips (ms), origin to server; missing pairs are estimated from geography."""
    entry_maps: tuple[EntryMap, ...] = ()
    spillover: Spillover = Spillover()
    spillover_limits: tuple[SpilloverLimit, ...] = ()
    failover: Failover = Failover()
    tiers: dict[str, Tier] | UnsetType = UNSET
    """Tiers by name; absent without tiers, so that such policies keep their digest, and earlier releases read them."""
    issuers: dict[str, Issuer] | UnsetType = UNSET
    """Identity providers whose tokens identify tenants, by name; absent without such documents."""
    prices: tuple[Prices, ...] | UnsetType = UNSET
    """Price lists by `valid_from`. Like the following field, absent from stored policies without documents of it."""
    usage_stores: tuple[UsageStore, ...] | UnsetType = UNSET
    """Stores of the ledger by name; absent if the ledger is off."""
    job_stores: tuple[JobStore, ...] | UnsetType = UNSET
    """Stores of jobs by name; absent if no region offers jobs."""
    dns_zones: dict[str, DnsZone] | UnsetType = UNSET
    """Zones by name, that the agents answer in the DNS. Like the following field, absent without documents of it."""
    dns_names: dict[str, DnsName] | UnsetType = UNSET
    """Names in these zones."""
    coalescing: Coalescing | UnsetType = UNSET
    """Which identical requests share a run; absent without such a document."""
    result_caches: tuple[ResultCache, ...] | UnsetType = UNSET
    """Which responses are kept, by name of the document; absent without such a document."""
    anonymous_tenant: str | None = None
    """The tenant of requests without an API key; None refuses them."""
    objective: Objective = Objective()
    rollout: RolloutRules = RolloutRules()
    versions: dict[str, ModelVersions] = {}
    """Versions by the requested name."""
    accepted_losses: tuple[AcceptedLoss, ...] = ()
    guard_rails: GuardRails = GuardRails()
    maintenance: tuple[MaintenanceWindow, ...] = ()
    drills: tuple[DrillSchedule, ...] = ()
    time_zones: dict[str, TimeZone] = {}
    """By name: the time zones in which maintenance windows and drills recur."""
    cors_origins: frozenset[str] = frozenset()
    """Origins whose pages may read responses in a browser, such as `https://app.example`; `*` for every origin."""
    routes: tuple[Route, ...] = OPENAI_ROUTES
    """The kinds of request that the fleet accepts."""
    events: tuple[Event, ...] | UnsetType = UNSET
    """Announced events, by name."""
    model_rollouts: dict[str, ModelRollout] | UnsetType = UNSET
    """Rollouts of versions, by the requested name; absent without such documents."""
    demand_signals: tuple[DemandSignal, ...] | UnsetType = UNSET
    """External signals of demand, by name; absent without documents of it."""

    @cached_property
    def reuses_results(self) -> bool:
        """Whether identical requests share runs or responses."""
        return self.coalescing is not UNSET or self.result_caches is not UNSET

    def tier(self, name: str) -> Tier | None:
        """Return the tier with a name, if the policy has it."""
        return None if self.tiers is UNSET else self.tiers.get(name)

    @cached_property
    def issuers_by_url(self) -> dict[str, Issuer]:
        """The identity providers by the value of `iss` in their tokens."""
        return {issuer.issuer: issuer for issuer in (self.issuers or {}).values()}

    @cached_property
    def senders(self) -> dict[str, Tenant]:
        """The tenants by name, and for each tier one tenant that represents those that the API creates with it, by
        `created_tenants_of`. Residency rules do not distinguish created tenants of one tier."""
        tiers = (self.tiers or {}).values()
        created = [Tenant(created_tenants_of(tier.name), tier.data_class, tier=tier.name).under(tier) for tier in tiers]
        return {**self.tenants, **{tenant.name: tenant for tenant in created}}

    @cached_property
    def data_classes(self) -> frozenset[str]:
        """Data classes that tenants have or rules match; others have no effect."""
        of_rules = (name for rule in self.residency for name in rule.data_classes)
        return frozenset((*of_rules, *(tenant.data_class for tenant in self.senders.values())))

    def preempts_batch(self, model: str) -> bool:
        """Whether requests with a priority end running batch requests of a model, and so need no idle slots."""
        known = self.models.get(model)
        return known is not None and known.queueing.preempt_batch is True

    def preemption_patience_s(self, model: str, service_s: float) -> float:
        """Time (s) for which a request waits before it ends a batch request of any age.

        Args:
            service_s: mean time (s) for which a request of the model holds a slot.
        """
        known = self.models.get(model)
        percent = UNSET if known is None else known.queueing.preempt_wait_percent
        return 0.0 if percent is UNSET else percent / 100.0 * service_s

    def usage_store(self, region: str) -> UsageStore | None:
        """Return the store that holds the ledger records of a region, if one does."""
        for store in self.usage_stores or ():
            if region in (store.covers or ()):
                return store
        return None

    def job_store(self, region: str) -> JobStore | None:
        """Return the store that holds the jobs of a region, if one does."""
        for store in self.job_stores or ():
            if region in (store.covers or ()):
                return store
        return None

    def digest(self) -> str:
        """SHA-256 over the canonical encoding: sets and dicts are sorted, so all processes compute the same digest."""
        return self._digest

    def named(self, digest: str) -> Policy:
        """Set the digest to that of the bytes that the policy was read from, which an earlier release may have written.
        Returns the policy."""
        self.__dict__["_digest"] = digest
        return self

    @property
    def revoked_ids(self) -> frozenset[str]:
        """Identifiers of the revoked API keys that were removed from the policy, see `penstock.policy.revoked_keys`."""
        ids: frozenset[str] = self.__dict__.get("_revoked_ids", frozenset())
        return ids

    def revoking(self, ids: frozenset[str]) -> Policy:
        """Set the identifiers of the revoked API keys, also of keys that no tenant has. Returns the policy."""
        self.__dict__["_revoked_ids"] = ids
        return self

    @cached_property
    def _digest(self) -> str:
        # Cached, since encoding takes milliseconds with thousands of tenants, and is needed many times a second.
        return sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()

    @cached_property
    def route_table(self) -> RouteTable:
        """Finds the route of a request. Raises ValueError if a route has a malformed path or JSON pointer."""
        return RouteTable(self.routes)

    @cached_property
    def adapter_patterns(self) -> tuple[tuple[str, str], ...]:
        """Every pattern of adapter names with its base model; no name matches two of them."""
        return tuple((pattern, model.name) for model in self.models.values() for pattern in model.adapters)

    @cached_property
    def kept_bounds(self) -> dict[tuple[str, str], Any]:
        """Cache of `penstock.planning.spillover_limits`, by origin and model."""
        return {}

    @cached_property
    def result_origins(self) -> dict[tuple[str, str], bytes]:
        """Cache of `penstock.result_cache.cache_key`, by model and route."""
        return {}

    @cached_property
    def bias_ms(self) -> dict[str, float]:
        """Bias (ms) of every region that has one: its own, and that of a standby region."""
        bias_ms = {name: region.bias_ms + STANDBY_MS * region.is_standby for name, region in self.regions.items()}
        return {name: added_ms for name, added_ms in bias_ms.items() if added_ms}

    @cached_property
    def spillover_orders(self) -> dict[str, tuple[str, ...]]:
        """Spillover order of every origin that has one."""
        return {name: region.spillover_order for name, region in self.regions.items() if region.spillover_order}

    def round_trip_ms(self, origin: str, server: str) -> float:
        """The round trip (ms) between two regions: measured if known, else estimated from their locations."""
        measured = self.rtt_ms.get(origin, {}).get(server)
        if measured is not None:
            return measured
        return self._estimated_ms(origin, server)

    def distance_ms(self, origin: str, server: str) -> float:
        """Effective distance (ms): round trip plus bias, raised if necessary to follow the origin's spillover order."""
        if origin in self.spillover_orders:
            return self._ordered_ms(origin)[server]
        return self._plain_ms(origin, server)

    def _plain_ms(self, origin: str, server: str) -> float:
        return self.round_trip_ms(origin, server) + self.bias_ms.get(server, 0.0)

    def nearest_first(self, origin: str, regions: frozenset[str]) -> tuple[str, ...]:
        """`regions` by distance from `origin`, then by name, so that all processes return the same order."""
        measured = self.rtt_ms.get(origin)
        plain = not self.bias_ms and origin not in self.spillover_orders
        if measured is not None and plain and regions <= measured.keys():
            # The same result without a call for each region, since agents sort for every request that may leave.
            return tuple(sorted(sorted(regions), key=measured.__getitem__))
        return tuple(sorted(regions, key=lambda name: (self.distance_ms(origin, name), name)))

    @cached_property
    def _ordered(self) -> dict[str, dict[str, float]]:
        return {}

    def _ordered_ms(self, origin: str) -> dict[str, float]:
        if origin not in self._ordered:
            plain_ms = {server: self._plain_ms(origin, server) for server in self.regions}
            self._ordered[origin] = lifted_ms(plain_ms, origin, self.spillover_orders[origin])
        return self._ordered[origin]

    def _estimated_ms(self, origin: str, server: str) -> float:
        if origin == server:
            return 0.0
        a, b = self.regions[origin], self.regions[server]
        return estimated_rtt_ms(great_circle_km(a.latitude_deg, a.longitude_deg, b.latitude_deg, b.longitude_deg))
