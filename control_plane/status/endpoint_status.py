"""Every endpoint of the fleet, as `GET /v1/endpoints` returns it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from control_plane.page import Page
from control_plane.status.status import SeenBy
from penstock.fleet.endpoint_report import EndpointCondition, EndpointReport
from penstock.fleet.region_skew import region_skews
from penstock.fleet.reported_endpoints import ReportedEndpoint, endpoints
from penstock.fleet.snapshot import Snapshot
from penstock.health.engines.engine_facts import ServedModel
from penstock.policy.kinds.models import Model


class GpuStatus(msgspec.Struct, frozen=True):
    """The GPUs of one endpoint."""

    gpus: int
    """Number of GPUs."""
    utilisation: float | None
    """Mean share (0-1) of the time in which a kernel ran; null if it is not reported, as all that follows."""
    memory_used: float | None
    """Share (0-1) of the memory in use, of the GPU with the largest."""
    temperature_c: float | None
    """Highest temperature (degrees Celsius)."""
    is_throttled: bool | None
    """Whether heat, power brakes or hardware slow a GPU down."""


class EndpointStatus(msgspec.Struct, frozen=True):
    """One endpoint."""

    region: str
    name: str
    """Name of the endpoint, unique in its region."""
    address: str
    """host:port."""
    models: tuple[str, ...]
    """Models that the endpoint is configured for; the pool of a model that it has not loaded does not count it."""
    zone: str | None
    accelerator: str | None
    state: EndpointCondition
    slots: int
    """Maximum number of concurrent requests."""
    in_flight: int
    """Current requests on the endpoint, from all agents of the region."""
    age_s: float
    """Age (s) of this state."""
    agent: str
    """Agent that reported the endpoint; `GET /v1/endpoints` of the agent's admin listener returns more details."""
    reason: str = ""
    """Reason for which the endpoint is not ready; empty if it is ready."""
    engine_version: str = ""
    """Version that the engine reports; empty if it reports none."""
    served: tuple[ServedModel, ...] = ()
    """For each model name, revision, context length and KV capacity (tokens; 0: unknown), and the part (0-1) of GPU
    memory that the engine may use, as far as the engine reports them."""
    skew: str = ""
    """How the endpoint differs from policy or from its siblings, and its region from others, and what is invalid in the
    engine's reports."""
    gpu: GpuStatus | None = None
    """State of its GPUs; null unless the endpoint's entry names their metrics."""
    is_burst: bool = False
    """Whether it is a burst endpoint, which serves while no slot of the region's own endpoints is free."""


_OF_REPORT = frozenset(EndpointStatus.__struct_fields__) & frozenset(EndpointReport.__struct_fields__) - {
    *("zone", "accelerator", "skew", "gpu")
}
"""The fields that a status has as they are reported."""


class EndpointPage(Page[EndpointStatus], frozen=True):
    """A page of endpoints."""

    seen_by: SeenBy
    left_out: int
    """Number of endpoints that are missing here, because they exceeded the maximum size of a report."""


def endpoint_statuses(
    snapshot: Snapshot,
    now: float,
    models: Mapping[str, Model],
    *,
    region: str | None = None,
    model: str | None = None,
    state: EndpointCondition | None = None,
) -> list[EndpointStatus]:
    """Return the endpoints that match every filter; None matches all.

    Args:
        models: those of the policy, whose revisions are compared between regions.
    """
    every = endpoints(snapshot, now)
    skews = region_skews(every, models)
    return [
        _status(endpoint, skews)
        for endpoint in every
        if region in (None, endpoint.region)
        if (model is None or model in endpoint.report.models) and state in (None, endpoint.report.condition)
    ]


def _status(endpoint: ReportedEndpoint, skews: Mapping[tuple[str, str], str]) -> EndpointStatus:
    report = endpoint.report
    of_region = [(model, skews.get((endpoint.region, model))) for model in report.models]
    differences = (report.skew, *(f"{model}: {skew}" for model, skew in of_region if skew))
    return EndpointStatus(
        region=endpoint.region,
        zone=report.zone or None,
        accelerator=report.accelerator or None,
        state=report.condition,
        age_s=endpoint.age_s,
        agent=endpoint.agent,
        skew="; ".join(filter(None, differences)),
        gpu=None if report.gpu is None else GpuStatus(*msgspec.structs.astuple(report.gpu)),
        **{field: getattr(report, field) for field in _OF_REPORT},
    )
