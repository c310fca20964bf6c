"""Metrics of batches and of the job store."""

from __future__ import annotations

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge

from penstock.jobs.batches.batch_state import BatchState, is_end
from penstock.jobs.batches.item_results import RequestEvent


class WebhookOutcome(StrEnum):
    """What is counted of webhooks."""

    DELIVERED = "delivered"
    FAILED = "failed"
    """An attempt was not accepted."""
    GIVEN_UP = "given_up"
    """No further attempt follows."""


class JobMetrics:
    """The metrics of one agent's jobs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Create the metrics at zero."""
        requests = Counter(
            "penstock_agent_batch_requests",
            "Requests of batches that completed or failed, and runs that a request repeated because its engine failed"
            " (ran_again) or because it was refused for lack of room or budget (waited).",
            ("event",),
            registry=registry,
        )
        self._requests = {event: requests.labels(event.value) for event in RequestEvent}
        ended = Counter("penstock_agent_batches_ended", "Batches that this agent ended.", ("state",), registry=registry)
        self._ended = {state: ended.labels(state.value) for state in BatchState if is_end(state)}
        self.running = Gauge(
            "penstock_agent_batches_running", "Batches that this agent runs under a claim.", registry=registry
        )
        self.claims_lost = Counter(
            "penstock_agent_batch_claims_lost",
            "Claims of jobs that another agent replaced while this agent ran the job.",
            registry=registry,
        )
        webhooks = Counter(
            "penstock_agent_webhooks",
            "Webhooks that receivers accepted (delivered), attempts that they did not accept (failed), and webhooks"
            " that are not repeated any more (given_up).",
            ("outcome",),
            registry=registry,
        )
        self._webhooks = {outcome: webhooks.labels(outcome.value) for outcome in WebhookOutcome}
        self.store_failures = Counter(
            "penstock_agent_job_store_failures", "Operations that the job store did not execute.", registry=registry
        )

    def request(self, event: RequestEvent) -> None:
        """Count an event of a request of a batch."""
        self._requests[event].inc()

    def webhook(self, outcome: WebhookOutcome) -> None:
        """Count a webhook, or an attempt."""
        self._webhooks[outcome].inc()

    def ended(self, state: BatchState) -> None:
        """Count a batch that has ended."""
        self._ended[state].inc()
