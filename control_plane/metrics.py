"""The Prometheus metrics of a control plane, and their labels.

Only the leader exports fleet metrics (regions, pools, demand, arcs): stepping down clears them, so that a sum over all
control planes counts no value twice and a former leader exports no outdated values.
"""

from __future__ import annotations

import threading
from collections import Counter as Tally
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from adapters.files.certificate_expiry import EXPIRY_HELP, CertificateExpiry
from control_plane.deferred_updates import DeferredUpdates
from control_plane.planning.capacity_metrics import CapacityMetrics, CostMetrics, replace_series
from control_plane.planning.internal_metrics import InternalMetrics
from control_plane.tenants.budget_metrics import BudgetMetrics
from penstock.fleet.capacity import Shortfall
from penstock.health.region_health import RegionState
from penstock.planning.plan import RegionPlan
from penstock.rollout.policy_rollout import Phase

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of `render`: the Prometheus text format."""

OTHER = "other"
"""The label of regions that the policy does not declare, which bounds the number of series."""

ALL_MODELS = "*"
"""Value of the label `model` for a fallback of all models."""

PLAN_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
"""Upper bounds (s) of the buckets of planning durations; a plan is due every 0.5 s (`planning_loop.TICK_S`)."""


class PublishOutcome(StrEnum):
    """The outcome of an attempt to publish a plan."""

    PUBLISHED = "published"
    UNCHANGED = "unchanged"
    """The plan equals the published plan, so no slice was written."""
    FENCED = "fenced"
    """Another leader has a newer fencing epoch: the write had no effect, and this leader steps down."""
    CONFLICT = "conflict"
    """Another writer changed a key; the leader reads the slices again before the next plan."""
    STORE_UNAVAILABLE = "store_unavailable"


class ReportOutcome(StrEnum):
    """The outcome of an agent's report."""

    ACCEPTED = "accepted"
    STALE = "stale"
    """The report is from an earlier epoch of the agent, or not newer than a report that was accepted already."""
    BAD_SIGNATURE = "bad_signature"
    MALFORMED = "malformed"
    UNKNOWN_REGION = "unknown_region"
    NOT_LEADER = "not_leader"


class WebhookOutcome(StrEnum):
    """The outcome of a webhook delivery."""

    ACCEPTED = "accepted"
    """The signature is valid: the policy source is polled at once."""
    BAD_SIGNATURE = "bad_signature"
    TOO_LARGE = "too_large"
    """The delivery exceeds the size limit or the time limit of a body."""
    TOO_MANY = "too_many"
    """Rejected by the rate limit of all valid deliveries, or unread by that of invalid deliveries from one address."""


class RegionGauges(msgspec.Struct, frozen=True):
    """The leader's gauges of one region."""

    state: RegionState
    report_age_s: float
    """Age (s) of the newest report of the region's agents; inf before the first."""
    refusing: int = 0
    """Number of the region's agents that reject the latest published configuration."""


class PoolGauges(msgspec.Struct, frozen=True):
    """The leader's gauges of one region's endpoints for one model."""

    slots: int
    in_flight: int


class ControlPlaneMetrics:
    """One control plane's metrics, on a separate registry so that several instances fit in one process.

    The gauges of the fleet are set when they are read: `updates.put`, and then `render` in a thread.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.updates = DeferredUpdates()
        """Functions that set the gauges of the fleet before the metrics are read next: they call `show_*` methods with
        values that do not change, and may run in another thread."""
        self.registry.register(self.updates)
        self._rendering = threading.Lock()
        self.internal = InternalMetrics(self.registry)
        self.budgets = BudgetMetrics(self.registry)
        self.cost = CostMetrics(self.registry)
        self.capacity = CapacityMetrics(self.registry)
        self._certificate_expiry = self._gauge("certificate_expiry_timestamp_seconds", EXPIRY_HELP, ("certificate",))
        self.certificates = CertificateExpiry({})
        """The certificates in use."""
        self._leader = self._gauge("leader", "1 while this control plane is the leader, else 0.")
        self._fencing_epoch = self._gauge(
            "fencing_epoch", "Fencing epoch of this leader; 0 on a control plane that is not the leader."
        )
        self._plan_generation = self._gauge(
            "plan_generation", "Generation of the newest plan that this leader published; 0 before the first."
        )
        self._plan_seconds = Histogram(
            "penstock_planning_duration_seconds",
            "Seconds to compute a plan from a snapshot, without publishing.",
            buckets=PLAN_BUCKETS_S,
            registry=self.registry,
        )
        self._planner_fallbacks = self._counter(
            "planner_fallbacks",
            "Plans in which the waterfall planner replaced a solver that failed or timed out, by model;"
            " model `*` if it replaced the solver for all models.",
            ("model",),
        )
        self._publish = self._counter("plan_publishes", "Attempts to publish a plan, by outcome.", ("outcome",))
        self._reports = self._counter("reports", "Agents' reports, by region and outcome.", ("region", "outcome"))
        self._webhooks = self._counter(
            "policy_webhooks",
            "Webhook deliveries from the host of the policy repository, by outcome.",
            ("outcome",),
        )
        self._report_age = self._gauge(
            "report_age_seconds",
            "Seconds since the newest report of any agent of the region; +Inf before the first.",
            ("region",),
        )
        self._refusing = self._gauge(
            "agents_rejecting_config",
            "Agents of the region that reject the newest published plan or policy and keep an older one.",
            ("region",),
        )
        self._region_state = self._gauge(
            "region_state",
            "1 for the health state that the leader assigns to a region, 0 for the others.",
            ("region", "state"),
        )
        self._region_slots = self._gauge(
            "region_slots",
            "Requests that the region's ready endpoints for the model can run concurrently. Slots that models share are"
            " in the value of each of them, so a sum over models counts them several times.",
            ("region", "model"),
        )
        self._region_in_flight = self._gauge(
            "region_in_flight",
            "Requests running or queued on the region's endpoints for the model, including those of models that share"
            " the endpoints.",
            ("region", "model"),
        )
        self._overrides = self._gauge(
            "overrides", "Active overrides, by kind and region; the region of a freeze is empty.", ("kind", "region")
        )
        self._skew = self._gauge(
            "region_version_skew",
            "1 while the endpoints of the region serve another revision of the model than those of most regions.",
            ("region", "model"),
        )
        self._demand = self._gauge(
            "demand_requests_per_second",
            "Requests per second that clients send to an origin region, before routing.",
            ("origin", "model"),
        )
        self._capacity_shortfall = self._gauge(
            "capacity_shortfall_slots",
            "Slots that a model lacks and that could be added in this region: `current`, to serve demand within the "
            "utilisation target, or `region_loss`, to serve it after the worst loss of one region.",
            ("region", "model", "scenario"),
        )
        self._issuer_keys_age = self._gauge(
            "issuer_keys_age_seconds",
            "Seconds since the keys of an identity provider were fetched last; only at the leader.",
            ("issuer",),
        )
        self._arc_share = self._gauge(
            "arc_share",
            "Share (0-1) of an origin's demand for a model and residency class that the plan assigns to a server.",
            ("origin", "server", "model", "residency"),
        )
        self._rollout_phase = self._gauge(
            "rollout_phase", "1 for the phase of the newest policy rollout, 0 for the others.", ("phase",)
        )
        self._model_rollout_wait = self._gauge(
            "model_rollout_wait_seconds",
            "Seconds for which the rollout of a version has waited beyond the least time of its present phase: for "
            "requests, slots, scores, or an operator. 0 in `done` and `rolled_back`.",
            ("name", "to", "phase"),
        )
        self._policy_info = self._gauge(
            "policy_info", "1 for the digest of the policy in force in most regions.", ("digest",)
        )
        self._policy_digest = ""
        self._planner_fallbacks.labels(ALL_MODELS)
        for outcome in PublishOutcome:
            self._publish.labels(outcome.value)
        for webhook_outcome in WebhookOutcome:
            self._webhooks.labels(webhook_outcome.value)

    def set_leadership(self, fencing_epoch: int | None) -> None:
        """Set the fencing epoch of this leader; None, for a control plane that does not lead, clears fleet metrics."""
        if fencing_epoch is not None:
            self.internal.leader_changes.inc()
        self._leader.set(fencing_epoch is not None)
        self._fencing_epoch.set(fencing_epoch or 0)
        if fencing_epoch is None:
            self.updates.replace("fleet", self._clear_fleet)

    def _clear_fleet(self) -> None:
        self._plan_generation.set(0)
        self.cost.clear()
        self.capacity.clear()
        for fleet in (
            self._report_age,
            self._refusing,
            self._region_state,
            self._region_slots,
            self._region_in_flight,
            self._overrides,
            self._rollout_phase,
            self._model_rollout_wait,
            self._skew,
            self._demand,
            self._arc_share,
            self._capacity_shortfall,
        ):
            fleet.clear()

    def planned(self, seconds: float, fallbacks: Collection[str]) -> None:
        """Count one plan, its duration (s), and the models that the fallback planner planned."""
        self._plan_seconds.observe(seconds)
        for model in fallbacks:
            self._planner_fallbacks.labels(model).inc()

    def published(self, outcome: PublishOutcome) -> None:
        """Count one attempt to publish a plan."""
        self._publish.labels(outcome.value).inc()

    def reported(self, region: str, outcome: ReportOutcome, known_regions: Collection[str]) -> None:
        """Count one report; a region outside `known_regions` is counted as `other`."""
        self._reports.labels(region if region in known_regions else OTHER, outcome.value).inc()

    def webhook(self, outcome: WebhookOutcome) -> None:
        """Count one delivery of a webhook."""
        self._webhooks.labels(outcome.value).inc()

    def show_rollout(self, phase: Phase) -> None:
        """Set the phase of the newest rollout."""
        for each in Phase:
            self._rollout_phase.labels(each.value).set(each is phase)

    def show_model_rollouts(self, waits_s: Mapping[tuple[str, str, str], float]) -> None:
        """Replace the waits (s) of the rollouts of versions, by name, new version and phase."""
        replace_series(self._model_rollout_wait, waits_s)

    def show_plan(self, plans: Sequence[RegionPlan]) -> None:
        """Replace the gauges of the plan by those of the plan in force, one slice per region."""
        self._plan_generation.set(max((plan.generation for plan in plans), default=0))
        shares = {
            (plan.region, arc.server, entry.model, entry.residency): arc.share
            for plan in plans
            for entry in plan.classes
            for arc in entry.arcs
        }
        replace_series(self._arc_share, shares)

    def show_regions(self, regions: Mapping[str, RegionGauges]) -> None:
        """Set every region's state, report age and rejections; regions that are absent are removed."""
        replace_series(self._report_age, {(region,): view.report_age_s for region, view in regions.items()})
        replace_series(self._refusing, {(region,): view.refusing for region, view in regions.items()})
        states = {(name, each.value): each is view.state for name, view in regions.items() for each in RegionState}
        replace_series(self._region_state, states)

    def show_pools(self, pools: Mapping[tuple[str, str], PoolGauges]) -> None:
        """Set slots and in-flight requests by (region, model); pairs that are absent are removed."""
        replace_series(self._region_slots, {key: pool.slots for key, pool in pools.items()})
        replace_series(self._region_in_flight, {key: pool.in_flight for key, pool in pools.items()})

    def show_skews(self, skews: Iterable[tuple[str, str]]) -> None:
        """Set the regions that serve another revision of a model than others; others are removed."""
        replace_series(self._skew, dict.fromkeys(skews, 1.0))

    def show_demand(self, requests_per_s: Mapping[tuple[str, str], float]) -> None:
        """Set offered requests per second by (origin, model); pairs that are absent are removed."""
        replace_series(self._demand, requests_per_s)

    def show_overrides(self, overrides: Iterable[tuple[str, str]]) -> None:
        """Set the number of active overrides by (kind, region); pairs that are absent are removed."""
        replace_series(self._overrides, Tally(overrides))

    def show_shortfalls(self, shortfalls: Sequence[Shortfall]) -> None:
        """Set the missing capacity by (region, model), the worst case of each; pairs that are absent are removed."""
        worst: dict[tuple[str, str, str], float] = {}
        for shortfall in shortfalls:
            scenario = "current" if shortfall.lost is None else "region_loss"
            for region in shortfall.regions:
                key = (region, shortfall.model, scenario)
                worst[key] = max(worst.get(key, 0.0), shortfall.slots)
        replace_series(self._capacity_shortfall, worst)

    def show_issuers(self, ages_s: Mapping[str, float]) -> None:
        """Set the age (s) of the keys of identity providers, by issuer; issuers that are absent are removed."""
        replace_series(self._issuer_keys_age, {(issuer,): age_s for issuer, age_s in ages_s.items()})

    def set_policy(self, digest: str) -> None:
        """Set the digest of the policy in force in most regions."""
        if digest != self._policy_digest:
            self._policy_digest = digest
            self._policy_info.clear()
            self._policy_info.labels(digest).set(1)

    def render(self) -> bytes:
        """Return all metrics in the text format of CONTENT_TYPE; takes some hundred milliseconds for a large fleet."""
        # Otherwise a second scrape could read gauges that the first is replacing.
        with self._rendering:
            for use, expires_at in self.certificates.by_use().items():
                self._certificate_expiry.labels(use).set(expires_at)
            return generate_latest(self.registry)

    def _counter(self, name: str, help_text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"penstock_{name}", help_text, labels, registry=self.registry)

    def _gauge(self, name: str, help_text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(f"penstock_{name}", help_text, labels, registry=self.registry)
