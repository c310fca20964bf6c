"""The report that an agent sends about once a second; every number is current at the sender.

The planner does not use the reports of countries, tenants, queues and spill credits; they are for operators.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.fleet.counts.message_bytes import MAX_MODELS as MAX_SIZED_MODELS
from penstock.fleet.counts.message_bytes import MessageBytes
from penstock.fleet.counts.request_counts import RequestCounts
from penstock.fleet.counts.version_counts import MAX_REPORTED as MAX_VERSIONS
from penstock.fleet.counts.version_counts import VersionReport
from penstock.fleet.endpoint_report import MAX_TEXT, EndpointReport
from penstock.fleet.expected_wait import MEMORY_COMPLETIONS
from penstock.fleet.jobs_report import JobsReport
from penstock.health.region_health import RegionState
from penstock.policy.service_objective import ObjectiveReport
from penstock.tenancy.refusals import MAX_REPORTED, BudgetRefusals, OtherRefusals

MAX_COUNTRIES = 300
"""Maximum number of countries in one report: more than ISO 3166-1 has."""

MAX_COUNTRY = 2
"""Maximum length, in characters, of a country's code."""


MAX_TENANTS = 20
"""Maximum number of tenants in one report and of one region, the busiest."""

_Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]


class CountryReport(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Demand of this agent's clients in one country. Encoded as an array: append new fields at the end."""

    country: str
    """ISO 3166-1 alpha-2; empty for clients without a known location."""
    requests_per_s: float

    @property
    def is_possible(self) -> bool:
        """Whether code and rate are in range."""
        return len(self.country) <= MAX_COUNTRY and isfinite(self.requests_per_s) and self.requests_per_s >= 0.0


class SpilloverReport(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One agent's queue and spill credits for one model. Encoded as an array: append new fields at the end."""

    model: str
    waiting: int
    """Requests in this agent's admission queue."""
    headroom: int
    """This agent's part of the region's free slots, for which it grants credits; 0 while the region is closed."""
    granted: int
    """Unexpired credits that this agent granted to other regions."""
    held: int
    """Unexpired credits that other regions granted to this agent."""

    def is_possible(self, max_count: int) -> bool:
        """Whether all counts are within the limit."""
        return all(0 <= count <= max_count for count in (self.waiting, self.headroom, self.granted, self.held))


class TenantReport(msgspec.Struct, frozen=True, gc=False):
    """The requests of one tenant now."""

    tenant: Annotated[str, Meta(max_length=256)]
    in_flight: _Count
    """Requests on endpoints of the region."""
    waiting: _Count
    """Requests in admission queues."""


def busiest_tenants(parts: Iterable[TenantReport]) -> tuple[TenantReport, ...]:
    """Return the tenants with most requests, each with the sum of its parts."""
    sums: dict[str, tuple[int, int]] = {}
    for part in parts:
        in_flight, waiting = sums.get(part.tenant, (0, 0))
        sums[part.tenant] = in_flight + part.in_flight, waiting + part.waiting
    order = sorted(sums.items(), key=lambda each: (-sum(each[1]), each[0]))
    return tuple(TenantReport(tenant, *counts) for tenant, counts in order[:MAX_TENANTS])


MAX_REJECTED_FILES = 10
"""Maximum number of rejected files in one report."""


class PoolReport(msgspec.Struct, frozen=True, gc=False):
    """State of the endpoints of one region that serve one model, at this agent."""

    model: str
    endpoints: int
    """Endpoints without those that operators drain and those that sleep until requests need them: what is withdrawn is
    no failure."""
    ready: int
    """Endpoints that are healthy, not ejected and not draining; full ones are included."""
    slots: int
    """Concurrent requests that the ready endpoints can run."""
    in_flight: int
    """Requests on the ready endpoints, of all models and of all agents of the region, and the requests for this model
    that wait in the region's admission queues."""
    service_s: float
    """Recent mean time (s) for which a request holds its slot."""
    completions: int = MEMORY_COMPLETIONS
    """Completions that `service_s` is based on, at most MEMORY_COMPLETIONS; with few of them `service_s` is mostly the
    policy's prior."""
    burst_slots: int = 0
    """Concurrent requests that the ready burst endpoints can run. No plan uses them: they are no part of any other
    number here."""


class GroupReport(msgspec.Struct, frozen=True, gc=False):
    """A capacity group of several models: the endpoints of one region that serve exactly these models.

    The models share its slots. Each model's pool contains the endpoints of all its groups, so the slots of a group are
    in several pools, and a sum over pools counts them several times.
    """

    models: tuple[str, ...]
    """At least two models, sorted by name."""
    endpoints: int
    ready: int
    """Endpoints that are healthy, not ejected and not draining; full ones are included."""
    slots: int
    """Concurrent requests that the ready endpoints can run, of all models together."""
    in_flight: int
    """Requests on the ready endpoints, of all agents of the region."""


class DemandReport(msgspec.Struct, frozen=True, gc=False):
    """Demand of this agent's clients: offered load before any routing, so that spillover does not hide demand."""

    model: str
    residency: str
    """Name of the residency class."""
    regions: tuple[str, ...]
    """Members of the residency class, so that the planner can handle a class that no other report contains."""
    requests_per_s: float
    """Requests with a priority. Agents of earlier releases include batch requests."""
    batch_per_s: float = 0.0
    """Batch requests, which the plan does not place."""
    priority: int = 0
    """Priority of the requests; a report has one row for each priority of a traffic class."""


class PeerReport(msgspec.Struct, frozen=True):
    """This agent's view of another region: independent evidence for the control plane."""

    region: str
    state: RegionState
    rtt_ms: float


class LedgerReport(msgspec.Struct, frozen=True):
    """The part of the ledger that this agent has not put into the usage store."""

    waiting: int = 0
    """Complete segments in the spool."""
    oldest_at: float | None = None
    """Unix time (s) of the oldest of them; None without one."""
    lost_records: int = 0
    """Records since this epoch of the agent began that had no room in the spool."""
    last_put: str = ""
    """Name of the segment that the agent has put into its usage store last; empty if none is known."""


class AgentReport(msgspec.Struct, frozen=True):
    """The complete report of one agent."""

    region: str
    agent: str
    """Unique name of the agent; the same after a restart."""
    epoch: int
    """Grows with every start of the agent, so that a late report of an earlier process is rejected."""
    seq: int
    """Grows with every report of one epoch."""
    sent_at: float
    """Unix time (s) by the agent's clock."""
    pools: tuple[PoolReport, ...] = ()
    demand: tuple[DemandReport, ...] = ()
    peers: tuple[PeerReport, ...] = ()
    policy_digest: str = ""
    """Digest of the policy in force at the agent; empty before the first policy."""
    plan_epoch: int = 0
    plan_generation: int = 0
    refused_plan: str = ""
    """Reason why the agent rejected the newest published plan or policy; empty if nothing was rejected."""
    refused_digest: str = ""
    """Digest of the rejected policy; empty if nothing was rejected, or the policy could not be read yet."""
    request_counts: RequestCounts = RequestCounts()
    """Results of client requests since this epoch of the agent began."""
    objectives: tuple[ObjectiveReport, ...] = ()
    """Recent attainment of the service objectives of the agent's policy, one entry per model with an objective."""
    endpoints: tuple[EndpointReport, ...] | None = None
    """Every endpoint of the region; None if this report omits them and the last list of this epoch remains valid."""
    endpoints_omitted: int = 0
    """Number of endpoints above the limit of the list."""
    groups: tuple[GroupReport, ...] = ()
    """Capacity groups of several models. Slots of a pool that are in no such group serve its model alone."""
    countries: tuple[CountryReport, ...] = ()
    """Demand of this agent's clients by country."""
    spillover: tuple[SpilloverReport, ...] = ()
    """Queue and spill credits of each model."""
    release: str = ""
    """Version of the agent; empty if unknown."""
    certificate_expires_at: float = 0.0
    """Unix time (s) until which the agent's certificate is valid; 0 if unknown."""
    rejected_files: tuple[str, ...] = ()
    """Problems of files that have changed and were rejected, while their last valid content stays in force; each names
    the file."""
    ledger: LedgerReport | None = None
    """None while the ledger is off."""
    budget_refusals: Annotated[tuple[BudgetRefusals, ...], Meta(max_length=MAX_REPORTED)] = ()
    """The budgets of tenants and keys that were exceeded last at this agent."""
    versions: Annotated[tuple[VersionReport, ...], Meta(max_length=MAX_VERSIONS)] = ()
    """Results of the versions of names with a rollout, since this epoch of the agent began."""
    message_bytes: Annotated[tuple[MessageBytes, ...], Meta(max_length=MAX_SIZED_MODELS)] = ()
    """Mean sizes of requests and responses by model."""
    other_refusals: Annotated[tuple[OtherRefusals, ...], Meta(max_length=MAX_REPORTED)] = ()
    """The newest reasons, but for budgets, for which requests of tenants were refused or ended at this agent."""
    issuers_asked: Annotated[tuple[str, ...], Meta(max_length=MAX_REPORTED)] = ()
    """Identity providers whose keys the leader is asked to fetch, because a token has an unknown one."""

    tenants: Annotated[tuple[TenantReport, ...], Meta(max_length=MAX_TENANTS)] = ()
    """The tenants with most requests at this agent."""
    jobs: JobsReport | None = None
    """None in a region without a job store."""

    @property
    def has_possible_texts(self) -> bool:
        """Whether the texts about rejected files are within their limits."""
        return len(self.rejected_files) <= MAX_REJECTED_FILES and all(
            len(problem) <= MAX_TEXT for problem in self.rejected_files
        )
