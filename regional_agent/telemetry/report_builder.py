"""Builds the report that an agent sends to the leading control plane about once a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from adapters.release import release
from penstock.fleet.endpoint_report import MAX_TEXT
from penstock.fleet.expected_wait import MEMORY_COMPLETIONS
from penstock.fleet.report import MAX_REJECTED_FILES, AgentReport, PoolReport
from penstock.fleet.traffic_report import SpilloverReport
from regional_agent.config.active_config import ActiveConfig
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.peers.credit_ledger import CreditLedger
from regional_agent.peers.peer_prober import PeerProber
from regional_agent.routing.queue_dispatcher import QueueDispatcher
from regional_agent.telemetry.demand_meter import DemandMeter
from regional_agent.telemetry.endpoint_reports import EndpointReports
from regional_agent.telemetry.request_tally import RequestTally


class ReportBuilder:
    """Collects the contents of reports from the parts of an agent, and numbers the reports."""

    def __init__(
        self,
        region: str,
        agent: str,
        epoch: int,
        config: ActiveConfig,
        endpoints: EndpointSet,
        queue: QueueDispatcher,
        demand: DemandMeter,
        peers: PeerProber,
        credits: CreditLedger,
        tally: RequestTally,
        *,
        certificate_expires_at: Callable[[], float],
        file_problems: Callable[[], Mapping[str, str]],
        clock: Callable[[], float],
    ) -> None:
        """Create a builder whose first report has number 1.

        Args:
            region: region of the agent.
            agent: name of the agent.
            epoch: number of the start of the agent; grows with every start.
            config: policy and plan in force, and the reason why newer versions were rejected.
            endpoints: pools and endpoints of the region.
            queue: the admission queue of this agent.
            demand: rate of clients' requests by traffic class.
            peers: health of the other regions.
            credits: the spill credits that this agent grants.
            tally: outcomes of requests.
            certificate_expires_at: Unix time (s) until which this agent's certificate is valid.
            file_problems: returns the problem of each kind of file, empty where it has none.
            clock: monotonic, in seconds.
        """
        self._region = region
        self._agent = agent
        self._epoch = epoch
        self._config = config
        self._endpoints = endpoints
        self._endpoint_reports = EndpointReports(endpoints.every)
        self._queue = queue
        self._demand = demand
        self._peers = peers
        self._credits = credits
        self._tally = tally
        self._certificate_expires_at = certificate_expires_at
        self._file_problems = file_problems
        self._clock = clock
        self._seq = 0

    def build(self) -> AgentReport:
        """Build the next report. Updates the demand rates to the current time."""
        self._seq += 1
        self._demand.settle()
        plan = self._config.plan
        page = self._endpoint_reports.next()
        return AgentReport(
            region=self._region,
            agent=self._agent,
            epoch=self._epoch,
            seq=self._seq,
            sent_at=time.time(),
            pools=self.pools(),
            demand=self._demand.report(),
            peers=self._peers.report(),
            policy_digest=self._config.policy_digest,
            plan_epoch=plan.epoch if plan else 0,
            plan_generation=plan.generation if plan else 0,
            refused_plan=self._config.refused,
            refused_digest=self._config.refused_digest,
            request_counts=self._tally.report(),
            objectives=self._tally.report_objectives(self._clock()),
            endpoints=page.endpoints,
            endpoints_omitted=page.omitted,
            groups=self._endpoints.groups.report(),
            countries=self._demand.report_countries(),
            spillover=self._spillover(),
            release=release(),
            certificate_expires_at=self._certificate_expires_at(),
            rejected_files=self._rejected_files(),
        )

    def pools(self) -> tuple[PoolReport, ...]:
        """Return the size and load of each model's pool."""
        return tuple(
            PoolReport(
                model=model,
                endpoints=len(pool.endpoints) + pool.missing,
                ready=pool.ready,
                slots=pool.slots,
                in_flight=pool.in_flight + self._queue.waiting(model),
                service_s=pool.service_s,
                completions=min(MEMORY_COMPLETIONS, sum(endpoint.completions for endpoint in pool.endpoints)),
            )
            for model, pool in self._endpoints.pools.items()
        )

    def _rejected_files(self) -> tuple[str, ...]:
        problems = [problem[:MAX_TEXT] for problem in self._file_problems().values() if problem]
        return tuple(problems[:MAX_REJECTED_FILES])

    def _spillover(self) -> tuple[SpilloverReport, ...]:
        policy = self._config.policy
        if policy is None:
            return ()
        return tuple(
            SpilloverReport(
                model,
                waiting=self._queue.waiting_here(model),
                headroom=self._credits.headroom(model, self._region, policy, self._config.plan),
                granted=self._credits.granted(model),
                held=self._peers.held_credits(model),
            )
            for model in self._endpoints.pools
        )
