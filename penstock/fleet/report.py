"""What an agent tells the control plane about once a second; every number is of this moment at the sender."""

from __future__ import annotations

import msgspec

from penstock.fleet.endpoint_report import EndpointReport
from penstock.fleet.expected_wait import MEMORY_COMPLETIONS
from penstock.fleet.request_counts import Answers
from penstock.health.region_health import RegionState
from penstock.policy.service_objective import ObjectiveReport


class PoolReport(msgspec.Struct, frozen=True, gc=False):
    """The endpoints of one region that serve one model, as this agent sees them."""

    model: str
    endpoints: int
    ready: int
    """How many of them may take a new request."""
    slots: int
    """Requests that the ready ones can run at once."""
    in_flight: int
    """Requests running or queued on them now, all agents of the region counted."""
    service_s: float
    """Mean time (s) a request holds its slot, lately."""
    completions: int = MEMORY_COMPLETIONS
    """How many requests have taught it that, not counting on past MEMORY_COMPLETIONS; with few of them it is mostly
    policy's prior. An agent that does not say so is believed."""


class DemandReport(msgspec.Struct, frozen=True, gc=False):
    """What clients asked this agent for: offered, before any routing, so that spillover does not hide demand."""

    model: str
    residency: str
    """Name of the residency class."""
    regions: tuple[str, ...]
    """Its members, so that the planner knows a class it never saw."""
    requests_per_s: float


class PeerReport(msgspec.Struct, frozen=True):
    """This agent's belief about another region: independent evidence for the control plane."""

    region: str
    state: RegionState
    rtt_ms: float


class AgentReport(msgspec.Struct, frozen=True):
    """One agent's whole word."""

    region: str
    agent: str
    """Unique name of the agent process's seat; the same after a restart."""
    epoch: int
    """Grows with every start of the agent, so that a dead one's late report is harmless."""
    seq: int
    """Grows with every report of one epoch."""
    sent_at: float
    """Unix time (s) by the agent's clock."""
    pools: tuple[PoolReport, ...] = ()
    demand: tuple[DemandReport, ...] = ()
    peers: tuple[PeerReport, ...] = ()
    policy_digest: str = ""
    """The policy in force at the agent; empty before the first."""
    plan_epoch: int = 0
    plan_generation: int = 0
    refused_plan: str = ""
    """Why the newest published plan or policy was not taken; empty when it was."""
    refused_digest: str = ""
    """The policy that what was refused names; empty where nothing was refused, or it could merely not be read yet."""
    answers: Answers = Answers()
    """How its clients' requests ended since this epoch of the agent began."""
    objectives: tuple[ObjectiveReport, ...] = ()
    """How it kept the service objectives of the policy in force there, lately; one for each model that has one."""
    endpoints: tuple[EndpointReport, ...] | None = None
    """Every endpoint of the region; None: not told this time, what this epoch of the agent told last stands."""
    endpoints_left_out: int = 0
    """Endpoints that there was no room for."""
