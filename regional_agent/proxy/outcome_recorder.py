"""Records finished requests in the metrics, in the region's report, and in the access log."""

from __future__ import annotations

import time
from typing import Final

import structlog

from penstock.accounts.account import Account
from penstock.accounts.outcome_rules import Outcome
from penstock.accounts.refusal_statuses import STATUS
from penstock.meters.objective_tally import Judgement
from penstock.meters.request_tally import RequestTally
from penstock.policy.residency import SHORTENED
from penstock.routing.reasons import Reason, Refusal
from penstock.routing.region_selection import NOTHING_TRIED
from regional_agent.http.messages import Request
from regional_agent.ledger.request_ledger import RequestLedger
from regional_agent.requests.request_context import RequestContext
from regional_agent.requests.tenant_authentication import credential_of
from regional_agent.routing.attempt import Attempt, LocalAttempt
from regional_agent.telemetry.access_line import AccessLine
from regional_agent.telemetry.access_log import AccessLog
from regional_agent.telemetry.agent_metrics import NO_SERVER, AgentMetrics
from regional_agent.telemetry.label_values import RequestKind
from regional_agent.telemetry.tracing.tracer import Tracer
from regional_agent.versions.version_tally import VersionTally

_OK: Final = Outcome.OK
_HOME: Final = RequestKind.HOME
_FORWARDED: Final = RequestKind.FORWARDED
_CACHED: Final = Outcome.CACHED
"""Aliases: in Python 3.11 reading an enum member from its class is a function call."""

log = structlog.get_logger()


class OutcomeRecorder:
    """Counts, reports, traces and logs the outcomes of requests."""

    def __init__(
        self,
        region: str,
        metrics: AgentMetrics,
        tally: RequestTally,
        access_log: AccessLog | None,
        tracer: Tracer | None = None,
        ledger: RequestLedger | None = None,
    ) -> None:
        """Record for the agent's `region`; `access_log` None logs no requests, `tracer` None exports no spans, `ledger`
        None keeps no records of use."""
        self.metrics = metrics
        self.wall_clock = time.time
        self._ended = metrics.ended
        self._usage = metrics.usage
        self._region = region
        self._tally = tally
        self._access_log = access_log
        self.tracer = tracer
        self.ledger = ledger
        self.versions = VersionTally()
        """The results of versions in a rollout."""

    def record(self, context: RequestContext, attempt: Attempt | None, account: Account) -> None:
        """Record a finished request. A failure is logged and not raised: the request itself has succeeded or failed.

        Args:
            attempt: the last attempt; None if there was no attempt.
        """
        outcome, now = account.outcome, account.ended_at
        try:
            server = NO_SERVER
            kind: str = _HOME if context.route_context is None else _FORWARDED
            if attempt is not None:
                server, kind = attempt.region, attempt.kind
            total_s = now - context.received_at
            first_byte_at = account.first_byte_at
            ttft_s = None if first_byte_at is None else first_byte_at - context.received_at
            judgement: Judgement | None = None
            if context.route_context is None:
                if context.is_batch:
                    self._tally.batch_ended(outcome)
                else:
                    streaming = context.estimate.streaming
                    judgement = self._tally.ended(context.model, outcome, ttft_s, total_s, streaming=streaming)
                if outcome is _OK:
                    self._tally.message_bytes.count(context.model, account.received_bytes, account.sent_bytes)
                if self.versions.rollouts:
                    self.versions.ended(context, account, total_s)
                if account.reason:
                    self._tally.refusals.add(context.facts.tenant, account.reason, self.wall_clock())
            if self.ledger is not None:
                self.ledger.ended(context, attempt, account, judgement)
            if isinstance(attempt, LocalAttempt) and context.occupies_slot:
                streamed_s = None
                if attempt.estimate.streaming and first_byte_at is not None:
                    streamed_s = now - first_byte_at
                held_s, streams = now - attempt.since, attempt.mean_streams()
                self._usage.ended(attempt.estimate, account, held_s, streams, streamed_s)
            self._ended.count(context.model, server, kind, outcome, ttft_s, total_s)
            if self.tracer is not None:
                self.tracer.ended(context, attempt, account, self.wall_clock())
            if self._access_log is None or not self._access_log.samples(outcome is _OK or outcome is _CACHED):
                return
            usage = account.usage
            location, work = context.facts.location, context.estimate.work
            permitted = context.residency.permitted
            self._access_log.add(
                # Positional, in the order of the fields: keyword arguments take fifteen times as long.
                AccessLine(
                    self.wall_clock(),
                    context.request_id,
                    context.facts.tenant,
                    context.model,
                    context.request.path.decode("latin-1"),
                    kind,
                    server,
                    attempt.endpoint_name if attempt is not None else "",
                    outcome,
                    account.status,
                    context.attempts,
                    account.received_bytes,
                    account.sent_bytes,
                    total_s * 1000,
                    None if ttft_s is None else ttft_s * 1000,
                    context.route_context.origin if context.route_context is not None else self._region,
                    location.country or "",
                    location.subdivision or "",
                    account.reason,
                    context.continuations,
                    work.prefill_s + work.decode_s,
                    context.policy_digest,
                    context.plan_generation,
                    permitted.name,
                    permitted.regions if permitted.name.startswith(SHORTENED) else None,
                    context.residency.rejected,
                    context.tried_regions if context.tried_regions is not NOTHING_TRIED else None,
                    context.queued_s * 1000 if context.queued_s > 0.0 else None,
                    None if usage is None else usage.prompt_tokens,
                    None if usage is None else usage.answer_tokens,
                    account.is_estimated,
                    context.principal.key,
                    0 if usage is None else usage.cached_tokens,
                    account.is_input_estimated,
                    account.is_output_estimated,
                )
            )
        except Exception:
            log.exception("recording a finished request failed", model=context.model, outcome=outcome)

    def attempt_lost(self, context: RequestContext, attempt: Attempt, now: float) -> None:
        """Count an attempt that does not serve its request, at `now` (s): its GPU time is overhead of the fleet."""
        if isinstance(attempt, LocalAttempt):
            if self.ledger is not None:
                self.ledger.lost(context, attempt, now)
            self._usage.overhead(attempt.estimate, now - attempt.since, attempt.mean_streams())

    def record_rejected(self, request: Request, refusal: Refusal, request_id: str) -> None:
        """Record a request that was refused before an exchange began."""
        self.metrics.refused(refusal.reason)
        if refusal.tenant and refusal.exceeded is None:
            self._tally.refusals.add(refusal.tenant, refusal.reason.value, self.wall_clock())
        if credential_of(request) is not None:
            self._tally.rejected(refusal)
        if self.tracer is not None:
            self.tracer.rejected(request, refusal, STATUS[refusal.reason], request_id, self.wall_clock())
        if self._access_log is not None and refusal.reason is not Reason.TOO_MANY_FAILURES:
            self._access_log.add(
                AccessLine(
                    at=self.wall_clock(),
                    request_id=request_id,
                    tenant=refusal.tenant,
                    model="",
                    path=request.path.decode("latin-1"),
                    kind="",
                    server="",
                    endpoint="",
                    outcome=refusal.reason,
                    status=STATUS[refusal.reason],
                    attempts=0,
                    received_bytes=request.received_bytes,
                    sent_bytes=0,
                    total_ms=0.0,
                )
            )

    def flush(self) -> None:
        """Hand buffered log lines to the writer, and use the next file of the ledger. Called ten times a second."""
        if self.ledger is not None:
            self.ledger.tick()
        if self._access_log is not None:
            self._access_log.flush()
            self.metrics.access_lines_dropped(self._access_log.dropped_lines)
