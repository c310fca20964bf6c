"""The parts of an agent whose state is exported as gauges and reported to the control plane."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from penstock.admission.region_queues import RegionQueues
from penstock.fleet.counts.version_counts import VersionReport
from penstock.meters.demand_meter import DemandMeter
from penstock.meters.request_tally import RequestTally
from regional_agent.config.active_config import ActiveConfig
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.ledger.request_ledger import RequestLedger
from regional_agent.peers.peer_prober import PeerProber
from regional_agent.routing.burst_targets import BurstTargets
from regional_agent.shared_load.shared_load import SharedLoad
from regional_agent.tenants.tenant_budgets import TenantBudgets


class AgentState(msgspec.Struct, frozen=True):
    """Read only: what the parts are doing now."""

    config: ActiveConfig
    """Policy and plan in force, and the reason why newer versions were rejected."""
    endpoints: EndpointSet
    """Pools and endpoints of the region."""
    queues: RegionQueues[Any]
    """What waits in the region."""
    peers: PeerProber
    """Health of the other regions."""
    tally: RequestTally
    """Outcomes of requests."""
    file_problems: Callable[[], Mapping[str, str]]
    """Returns the problem of each kind of file, empty where it has none."""
    shared_load: SharedLoad
    """The load of the region's other agents."""
    ledger: RequestLedger
    """The agent's part of the ledger."""
    budgets: TenantBudgets
    """The use of tenants' budgets."""
    burst: BurstTargets
    """The use of burst endpoints."""
    demand: DemandMeter
    """The demand of this agent's clients."""
    versions: Callable[[], tuple[VersionReport, ...]] = tuple
    """Returns the results of versions in a rollout."""
