"""The compiled policy, as control planes and agents hold it, and the digest that identifies it."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from typing import Any

import msgspec

from penstock.policy.geography import estimated_rtt_ms, great_circle_km, lifted_ms
from penstock.policy.service_objective import ServiceObjective
from penstock.policy.time_zone import TimeZone

BYTES_PER_GB = 1e9
MS_PER_S = 1000.0
SECONDS_PER_HOUR = 3600.0


class PolicyStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all parts of a policy. Unknown fields are rejected, because one could restrict the known ones."""


class Region(PolicyStruct, frozen=True):
    """One site that serves."""

    name: str
    country: str
    """ISO 3166-1 alpha-2 of where the hardware stands."""
    latitude_deg: float
    longitude_deg: float
    jurisdictions: frozenset[str] = frozenset()
    """Every legal space the site lies in: its country and the blocs it belongs to, such as {"DE", "EU", "EEA"}."""
    cost_per_gpu_hour: float = 1.0
    """Relative price of a GPU hour here, in the currency of the bundle."""
    city: str = ""
    egress_cost_per_gb: float = 0.0
    """Price of 10^9 bytes that leave this region for another one, in the currency of the bundle."""
    bias_ms: float = 0.0
    """Distance (ms) that is added to this region's real one for every origin and client, its own included."""
    spillover_order: tuple[str, ...] = ()
    """Regions that receive this region's overflow first, in order, whatever is nearest; the others follow."""


class CostUnit(StrEnum):
    """What the cost of a model's requests is counted in."""

    TOKEN = "token"
    """Language models: prompt tokens go in, generated tokens come out."""
    MEGAPIXEL_STEP = "megapixel_step"
    """Image models: 10^6 pixels of each image, times denoising steps."""
    AUDIO_SECOND = "audio_second"
    """Speech models: seconds of speech that come out."""
    REQUEST = "request"
    """Anything else: every request costs the same."""


class Cost(PolicyStruct, frozen=True):
    """What a model's requests cost: time on the reference accelerator (H100, `penstock.policy.accelerators`), alone.

    Only a prior: how much slower or faster each endpoint is, how long prompts and answers are, is learned from traffic.
    """

    unit: CostUnit = CostUnit.REQUEST
    input_unit_s: float = 0.0
    """Time (s) that one unit of input takes: a prompt token that no cache spares. 0 for what has no such part."""
    output_unit_s: float = 5.0
    """Time (s) that one unit of output takes: a generated token, a megapixel step, a second of speech, a request."""


class Model(PolicyStruct, frozen=True):
    """A model that clients may ask for by name."""

    name: str
    expected_service_s: float = 5.0
    """How long one request holds its slot, until completions have been seen; a prior, in seconds."""
    request_bytes: float = 4_000.0
    """Mean size (bytes) of a request's body: what leaves its origin when another region serves it."""
    response_bytes: float = 4_000.0
    """Mean size (bytes) of an answer's body: what comes back from there."""
    cost: Cost = Cost()
    """What its requests cost an endpoint."""
    fallback: str | None = None
    """A lighter model that serves its requests while every permitted region lacks it, or is full of it; None refuses
    them then."""
    service_objective: ServiceObjective | None = None
    """How soon its answers should begin; None for no objective."""


class Version(PolicyStruct, frozen=True):
    """One of the models that a name stands for."""

    model: str
    percent: float
    """Its share (0-100) of what is asked for by that name."""


class ModelVersions(PolicyStruct, frozen=True):
    """A name that clients ask for, and the models that serve it."""

    name: str
    versions: tuple[Version, ...]
    """In order: each takes its share of one scale, see `penstock.policy.model_versions`."""


class Quota(PolicyStruct, frozen=True):
    """How much a tenant may ask of each region that its clients come to."""

    requests_per_s: float | None
    """Requests that may start a second; None for any number."""
    burst_requests: int
    """Requests that may start at once after a pause."""
    concurrent: int | None
    """Requests that may run at once; None for any number."""


class Tenant(PolicyStruct, frozen=True):
    """An owner of requests."""

    name: str
    data_class: str
    """Names the kind of data in its requests; residency rules match on it."""
    key_digests: tuple[str, ...] = ()
    """SHA-256 of each API key, lower-case hex; the keys themselves are nowhere."""
    priority: int = 0
    """Higher goes first where something must wait."""
    quota: Quota | None = None
    """None: no limit."""


class ResidencyRule(PolicyStruct, frozen=True):
    """Narrows where matching requests may ever be. An empty matcher matches all; deny wins over allow."""

    name: str
    tenants: frozenset[str] = frozenset()
    data_classes: frozenset[str] = frozenset()
    client_countries: frozenset[str] = frozenset()
    """ISO 3166-1 alpha-2. A rule with places *governs*: an unknown location is refused, not guessed."""
    client_subdivisions: frozenset[str] = frozenset()
    """ISO 3166-2, first level, such as "US-CA"; a client there is in the rule's places as one of `client_countries` is.
    Governs too: a client of that country whose subdivision is unknown is refused."""
    allow: frozenset[str] | None = None
    """Names of the regions that may touch the request; None leaves the set as other rules have it."""
    deny: frozenset[str] = frozenset()
    """Names of the regions that may not, whatever any rule allows."""
    source: str = ""
    """The file and line it was written at."""


class AcceptedLoss(PolicyStruct, frozen=True):
    """A residency class whose loss, if its regions fail, is accepted. `policy verify` rejects losses that are not."""

    name: str
    regions: frozenset[str]
    """All the regions that the class permits."""
    because: str
    """For people: why, and what becomes of its requests."""


class EntryMap(PolicyStruct, frozen=True):
    """Where clients of some places should come in, as people decided it: before whatever is nearest."""

    name: str
    client_countries: frozenset[str]
    """ISO 3166-1 alpha-2."""
    client_subdivisions: frozenset[str]
    """ISO 3166-2, first level, such as "US-CA"; a map of a client's subdivision goes before one of its country."""
    regions: tuple[str, ...]
    """Best first. What residency forbids is left out; the other permitted regions follow."""


class Spillover(PolicyStruct, frozen=True):
    """When a healthy region's overflow may leave it."""

    target_utilisation: float = 0.8
    """Share of a pool's slots (0-1] that the plan fills before it sends more demand elsewhere."""
    margin_s: float = 0.25
    """How much sooner (s) than here, after the round trip, a request must start elsewhere to leave beyond the plan."""
    credit_ttl_s: float = 0.75
    """How long (s) a granted spill credit may be spent."""
    step_per_s: float = 0.25
    """How much (0-1] of an origin's demand for a model the plan may move per second, failures excepted."""


class SpilloverLimit(PolicyStruct, frozen=True):
    """How far and how much of demand may leave where it landed while it could stay; an empty matcher matches all."""

    name: str
    origins: frozenset[str] = frozenset()
    """Names of the regions that demand lands on."""
    models: frozenset[str] = frozenset()
    max_cost_per_gpu_hour: float | None = None
    """Regions with a dearer GPU hour take none of it while another can; None for any price."""
    max_share: float | None = None
    """How much (0-1) of a class's demand may be served elsewhere; None for all of it."""
    source: str = ""
    """The file and line it was written at."""


class Failover(PolicyStruct, frozen=True):
    """When a region counts as lost, and how it comes back."""

    probe_interval_s: float = 0.25
    """Time (s) between two probes of a peer region."""
    probe_timeout_s: float = 0.5
    """A probe unanswered for this long (s), beyond the pair's usual round trip, is a miss."""
    unhealthy_threshold: int = 2
    """Consecutive misses that turn suspect into failed."""
    healthy_threshold: int = 3
    """Consecutive good probes that a failed region needs."""
    hold_down_s: float = 5.0
    """Least time (s) a failed region stays failed, so that a flapping one does not drag traffic about."""
    failback_ramp_s: float = 60.0
    """Time (s) over which a recovered region's share grows from nothing to whole."""


class PlanLogic(StrEnum):
    """What turns demand and capacity into shares, by name: `penstock.planning.registry` has the table.

    A name means one logic for good. Another one gets a name of its own, so that a release changes no plan by itself.
    """

    LINEAR_PROGRAM = "linear_program"
    """The cheapest shares for all demand at once, with room for the loss of a region."""
    WATERFALL = "waterfall"
    """Home up to its target, then the next nearest permitted region: weighs no costs and keeps no room."""


class Objective(PolicyStruct, frozen=True):
    """How plans are made: by what logic, what it minimises, weighed in milliseconds of latency, and keeps in reserve.

    A round trip counts as itself. Serving beats reserve and reserve beats all of these, whatever the weights.
    """

    plan_logic: PlanLogic = PlanLogic.LINEAR_PROGRAM
    """The logic that plans; the other fields are its parameters, as far as it has a use for them."""
    latency_ms_per_cost: float = 20_000.0
    """Latency (ms) that a request may gain to save one unit of the bundle's currency on GPU time and egress."""
    queueing_weight: float = 0.1
    """How many milliseconds of round trip one millisecond of expected queueing is worth: less than one, since what
    would wait may still be spilled by credit. The more, the sooner demand leaves a pool that fills."""
    change_penalty_ms: float = 5.0
    """How much sooner (ms) elsewhere than where the plan in force has it before demand moves; a tenth for home."""
    survive_one_loss: bool = True
    """Keep room, within residency, for what any one region serves, in case that region is lost (N-1)."""
    forecast_horizon_s: float = 10.0
    """How far ahead (s) demand is forecast; a plan is for most of that where it is more than what is measured."""


class GuardRails(PolicyStruct, frozen=True):
    """What operators may do by an override without saying that they know what it does."""

    max_withdrawn_share: float = 0.5
    """How much (0-1) of the fleet's capacity for any one model overrides may take out of use together."""


class Recurrence(StrEnum):
    """How often a maintenance window comes again, by the clocks of its time zone."""

    NEVER = "never"
    DAILY = "daily"
    WEEKLY = "weekly"


class MaintenanceWindow(PolicyStruct, frozen=True):
    """When regions are emptied, so that people may work on them."""

    name: str
    regions: frozenset[str]
    starts_at: float
    """Unix time (s) of its first beginning, by when the regions are to be empty."""
    duration_s: float
    """How long (s) it takes each time."""
    recurrence: Recurrence = Recurrence.NEVER
    lead_s: float = 600.0
    """How long (s) before each beginning the drain begins."""
    source: str = ""
    """The file and line it was written at."""
    time_zone: str | None = None
    """Time zone of the recurrence, an IANA name that `Policy.time_zones` contains; None for UTC."""


class RolloutRules(PolicyStruct, frozen=True):
    """How a change of policy reaches the fleet."""

    shadow_s: float = 10.0
    """How long (s) both plans are made and compared before any region obeys the new policy; 0 compares nothing."""
    max_moved_share: float = 0.25
    """The part (0-1) of all demand that the new plan may serve elsewhere; beyond it a person must say how to go on."""
    canary_regions: tuple[str, ...] = ()
    """Regions that obey the new policy before all others; none tries it nowhere first."""
    canary_s: float = 300.0
    """How long (s), at least, they do so before the others follow."""
    acknowledge_timeout_s: float = 15.0
    """An agent there that has not taken it after this long (s) is reason to roll back."""
    min_requests: int = 100
    """Requests that must have ended there before anything is judged by them, and before the others follow."""
    max_failure_increase: float = 0.02
    """How much (0-1) the part of requests that fail or are refused may grow."""
    max_latency_factor: float = 1.5
    """How many times as long as before the mean time to the first byte may become."""
    watch_s: float = 600.0
    """How long (s) it is watched, by the same limits, once every region obeys it."""


class Policy(PolicyStruct, frozen=True, dict=True):
    """One accepted revision of the bundle, compiled. Equal content has an equal digest."""

    regions: dict[str, Region]
    models: dict[str, Model]
    tenants: dict[str, Tenant]
    residency: tuple[ResidencyRule, ...]
    rtt_ms: dict[str, dict[str, float]] = {}
    """Measured round trips (ms), origin to server; pairs that are missing are estimated from geography."""
    entry_maps: tuple[EntryMap, ...] = ()
    spillover: Spillover = Spillover()
    spillover_limits: tuple[SpilloverLimit, ...] = ()
    failover: Failover = Failover()
    anonymous_tenant: str | None = None
    """The tenant of requests that carry no key; None refuses them."""
    objective: Objective = Objective()
    rollout: RolloutRules = RolloutRules()
    versions: dict[str, ModelVersions] = {}
    """By the name that clients ask for."""
    accepted_losses: tuple[AcceptedLoss, ...] = ()
    guard_rails: GuardRails = GuardRails()
    maintenance: tuple[MaintenanceWindow, ...] = ()
    time_zones: dict[str, TimeZone] = {}
    """By name: the time zones in which maintenance windows recur."""

    def digest(self) -> str:
        """SHA-256 over the canonical encoding: sets and dicts sorted, so any process gets the same name."""
        return self._digest

    def named(self, digest: str) -> Policy:
        """This policy under the digest of the bytes that it was read from, be they of an earlier release."""
        self.__dict__["_digest"] = digest
        return self

    @cached_property
    def _digest(self) -> str:
        # Kept, for it takes milliseconds with thousands of tenants and is asked for many times a second.
        return sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()

    @cached_property
    def kept_bounds(self) -> dict[tuple[str, str], Any]:
        """Room for what `penstock.planning.spillover_limits` has worked out, by origin and model."""
        return {}

    @cached_property
    def bias_ms(self) -> dict[str, float]:
        """Bias (ms) of every region that has one."""
        return {name: region.bias_ms for name, region in self.regions.items() if region.bias_ms}

    @cached_property
    def spillover_orders(self) -> dict[str, tuple[str, ...]]:
        """Spillover order of every origin that has one."""
        return {name: region.spillover_order for name, region in self.regions.items() if region.spillover_order}

    def round_trip_ms(self, origin: str, server: str) -> float:
        """The round trip (ms) between two regions: measured where known, else estimated from where they are."""
        measured = self.rtt_ms.get(origin, {}).get(server)
        if measured is not None:
            return measured
        return self._estimated_ms(origin, server)

    def distance_ms(self, origin: str, server: str) -> float:
        """Effective distance (ms): round trip plus bias, raised where needed to follow the origin's spillover order."""
        if origin in self.spillover_orders:
            return self._ordered_ms(origin)[server]
        return self._plain_ms(origin, server)

    def _plain_ms(self, origin: str, server: str) -> float:
        return self.round_trip_ms(origin, server) + self.bias_ms.get(server, 0.0)

    def nearest_first(self, origin: str, regions: frozenset[str]) -> tuple[str, ...]:
        """`regions` by distance from `origin`, names breaking ties, so every process orders them alike."""
        measured = self.rtt_ms.get(origin)
        plain = not self.bias_ms and origin not in self.spillover_orders
        if measured is not None and plain and regions <= measured.keys():
            # The same answer, without a call for each region: agents ask for it with every request that may leave.
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
