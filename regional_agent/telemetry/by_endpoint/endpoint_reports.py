"""The per-endpoint part of reports: a complete list, omitted from most reports of regions with many endpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil

import msgspec

from penstock.fleet.endpoint_report import MAX_ENDPOINTS, MAX_MODELS, MAX_TEXT, EndpointCondition, EndpointReport
from penstock.fleet.snapshot import MAX_COUNT
from penstock.health.endpoint_health import EndpointState
from penstock.health.outlier_ejection import EjectionState
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.on_demand.awake_endpoints import sleeps

PER_REPORT = 100
"""Mean number of endpoints per report: with 1000 endpoints, every tenth report includes the list."""

MAX_LIST_BYTES = 96 * 1024
"""Maximum size of one list: a report is limited to 256 KiB, and also contains the demand."""


class EndpointPage(msgspec.Struct, frozen=True):
    """The per-endpoint part of one report."""

    endpoints: tuple[EndpointReport, ...] | None
    """None if this report omits the list; the list of the last report remains valid."""
    omitted: int = 0
    """Number of endpoints omitted because of the size limits."""


class EndpointReports:
    """Decides which reports include the list of endpoints, and builds the list.

    Args:
        endpoints: returns the region's endpoints.
    """

    def __init__(self, endpoints: Callable[[], Iterable[Endpoint]]) -> None:
        self._endpoints = endpoints
        self._reports_to_skip = 0
        """Number of further reports that omit the list."""

    def next(self) -> EndpointPage:
        """Return the per-endpoint part of the next report."""
        if self._reports_to_skip > 0:
            self._reports_to_skip -= 1
            return EndpointPage(None)
        rows = [endpoint_report(endpoint) for endpoint in self._endpoints()]
        kept, bytes_left = [], MAX_LIST_BYTES
        # With an impossible row, which an engine may cause, control planes would reject the report of the region.
        for row in [row for row in rows if row.is_possible(MAX_COUNT)][:MAX_ENDPOINTS]:
            bytes_left -= len(msgspec.msgpack.encode(row))
            if bytes_left < 0:
                break
            kept.append(row)
        self._reports_to_skip = max(1, ceil(len(kept) / PER_REPORT)) - 1
        return EndpointPage(tuple(kept), len(rows) - len(kept))


def endpoint_report(endpoint: Endpoint) -> EndpointReport:
    """Return the report of one endpoint. The URL is reduced to host and port, since other parts may hold secrets."""
    spec, view, condition = endpoint.spec, endpoint.view, _condition(endpoint)
    return EndpointReport(
        name=spec.name,
        address=str(spec.address),
        models=spec.models,
        zone=spec.zone,
        accelerator=spec.accelerator,
        condition=condition,
        slots=view.slots,
        in_flight=view.in_flight,
        reason=_reason(endpoint, condition)[:MAX_TEXT],
        engine_version=endpoint.reported.facts.version,
        served=endpoint.reported.facts.served[:MAX_MODELS],
        skew="; ".join(filter(None, (endpoint.reported.skew, *endpoint.reported.facts.problems)))[:MAX_TEXT],
        gpu=endpoint.reported.gpus,
        is_burst=spec.burst,
    )


def _condition(endpoint: Endpoint) -> EndpointCondition:
    if endpoint.view.draining:
        return EndpointCondition.DRAINING
    if not endpoint.health.ready:
        if any(sleeps(endpoint, model) for model in endpoint.reported.wake_methods):
            return EndpointCondition.UNLOADED
        return EndpointCondition.NEW if endpoint.health.state is EndpointState.NEW else EndpointCondition.DOWN
    if endpoint.ejection.state is EjectionState.SUSPECT:
        return EndpointCondition.SUSPECT
    if endpoint.ejection.state is not EjectionState.NONE:
        return EndpointCondition.EJECTED
    if not endpoint.models:
        return EndpointCondition.UNLOADED
    return EndpointCondition.READY if endpoint.view.weight >= 1.0 else EndpointCondition.WARMING


def _reason(endpoint: Endpoint, condition: EndpointCondition) -> str:
    """Return the reason, for operators, why an endpoint is not ready; empty if the endpoint is ready."""
    ejection = endpoint.ejection
    left_s = max(0.0, ejection.until - endpoint.now())
    match condition:
        case EndpointCondition.SUSPECT:
            return endpoint.stall.detail if endpoint.stall is not None else "its requests make no progress"
        case EndpointCondition.EJECTED if ejection.state is EjectionState.EJECTED:
            return endpoint.credential_rejected or (
                f"requests failed (last: {endpoint.ejected_by or 'unknown'}); {ejection.ejections} ejections in a row, "
                f"a trial request in {left_s:.0f} s"
            )
        case EndpointCondition.EJECTED:
            return "one trial request decides whether it returns"
        case EndpointCondition.WARMING:
            return f"receives {endpoint.view.weight:.0%} of a full share of requests"
        case EndpointCondition.DOWN:
            problem = endpoint.problem or endpoint.reported.wake_problem or endpoint.probe_failure
            return problem or "health probes failed; the last one was good"
        case EndpointCondition.NEW:
            return endpoint.problem or endpoint.probe_failure or "no good health probe since its start or failure"
        case EndpointCondition.UNLOADED:
            if endpoint.reported.refused:
                return endpoint.reported.skew
            if endpoint.loaded_models and endpoint.health.ready:
                return "is warmed up, or about to sleep"
            sleeps = "sleeps until requests need it" if endpoint.reported.wake_methods else ""
            return endpoint.reported.wake_problem or sleeps or "none of its models is loaded"
        case EndpointCondition.DRAINING:
            return endpoint.drained_because or "is removed after its running requests"
        case _:
            return ""
