"""Reports of made-up agents, as the real ones send them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from penstock.fleet.endpoint_report import EndpointCondition, EndpointReport
from penstock.fleet.report import AgentReport, DemandReport, PeerReport, PoolReport
from penstock.policy.residency import residency_class
from penstock.wire.signing import FleetKey, Purpose

MODEL = "llama-3.1-8b"
SECRET = b"a fleet key that only tests ever use"
KEY = FleetKey(SECRET)


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
    """What an agent says whose region has four endpoints of one model, each request taking one second."""
    pool = PoolReport(MODEL, 4, ready, slots if ready else 0, 0, 1.0)
    return AgentReport(region, agent, epoch, seq, 0.0, (pool,), demand, tuple(peers))


def endpoint(
    name: str = "gpu-0", condition: EndpointCondition = EndpointCondition.READY, model: str = MODEL, in_flight: int = 0
) -> EndpointReport:
    """One of them."""
    return EndpointReport(name, f"{name}.internal:8000", (model,), "zone-a", "h100", condition, 25, in_flight)


def packed(report: AgentReport, key: FleetKey = KEY) -> tuple[bytes, Mapping[str, str]]:
    """The body of a report and its headers."""
    body = msgspec.msgpack.encode(report)
    return body, {"x-penstock-signature": key.sign(Purpose.REPORT, body)}
