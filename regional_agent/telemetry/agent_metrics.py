"""The Prometheus metrics of an agent: names, labels, and the methods that update them.

Three rules bound cost and cardinality. The request path does one dict look-up and adds to plain numbers. Gauges are
read from the current state at a scrape, never incremented and decremented, so they cannot drift. Only names that the
policy declares become labels; all other names are counted under `other`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from adapters.files.certificate_expiry import EXPIRY_HELP, CertificateExpiry
from adapters.loop_delay import LoopDelay
from penstock.accounts.outcome_rules import Outcome
from penstock.meters.ended_requests import EndedRequests, Series
from penstock.meters.stream_gaps import SampledStreams
from penstock.meters.usage_meter import UsageMeter
from penstock.policy.policy import Policy
from penstock.retries.retry_rules import RetryReason
from penstock.routing.reasons import Reason
from regional_agent.coalescing.coalescing_metrics import CoalescingMetrics
from regional_agent.dns.dns_metrics import DnsMetrics
from regional_agent.jobs.job_metrics import JobMetrics
from regional_agent.on_demand.on_demand_metrics import OnDemandMetrics
from regional_agent.result_cache.result_cache_metrics import ResultCacheMetrics
from regional_agent.telemetry.agent_state import AgentState
from regional_agent.telemetry.by_endpoint.endpoint_metrics import EndpointMetrics
from regional_agent.telemetry.by_endpoint.endpoint_series import MAX_ENDPOINT_SERIES
from regional_agent.telemetry.connection_metrics import ConnectionMetrics
from regional_agent.telemetry.label_values import ContinuationOutcome, QueueOutcome, RequestKind
from regional_agent.telemetry.metric_primitives import DurationHistograms, RequestCounter, gauge_family
from regional_agent.telemetry.queue_metrics import QueueMetrics
from regional_agent.telemetry.state_metrics import StateMetrics
from regional_agent.telemetry.usage_counters import usage_counters
from regional_agent.tenants.budget_metrics import BudgetMetrics
from regional_agent.versions.quality_metrics import QualityMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of the result of `render`: the Prometheus text format."""

OTHER = "other"
"""The label of a model or region that the policy does not declare, so that clients cannot create series."""

NO_SERVER = "none"
"""The `server` label of a request that was rejected before a region was chosen."""

REQUEST_LABELS = ("model", "server", "kind", "outcome")

TTFT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds in seconds of the time to first byte; dense in the range of usual service objectives."""

REQUEST_BUCKETS_S = (
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.0,
    4.0,
    7.0,
    10.0,
    15.0,
    25.0,
    40.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
"""Upper bounds in seconds of the request duration, up to the longest generation that a deadline allows."""

WAIT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 7.0, 10.0, 15.0, 20.0)
"""Upper bounds in seconds of the time in the admission queue, up to the longest possible time."""

TOKEN_BUCKETS_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds in seconds of the time of one token."""

DECISION_BUCKETS_S = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.05)
"""Upper bounds in seconds of a routing decision."""

MAX_TENANT_SERIES = 20
"""Default number of tenants with separate series."""


class AgentMetrics:
    """The metrics of one agent, on a separate registry, so that one process can run several agents.

    Not thread-safe: set and render from the agent's event loop.
    """

    def __init__(
        self, max_tenant_series: int = MAX_TENANT_SERIES, max_endpoint_series: int = MAX_ENDPOINT_SERIES
    ) -> None:
        """Create the metrics at zero.

        Args:
            max_tenant_series: number of tenants of the policy with separate series: those with the highest priority,
                then by name; and number of other tenants with them: those with the most use. The rest share the label
                `other`.
            max_endpoint_series: number of endpoints with separate series.
        """
        self.registry = CollectorRegistry()
        self._max_tenant_series = max_tenant_series
        self._models: frozenset[str] = frozenset()
        self._regions: frozenset[str] = frozenset()
        self.ended = EndedRequests(self._series)
        """Counts requests that ended."""

        self._requests = RequestCounter(
            "penstock_agent_requests",
            "Completed requests, by model, serving region, kind of routing, and outcome.",
            REQUEST_LABELS,
        )
        self._refusals = self._counter("refusals", "Rejected requests, by reason.", ("reason",))
        self._retries = self._counter("retries", "Retries of requests that had not started, by reason.", ("reason",))
        self._continuations = self._counter(
            "stream_continuations",
            "Failed streams of models with `continue_streams`, by outcome.",
            ("outcome",),
        )
        self._forwarded_residency_refusals = self._counter(
            "forwarded_residency_refusals",
            "Forwarded requests rejected because their residency class forbids this region; normally 0.",
        )
        self._revocations = self._counter(
            "revocations",
            "Open requests ended because a new policy no longer permits them, by state of the request and reason.",
            ("state", "reason"),
        )
        self._unreported_ends = self._counter(
            "unreported_ends",
            "Responses through Envoy that ended early, and whose cause its access log did not state: they count as"
            " client_left.",
        )
        self._ttft = DurationHistograms(
            "penstock_agent_ttft_seconds",
            "Seconds from a client's request to the first byte of the response body; measured at the origin only.",
            TTFT_BUCKETS_S,
        )
        self._request_duration = DurationHistograms(
            "penstock_agent_request_duration_seconds",
            "Seconds from a client's request to the end of the response or the deadline; measured at the origin only.",
            REQUEST_BUCKETS_S,
        )
        self._queue_wait = DurationHistograms(
            "penstock_agent_queue_wait_seconds",
            "Seconds that a queued request spent in the admission queue, by model and outcome.",
            WAIT_BUCKETS_S,
            "outcome",
        )
        self.queues = QueueMetrics(self.registry)
        self.dns = DnsMetrics(self.registry)
        self.endpoints = EndpointMetrics(self.registry, max_endpoint_series)
        self.connections = ConnectionMetrics(self.registry)
        self.budgets = BudgetMetrics(self.registry)
        self.jobs = JobMetrics(self.registry)
        self.on_demand = OnDemandMetrics(self.registry, self.endpoints.series)
        self.coalescing = CoalescingMetrics(self.registry)
        self.quality = QualityMetrics(self.registry)
        self.result_cache = ResultCacheMetrics(self.registry)
        self.loop_delay = LoopDelay(self.registry, "penstock_agent")
        self._state = StateMetrics(self.registry, self._model_label)
        self._access_lines_dropped = self._counter(
            "access_log_lines_dropped", "Access log lines that were dropped because writing failed or was too slow."
        )
        self._dropped_so_far = 0
        self._spans_dropped = self._counter(
            "trace_spans_dropped",
            "Spans that were dropped because the collector rejected them, or was away or slow for too long.",
        )
        self.certificates = CertificateExpiry({})
        """The certificates in use."""
        self.registry.register(
            gauge_family(
                "penstock_agent_certificate_expiry_timestamp_seconds",
                EXPIRY_HELP,
                ("certificate",),
                lambda: [((use,), expires_at) for use, expires_at in self.certificates.by_use().items()],
            )
        )
        self._decision = Histogram(
            "penstock_agent_decision_seconds",
            "Seconds from a parsed request to the selection of its target or its place in the queue, of one request in"
            " 32.",
            buckets=DECISION_BUCKETS_S,
            registry=self.registry,
        )
        self._gaps = DurationHistograms(
            "penstock_agent_inter_token_latency_seconds",
            "Seconds between two writes of a streamed response to its client, of one response in 16; measured at the"
            " origin only. Engines send one token a write, or a few.",
            TOKEN_BUCKETS_S,
        )
        self.streams = SampledStreams(lambda model: self._gaps.of(self._model_label(model)))
        """The streamed responses whose gaps are measured."""
        self._per_token = DurationHistograms(
            "penstock_agent_time_per_output_token_seconds",
            "Seconds per generated token after the first, of streamed responses that state their usage; measured in the"
            " serving region.",
            TOKEN_BUCKETS_S,
        )
        self.usage = UsageMeter(self._per_token.of, max_tenant_series)
        measured = (
            self._requests,
            self._ttft,
            self._request_duration,
            self._queue_wait,
            self._gaps,
            self._per_token,
            *usage_counters(self.usage),
        )
        for collector in measured:
            self.registry.register(collector)
        for reason in Reason:
            self._refusals.labels(reason.value)
        for retry_reason in RetryReason:
            self._retries.labels(retry_reason.value)
        for outcome_of_stream in ContinuationOutcome:
            self._continuations.labels(outcome_of_stream.value)

    def use_names(self, models: Collection[str], regions: Collection[str]) -> None:
        """Use the names of a newly accepted policy as labels, and drop the series of removed names."""
        self._models, self._regions = frozenset(models), frozenset(regions)
        self.ended.known.clear()
        kept_models, kept_servers = self._models | {OTHER}, self._regions | {OTHER, NO_SERVER}
        self._requests.keep("model", kept_models)
        self._requests.keep("server", kept_servers)
        self._ttft.keep(kept_models)
        self._request_duration.keep(kept_models)
        self._queue_wait.keep(kept_models)
        # The series that alerts use start at zero, because Prometheus ignores the increase by which a series appears.
        for model in self._models:
            refused = (model, NO_SERVER, RequestKind.HOME.value, Outcome.REFUSED.value)
            self._requests.series.setdefault(refused, Series(self._ttft.of(model), None))
            for outcome in QueueOutcome:
                self._queue_wait.of(model, outcome.value)
        self._gaps.keep(kept_models)
        self._per_token.keep(kept_models)

    def use_policy(self, policy: Policy) -> None:
        """Use the names of a newly accepted policy as labels."""
        self.use_names(policy.models, policy.regions)
        ranked = sorted(policy.tenants.values(), key=lambda tenant: (-tenant.priority, tenant.name))
        self.usage.use_names(
            [tenant.name for tenant in ranked[: self._max_tenant_series]],
            {model.name: model.scaling.gpus_per_endpoint for model in policy.models.values()},
        )

    def use_state(self, state: AgentState, in_flight: Mapping[str, int]) -> None:
        """Export the state of the agent, before a scrape.

        Args:
            in_flight: requests in progress in this agent, by model.
        """
        self._state.state, self._state.in_flight = state, in_flight
        self.endpoints.use(state.endpoints.every())
        self.budgets.update(state.budgets, time.monotonic())

    def decided(self, seconds: float) -> None:
        """Record the time in seconds of one routing decision."""
        self._decision.observe(seconds)

    def waited(self, model: str, waited_s: float, outcome: QueueOutcome, priority: int = 0) -> None:
        """Record the time in seconds that one request spent in the admission queue; called once per wait."""
        self.queues.waited(priority, waited_s)
        self._queue_wait.of(self._model_label(model), outcome.value).observe(waited_s)

    def refused(self, reason: Reason) -> None:
        """Count one rejected request."""
        self._refusals.labels(reason.value).inc()

    def retried(self, reason: RetryReason) -> None:
        """Count one retry of a request that had not started."""
        self._retries.labels(reason.value).inc()

    def stream_failed(self, outcome: ContinuationOutcome) -> None:
        """Count one failed stream of a model with `continue_streams`."""
        self._continuations.labels(outcome.value).inc()

    def revoked(self, state: str, reason: str) -> None:
        """Count one open request that a new policy ended; `state` is the state of its exchange, `reason` a Reason."""
        self._revocations.labels(state, reason).inc()

    def end_not_reported(self) -> None:
        """Count one early end whose cause Envoy's access log did not state."""
        self._unreported_ends.inc()

    def forwarded_residency_refused(self) -> None:
        """Count one forwarded request whose residency class does not permit this region."""
        self._forwarded_residency_refusals.inc()

    def access_lines_dropped(self, so_far: int) -> None:
        """Update the counter of unwritten access log lines; `so_far` is their number since the start."""
        self._access_lines_dropped.inc(so_far - self._dropped_so_far)
        self._dropped_so_far = so_far

    def spans_dropped(self, number: int) -> None:
        """Count spans that were dropped."""
        self._spans_dropped.inc(number)

    def render(self) -> bytes:
        """Return all metrics in the text format of CONTENT_TYPE. Call `use_state` before."""
        return generate_latest(self.registry)

    def _series(self, model: str, server: str, kind: str, outcome: str) -> Series:
        """Find or create the series of a combination; cache it only if the policy bounds the number of combinations.

        Total times are recorded only for `ok`, `cached` and `timed_out` of clients' requests, since cancelled and
        failed requests would distort the response time.

        Raises:
            ValueError: `kind` or `outcome` is not a member of its enumeration.
        """
        kind, outcome = RequestKind(kind), Outcome(outcome)
        label = self._model_label(model)
        server_label = server if server in self._regions or server == NO_SERVER else OTHER
        labels = (label, server_label, kind.value, outcome.value)
        series = self._requests.series.get(labels)
        if series is None:
            from_client = kind is not RequestKind.FORWARDED
            measured = from_client and outcome in (Outcome.OK, Outcome.CACHED, Outcome.TIMED_OUT)
            series = self._requests.series[labels] = Series(
                self._ttft.of(label) if from_client else None, self._request_duration.of(label) if measured else None
            )
        if label == model and server_label == server:
            self.ended.known[model, server, kind, outcome] = series
        return series

    def _model_label(self, model: str) -> str:
        return model if model in self._models else OTHER

    def _counter(self, name: str, help_text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"penstock_agent_{name}", help_text, labels, registry=self.registry)
