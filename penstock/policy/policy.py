"""The compiled policy that control planes and agents use, and the digest that identifies it."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from typing import Any, Final

import msgspec

from penstock.policy.geography import estimated_rtt_ms, great_circle_km, lifted_ms
from penstock.policy.service_objective import ServiceObjective
from penstock.policy.time_zone import TimeZone
from penstock.routes.presets.openai import OPENAI_ROUTES
from penstock.routes.route import Route, Timeouts
from penstock.routes.route_table import RouteTable

BYTES_PER_GB = 1e9
MS_PER_S = 1000.0
SECONDS_PER_HOUR = 3600.0


class PolicyStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all parts of a policy. Unknown fields are rejected, because an unknown field could restrict the known
    ones."""


class Region(PolicyStruct, frozen=True):
    """One site that serves requests."""

    name: str
    country: str
    """ISO 3166-1 alpha-2 code of the country of the hardware."""
    latitude_deg: float
    longitude_deg: float
    jurisdictions: frozenset[str] = frozenset()
    """Jurisdictions of the site: its country and the blocs of the country, such as {"DE", "EU", "EEA"}."""
    cost_per_gpu_hour: float = 1.0
    """Relative price of a GPU hour in this region, in the currency of the bundle."""
    city: str = ""
    egress_cost_per_gb: float = 0.0
    """Price of 10^9 bytes that leave this region for another one, in the currency of the bundle."""
    bias_ms: float = 0.0
    """Distance (ms) that is added to the real distance of this region for every origin and client, including the region
    itself."""
    spillover_order: tuple[str, ...] = ()
    """Regions that receive this region's overflow first, in order and regardless of distance; the others follow."""


class CostUnit(StrEnum):
    """Unit of the cost of a model's requests."""

    TOKEN = "token"
    """Language models: prompt tokens as input, generated tokens as output."""
    MEGAPIXEL_STEP = "megapixel_step"
    """Image models: 10^6 pixels of each image, times denoising steps."""
    AUDIO_SECOND = "audio_second"
    """Speech models: seconds of generated speech."""
    TENSOR_ELEMENT = "tensor_element"
    """Models behind the Open Inference Protocol: elements of all input tensors."""
    REQUEST = "request"
    """Anything else: every request costs the same."""


class Cost(PolicyStruct, frozen=True):
    """The cost of a model's requests: time on the reference accelerator (H100, `penstock.policy.accelerators`) without
    other requests.

    The cost is a prior: the speed of each endpoint and the lengths of prompts and answers are learned from traffic.
    """

    unit: CostUnit = CostUnit.REQUEST
    input_unit_s: float = 0.0
    """Time (s) of one unit of input: a prompt token that is not cached. 0 for units without input."""
    output_unit_s: float = 5.0
    """Time (s) of one unit of output: a generated token, a megapixel step, a second of speech, a tensor element, a
    request."""


class Scaling(PolicyStruct, frozen=True):
    """Parameters of the capacity recommendations for a model."""

    cold_start_s: float = 300.0
    """Time (s) from the order of an endpoint until it serves at full speed."""
    gpus_per_endpoint: float = 1.0
    """GPUs of one endpoint."""
    slots_per_endpoint: int = 8
    """Concurrent requests of one endpoint, used in regions that report none."""
    min_endpoints: int = 0
    """Minimum number of endpoints in each region that serves the model."""
    max_endpoints: int = 10_000
    """Maximum number of endpoints in each region."""


class QueueOrder(StrEnum):
    """Order in which the waiting requests of a tenant are served."""

    SHORTEST = "shortest"
    DEADLINE = "deadline"
    ARRIVAL = "arrival"


DEFAULT_MAX_WAIT_S: Final = 20.0
"""Maximum wait (s) of a request, after which the client or its load balancer has a better choice."""

WAIT_SERVICE_TIMES: Final = 2.0
"""The default maximum wait is at least this number of service times: a request may wait for the one before it."""


def default_max_wait_s(expected_service_s: float) -> float:
    """Maximum wait (s) of requests for a model whose document sets none, by its expected service time (s)."""
    return max(DEFAULT_MAX_WAIT_S, WAIT_SERVICE_TIMES * expected_service_s)


class Queueing(PolicyStruct, frozen=True):
    """Service discipline of the admission queues of a model."""

    order: QueueOrder = QueueOrder.SHORTEST
    max_overtaken_s: float = 10.0
    """Arrivals later than this time (s) after a request do not overtake it, whatever its work."""
    max_wait_s: float = DEFAULT_MAX_WAIT_S
    """Maximum wait (s) of a request, in all regions together."""
    max_length: int = 4096
    """Maximum number of requests that wait at one agent."""


class Model(PolicyStruct, frozen=True):
    """A model that clients may request by name."""

    name: str
    expected_service_s: float = 5.0
    """Time (s) for which one request holds its slot; used until completions have been measured."""
    request_bytes: float = 4_000.0
    """Mean size (bytes) of a request body, which is egress of the origin if another region serves the request."""
    response_bytes: float = 4_000.0
    """Mean size (bytes) of a response body, which is egress of the serving region."""
    cost: Cost = Cost()
    """Cost of its requests at an endpoint."""
    fallback: str | None = None
    """Lighter model that serves the requests if no permitted region has this model, or all regions that have it are
    full; None refuses the requests."""
    service_objective: ServiceObjective | None = None
    """Objective of the time to first byte; None for no objective."""
    timeouts: Timeouts = Timeouts()
    """Time limits of requests for the model; a limit that is set here takes precedence over the limit of the route."""
    continue_streams: bool = False
    """Whether another endpoint continues a streamed answer whose endpoint or region failed."""
    adapters: tuple[str, ...] = ()
    """Patterns of the names of its adapters, which `penstock.policy.adapter_patterns` matches."""
    scaling: Scaling = Scaling()
    queueing: Queueing = Queueing()
    """Service discipline of its admission queues."""


class Version(PolicyStruct, frozen=True):
    """A model that serves requests for a versioned name."""

    model: str
    percent: float
    """Share (0-100) of the requests for the name that the model serves."""


class ModelVersions(PolicyStruct, frozen=True):
    """A name that clients request, and the models that serve it."""

    name: str
    versions: tuple[Version, ...]
    """Versions in the order in which they occupy the scale, see `penstock.policy.model_versions`."""


class Quota(PolicyStruct, frozen=True):
    """Limits on a tenant's requests in each entry region."""

    requests_per_s: float | None
    """Maximum rate of new requests, per second; None for no limit."""
    burst_requests: int
    """Maximum burst of new requests after a pause."""
    concurrent: int | None
    """Maximum number of concurrent requests; None for no limit."""


class Tenant(PolicyStruct, frozen=True):
    """An owner of requests."""

    name: str
    data_class: str
    """Name of the kind of data in its requests, which residency rules match."""
    key_digests: tuple[str, ...] = ()
    """SHA-256 of each API key, lower-case hex; the keys themselves are not stored."""
    priority: int = 0
    """Waiting requests of higher priority are served first."""
    quota: Quota | None = None
    """Limits on the tenant's requests; None for no limit."""


class ResidencyRule(PolicyStruct, frozen=True):
    """Restricts the regions of matching requests. An empty matcher matches all requests; deny overrides allow."""

    name: str
    tenants: frozenset[str] = frozenset()
    data_classes: frozenset[str] = frozenset()
    client_countries: frozenset[str] = frozenset()
    """ISO 3166-1 alpha-2. A rule with locations *governs*: requests from an unknown location are refused."""
    client_subdivisions: frozenset[str] = frozenset()
    """ISO 3166-2, first level, such as "US-CA"; matches in the same way as `client_countries`. It
    also governs: requests from that country are refused if the subdivision is unknown."""
    allow: frozenset[str] | None = None
    """Names of the regions that may process the request; None for no restriction."""
    deny: frozenset[str] = frozenset()
    """Names of the regions that may not process it, regardless of other rules."""
    source: str = ""
    """File and line of the rule."""


class AcceptedLoss(PolicyStruct, frozen=True):
    """A residency class whose loss is accepted if its regions fail. `policy verify` rejects losses that are not
    accepted."""

    name: str
    regions: frozenset[str]
    """All the regions that the class permits."""
    because: str
    """The reason, for operators."""


class EntryMap(PolicyStruct, frozen=True):
    """Preferred entry regions for clients in some locations, before the nearest ones."""

    name: str
    client_countries: frozenset[str]
    """ISO 3166-1 alpha-2."""
    client_subdivisions: frozenset[str]
    """ISO 3166-2, first level, such as "US-CA"; a map of a client's subdivision precedes one of its country."""
    regions: tuple[str, ...]
    """Entry regions, best first. Regions that residency forbids are skipped; the other permitted regions follow."""


class Spillover(PolicyStruct, frozen=True):
    """Conditions for overflow of a healthy region."""

    target_utilisation: float = 0.8
    """Share of a pool's slots (0-1] that the plan fills before it sends more demand elsewhere."""
    margin_s: float = 0.25
    """Minimum gain (s), after the round trip, of a request's start time in another region for spillover."""
    credit_ttl_s: float = 0.75
    """Lifetime (s) of a spill credit."""
    step_per_s: float = 0.25
    """Maximum share (0-1] of an origin's demand for a model that plans move per second, except after failures."""


class SpilloverLimit(PolicyStruct, frozen=True):
    """Limits the cost and the share of spillover while the origin can serve; an empty matcher matches all demand."""

    name: str
    origins: frozenset[str] = frozenset()
    """Names of origin regions."""
    models: frozenset[str] = frozenset()
    max_cost_per_gpu_hour: float | None = None
    """Regions with a higher price are used only if no other region can serve; None for no limit."""
    max_share: float | None = None
    """Maximum share (0-1) of a class's demand that other regions serve; None for no limit."""
    source: str = ""
    """File and line of the limit."""


class Failover(PolicyStruct, frozen=True):
    """Failure detection of regions, and their return."""

    probe_interval_s: float = 0.25
    """Time (s) between two probes of a peer region."""
    probe_timeout_s: float = 0.4
    """Timeout (s) of a probe, in addition to the usual round trip between the two regions."""
    unhealthy_threshold: int = 2
    """Consecutive misses after which a region is failed."""
    healthy_threshold: int = 3
    """Consecutive good probes after which a failed region may return."""
    hold_down_s: float = 5.0
    """Minimum time (s) for which a region stays failed, so that a flapping region does not move traffic repeatedly."""
    failback_ramp_s: float = 60.0
    """Time (s) over which a recovered region's share grows from zero to its full value."""


class PlannerKind(StrEnum):
    """The planner, by name; `penstock.planning.registry` contains the implementations.

    A name always identifies the same planner: a changed planner gets a new name, so that a new release does not change
    plans.
    """

    LINEAR_PROGRAM = "linear_program"
    """Minimises the cost of all demand together, with reserve for the loss of a region."""
    WATERFALL = "waterfall"
    """Fills home to its target, then the next nearest permitted region; ignores costs and keeps no reserve."""


class Objective(PolicyStruct, frozen=True):
    """The planner and its objective, in milliseconds of latency, and the reserve.

    One millisecond of round trip costs one millisecond. Serving demand takes precedence over the reserve, and the
    reserve over all other costs, whatever the weights.
    """

    planner: PlannerKind = PlannerKind.LINEAR_PROGRAM
    """The planner; the other fields are its parameters, and some planners ignore them."""
    latency_ms_per_cost: float = 20_000.0
    """Additional latency (ms) that is worth one unit of the bundle's currency in GPU time and egress."""
    queueing_weight: float = 0.1
    """Milliseconds of round trip that one millisecond of expected queueing is worth: below one, since waiting requests
    may still use spill credits. With a higher value, demand leaves a pool earlier as it fills."""
    change_penalty_ms: float = 5.0
    """Minimum gain (ms) for which demand moves to another region; a tenth of it for a move home."""
    survive_one_loss: bool = True
    """Whether plans keep capacity free, within residency, for the loss of any one region (N-1)."""
    forecast_horizon_s: float = 10.0
    """Horizon (s) of the demand forecast, which is used if it exceeds the measured demand."""


class GuardRails(PolicyStruct, frozen=True):
    """Limits of overrides that operators set without `--force`."""

    max_withdrawn_share: float = 0.5
    """Maximum share (0-1) of the fleet's capacity for one model that overrides may withdraw together."""


class Recurrence(StrEnum):
    """Recurrence of a maintenance window or a drill, in the local time of its time zone."""

    NEVER = "never"
    DAILY = "daily"
    WEEKLY = "weekly"


class MaintenanceWindow(PolicyStruct, frozen=True):
    """A period for which regions are drained for maintenance."""

    name: str
    regions: frozenset[str]
    starts_at: float
    """Unix time (s) of its first beginning, at which the drain must be complete."""
    duration_s: float
    """Duration (s) of each occurrence."""
    recurrence: Recurrence = Recurrence.NEVER
    lead_s: float = 600.0
    """Time (s) before each beginning at which the drain begins."""
    source: str = ""
    """File and line of the window."""
    time_zone: str | None = None
    """Time zone of the recurrence, an IANA name that `Policy.time_zones` contains; None for UTC."""


class Exercise(StrEnum):
    """The exercise of a drill."""

    EVACUATE_REGION = "evacuate_region"
    """A region is drained until it serves no requests, stays empty for a while, and then receives traffic again."""
    CONTROL_PLANE_FAILOVER = "control_plane_failover"
    """The leader steps down, and another control plane takes over."""


class DrillSchedule(PolicyStruct, frozen=True):
    """A drill that the leader starts automatically."""

    name: str
    exercise: Exercise
    starts_at: float
    """Unix time (s) of its first beginning."""
    region: str | None = None
    """The region that is evacuated; None for a failover of the control planes."""
    recurrence: Recurrence = Recurrence.NEVER
    hold_s: float = 60.0
    """Time (s) for which an evacuated region stays empty."""
    max_burn_rate: float = 2.0
    """Maximum burn rate of a model's error budget since the beginning of the drill. The drill is aborted if the rate is
    higher and the objective is significantly missed."""
    source: str = ""
    """File and line of the drill."""
    time_zone: str | None = None
    """Time zone of the recurrence, an IANA name that `Policy.time_zones` contains; None for UTC."""


class RolloutRules(PolicyStruct, frozen=True):
    """Stages and limits of the rollout of a policy change."""

    shadow_s: float = 10.0
    """Duration (s) of the shadow phase, which compares plans under both policies; 0 skips it."""
    max_moved_share: float = 0.25
    """Maximum share (0-1) of all demand that changes its region; above it the rollout waits for an operator."""
    canary_regions: tuple[str, ...] = ()
    """Regions that receive the new policy first; empty to skip the canary phase."""
    canary_s: float = 300.0
    """Minimum duration (s) of the canary phase."""
    acknowledge_timeout_s: float = 15.0
    """Maximum time (s) for canary agents to accept the policy; after that it is rolled back."""
    min_requests: int = 100
    """Minimum number of finished canary requests for a comparison, and for the end of the canary phase."""
    max_failure_increase: float = 0.02
    """Maximum increase (0-1) of the share of requests that fail or are refused."""
    max_latency_factor: float = 1.5
    """Maximum ratio of the mean time to first byte to that of the baseline."""
    watch_s: float = 600.0
    """Time (s) for which the same limits apply after every region has received the policy."""


class Policy(PolicyStruct, frozen=True, dict=True):
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
    def bias_ms(self) -> dict[str, float]:
        """Bias (ms) of every region that has one."""
        return {name: region.bias_ms for name, region in self.regions.items() if region.bias_ms}

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
