"""Every endpoint of the fleet, as operators see it."""

from __future__ import annotations

import msgspec

from control_plane.status.status import SeenBy
from penstock.fleet.endpoint_report import EndpointCondition
from penstock.fleet.endpoint_view import ReportedEndpoint, endpoints
from penstock.fleet.snapshot import Snapshot


class EndpointStatus(msgspec.Struct, frozen=True):
    """One endpoint."""

    region: str
    name: str
    """Unique in its region."""
    address: str
    """host:port."""
    models: tuple[str, ...]
    """The pools that it is meant for; one that has not loaded a model does not count there."""
    zone: str | None
    accelerator: str | None
    state: EndpointCondition
    slots: int
    """Requests that it runs at once."""
    in_flight: int
    """Requests on it, of all agents of the region."""
    age_s: float
    """How old all of this is."""
    agent: str
    """Whose word it is: its admin listener, `GET /v1/endpoints`, says more."""


class EndpointPage(msgspec.Struct, frozen=True):
    """Some endpoints, and whose view they are."""

    items: tuple[EndpointStatus, ...]
    next_cursor: str | None
    """Give it as `cursor` to have the endpoints after these; null: there are none."""
    seen_by: SeenBy
    left_out: int
    """Endpoints of the region, or of all, that reports had no room for."""


def endpoint_statuses(
    snapshot: Snapshot,
    now: float,
    *,
    region: str | None = None,
    model: str | None = None,
    state: EndpointCondition | None = None,
) -> list[EndpointStatus]:
    """Every endpoint that is as asked for; what is None does not matter."""
    return [
        _status(one)
        for one in endpoints(snapshot, now, region)
        if (model is None or model in one.report.models) and state in (None, one.report.condition)
    ]


def _status(one: ReportedEndpoint) -> EndpointStatus:
    row = one.report
    return EndpointStatus(
        region=one.region,
        name=row.name,
        address=row.address,
        models=row.models,
        zone=row.zone or None,
        accelerator=row.accelerator or None,
        state=row.condition,
        slots=row.slots,
        in_flight=row.in_flight,
        age_s=one.age_s,
        agent=one.agent,
    )
