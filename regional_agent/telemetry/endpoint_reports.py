"""The per-endpoint part of reports: always the full list, included less often in regions with many endpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil

import msgspec

from penstock.fleet.endpoint_report import MAX_ENDPOINTS, EndpointCondition, EndpointReport
from penstock.health.endpoint_health import EndpointState
from penstock.health.outlier_ejection import EjectionState
from regional_agent.endpoints.endpoint import Endpoint

PER_REPORT = 100
"""Mean number of endpoints per report: with 1000 endpoints, every tenth report includes the list."""

MAX_LIST_BYTES = 96 * 1024
"""Maximum size of one list: a report is limited to 256 KiB, and also contains the demand."""


class Told(msgspec.Struct, frozen=True):
    """The per-endpoint part of one report."""

    endpoints: tuple[EndpointReport, ...] | None
    """None if this report omits the list; the list of the last report remains valid."""
    left_out: int = 0
    """Number of endpoints omitted because of the size limits."""


class EndpointReports:
    """Decides which reports include the list of endpoints, and builds the list.

    Args:
        every: returns the region's endpoints.
    """

    def __init__(self, every: Callable[[], Iterable[Endpoint]]) -> None:
        self._every = every
        self._silent = 0
        """Number of further reports that omit the list."""

    def next(self) -> Told:
        """The per-endpoint part of the next report."""
        if self._silent > 0:
            self._silent -= 1
            return Told(None)
        rows = [reported(one) for one in self._every()]
        kept, room = [], MAX_LIST_BYTES
        for row in rows[:MAX_ENDPOINTS]:
            room -= len(msgspec.msgpack.encode(row))
            if room < 0:
                break
            kept.append(row)
        self._silent = max(1, ceil(len(kept) / PER_REPORT)) - 1
        return Told(tuple(kept), len(rows) - len(kept))


def reported(endpoint: Endpoint) -> EndpointReport:
    """The report of one endpoint. Of its URL only host and port are reported, since the rest may hold secrets."""
    spec, view = endpoint.spec, endpoint.view
    return EndpointReport(
        name=spec.name,
        address=str(spec.address),
        models=spec.models,
        zone=spec.zone,
        accelerator=spec.accelerator,
        condition=_condition(endpoint),
        slots=view.slots,
        in_flight=view.in_flight,
    )


def _condition(endpoint: Endpoint) -> EndpointCondition:
    if endpoint.view.draining:
        return EndpointCondition.DRAINING
    if not endpoint.health.ready:
        return EndpointCondition.NEW if endpoint.health.state is EndpointState.NEW else EndpointCondition.DOWN
    if endpoint.ejection.state is not EjectionState.NONE:
        return EndpointCondition.EJECTED
    if not endpoint.models:
        return EndpointCondition.UNLOADED
    return EndpointCondition.READY if endpoint.view.weight >= 1.0 else EndpointCondition.WARMING
