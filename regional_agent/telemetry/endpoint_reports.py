"""What reports tell of single endpoints: all of them, each time where they are few, more seldom the more they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil

import msgspec

from penstock.fleet.endpoint_report import MAX_ENDPOINTS, EndpointCondition, EndpointReport
from penstock.health.endpoint_health import EndpointState
from penstock.health.outlier_ejection import Trust
from regional_agent.endpoints.endpoint import Endpoint

PER_REPORT = 100
"""Endpoints that a report tells of on average: of a thousand, every tenth report tells."""

MAX_LIST_BYTES = 96 * 1024
"""Of one list: a report may have 256 KiB, and its demand needs room too."""


class Told(msgspec.Struct, frozen=True):
    """What one report tells."""

    endpoints: tuple[EndpointReport, ...] | None
    """None: nothing this time; what was told last stands."""
    left_out: int = 0
    """Endpoints that there was no room for."""


class EndpointReports:
    """Says when it is time to tell of endpoints again, and what.

    Args:
        every: the region's endpoints.
    """

    def __init__(self, every: Callable[[], Iterable[Endpoint]]) -> None:
        self._every = every
        self._silent = 0
        """So many further reports tell nothing of endpoints."""

    def next(self) -> Told:
        """What the next report tells."""
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
    """One endpoint as a report tells of it. Of its address only host and port: what a URL holds besides stays here."""
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
    if endpoint.standing.trust is not Trust.TRUSTED:
        return EndpointCondition.EJECTED
    if not endpoint.models:
        return EndpointCondition.UNLOADED
    return EndpointCondition.READY if endpoint.view.weight >= 1.0 else EndpointCondition.WARMING
