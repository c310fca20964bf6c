"""Builds the report that an agent sends to the leading control plane about once a second."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import msgspec

from adapters.release import release
from penstock.fleet.endpoint_report import MAX_TEXT
from penstock.fleet.expected_wait import MEMORY_COMPLETIONS
from penstock.fleet.jobs_report import JobsReport
from penstock.fleet.report import MAX_REJECTED_FILES, AgentReport, PoolReport, SpilloverReport, busiest_tenants
from penstock.tenancy.refusals import MAX_REPORTED
from regional_agent.on_demand.awake_endpoints import sleeps
from regional_agent.peers.credit_balances import CreditBalances
from regional_agent.telemetry.agent_state import AgentState
from regional_agent.telemetry.by_endpoint.endpoint_reports import EndpointReports


class ReportSender(msgspec.Struct, frozen=True):
    """The agent that reports are from."""

    region: str
    agent: str
    """Name of the agent, unique in the region."""
    epoch: int
    """Number of the start of the agent; grows with every start."""


class ReportBuilder:
    """Collects the contents of reports from the parts of an agent, and numbers the reports."""

    def __init__(
        self,
        sender: ReportSender,
        state: AgentState,
        credits: CreditBalances,
        *,
        certificate_expires_at: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        """Create a builder whose first report has number 1.

        Args:
            credits: the spill credits that this agent grants.
            certificate_expires_at: Unix time (s) until which this agent's certificate is valid.
            clock: monotonic, in seconds.
        """
        self._sender = sender
        self._state = state
        self._endpoint_reports = EndpointReports(state.endpoints.every)
        self._demand = state.demand
        self._credits = credits
        self._certificate_expires_at = certificate_expires_at
        self._clock = clock
        self._seq = 0
        self.jobs: Callable[[], JobsReport | None] = lambda: None
        """Returns the jobs of this agent; None without a job store."""

    def build(self) -> AgentReport:
        """Build the next report. Updates the demand rates to the current time."""
        self._seq += 1
        self._demand.settle(self._clock())
        plan = self._state.config.plan
        page = self._endpoint_reports.next()
        return AgentReport(
            region=self._sender.region,
            agent=self._sender.agent,
            epoch=self._sender.epoch,
            seq=self._seq,
            sent_at=time.time(),
            pools=self.pools(),
            demand=self._demand.report(),
            peers=self._state.peers.report(),
            policy_digest=self._state.config.policy_digest,
            plan_epoch=plan.epoch if plan else 0,
            plan_generation=plan.generation if plan else 0,
            refused_plan=self._state.config.refused,
            refused_digest=self._state.config.refused_digest,
            request_counts=self._state.tally.report(),
            objectives=self._state.tally.report_objectives(self._clock()),
            endpoints=page.endpoints,
            endpoints_omitted=page.omitted,
            groups=self._state.endpoints.groups.report(),
            countries=self._demand.report_countries(),
            spillover=self._spillover(),
            release=release(),
            certificate_expires_at=self._certificate_expires_at(),
            rejected_files=self._rejected_files(),
            ledger=self._state.ledger.report(),
            versions=self._state.versions(),
            message_bytes=self._state.tally.message_bytes.report(),
            budget_refusals=self._state.budgets.refusals.newest(time.time()),
            other_refusals=self._state.tally.refusals.newest(time.time()),
            issuers_asked=self._state.config.issuers.asked()[:MAX_REPORTED],
            tenants=busiest_tenants(self._state.queues.tenants()),
            jobs=self.jobs(),
        )

    def pools(self) -> tuple[PoolReport, ...]:
        """Return the size and load of each model's pool."""
        asleep = Counter(
            model
            for endpoint in self._state.endpoints.every()
            for model in endpoint.reported.wake_methods
            if sleeps(endpoint, model) and not endpoint.view.draining
        )
        endpoints = self._state.endpoints
        return tuple(
            PoolReport(
                model=model,
                endpoints=sum([not endpoint.drained_because for endpoint in pool.endpoints])
                + pool.missing
                - asleep[model],
                ready=pool.ready,
                slots=pool.slots,
                in_flight=pool.in_flight + self._state.queues.waiting(model),
                service_s=pool.service_s,
                completions=min(MEMORY_COMPLETIONS, sum(endpoint.completions for endpoint in pool.endpoints)),
                burst_slots=endpoints.burst_pools[model].slots,
            )
            for model, pool in endpoints.pools.items()
        )

    def _rejected_files(self) -> tuple[str, ...]:
        problems = [problem[:MAX_TEXT] for problem in self._state.file_problems().values() if problem]
        return tuple(problems[:MAX_REJECTED_FILES])

    def _spillover(self) -> tuple[SpilloverReport, ...]:
        policy = self._state.config.policy
        if policy is None:
            return ()
        return tuple(
            SpilloverReport(
                model,
                waiting=self._state.queues.waiting_here(model),
                headroom=self._credits.headroom(model, self._sender.region, policy, self._state.config.plan),
                granted=self._credits.granted(model),
                held=self._state.peers.held_credits(model),
            )
            for model in self._state.endpoints.pools
        )
