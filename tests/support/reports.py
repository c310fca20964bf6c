"""Reports of simulated agents, encoded as by real agents."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import cache

import msgspec

from penstock.fleet.endpoint_report import EndpointCondition, EndpointReport
from penstock.fleet.report import AgentReport, DemandReport, PeerReport, PoolReport
from penstock.policy.residency import residency_class
from penstock.wire.peer_keys import Keyring
from penstock.wire.signed_report import report_headers
from tests.support.identities import CONTROL_PLANE, agent_keyring, control_plane_keyring

MODEL = "llama-3.1-8b"


def offered(requests_per_s: float, *regions: str, model: str = MODEL) -> DemandReport:
    """Demand of one traffic class."""
    return DemandReport(model, residency_class(frozenset(regions)).name, regions, requests_per_s)


def report(
    region: str,
    *demand: DemandReport,
    seq: int = 1,
    epoch: int = 1,
    agent: str = "one",
    slots: int = 100,
    ready: int = 4,
    peers: Iterable[PeerReport] = (),
) -> AgentReport:
    """The report of an agent whose region has four endpoints of one model; each request takes one second."""
    pool = PoolReport(MODEL, 4, ready, slots if ready else 0, 0, 1.0)
    return AgentReport(region, agent, epoch, seq, 0.0, (pool,), demand, tuple(peers))


def endpoint(
    name: str = "gpu-0", condition: EndpointCondition = EndpointCondition.READY, model: str = MODEL, in_flight: int = 0
) -> EndpointReport:
    """The report of one endpoint."""
    return EndpointReport(name, f"{name}.internal:8000", (model,), "zone-a", "h100", condition, 25, in_flight)


@cache
def _sender(region: str, agent: str, fleet: int) -> Keyring:
    return agent_keyring(region, agent, fleet)


def packed(
    report: AgentReport, receiver: str | bytes = CONTROL_PLANE, fleet: int = 0
) -> tuple[bytes, Mapping[str, str]]:
    """Body and headers of a report, signed by the agent that the report names.

    Args:
        receiver: name or certificate (DER) of the control plane that the report is signed for.
        fleet: fleet of the agent.
    """
    body = msgspec.msgpack.encode(report)
    agent = _sender(report.region, report.agent, fleet)
    if isinstance(receiver, str):
        receiver = control_plane_keyring(receiver, fleet).identity.peer.certificate
    return body, report_headers(agent.keys_with(receiver, time.time()), agent.identity.peer.certificate, body)
