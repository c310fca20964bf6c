"""The order of what `penstock top` shows: trouble first, then load."""

from __future__ import annotations

from rich.console import Console

from control_plane.cli.views.top_view import Top, TopPool, top_view
from control_plane.status.endpoint_status import EndpointStatus
from control_plane.status.status import DemandStatus, PoolStatus, RegionStatus
from penstock.fleet.endpoint_report import EndpointCondition
from penstock.fleet.report import TenantReport
from penstock.health.region_health import RegionState


def endpoint(name: str, state: EndpointCondition = EndpointCondition.READY, in_flight: int = 0) -> EndpointStatus:
    return EndpointStatus("eu-de", name, "h:1", ("m",), None, None, state, 8, in_flight, 0.1, "a1", skew="differs")


def region(name: str, state: RegionState, in_flight: int) -> RegionStatus:
    pool, demand = PoolStatus("m", 12, 11, 100, in_flight, 1.5), DemandStatus("m", "all", 0.5 * in_flight)
    return RegionStatus(name, "", "DE", 0.0, 0.0, state, 1.0, 1.0, (pool,), (demand,))


def shown(top: Top) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(top_view(top))
    return console.export_text()


def test_regions_pools_and_endpoints_are_shown_with_their_load() -> None:
    regions = (region("eu-es", RegionState.HEALTHY, 1), region("eu-de", RegionState.FAILED, 90))
    pools = (TopPool("eu-de", regions[1].pools[0]),)
    tenants = (TenantReport("acme", 61, 17),)
    text = shown(Top("cp-1", regions, pools, (endpoint("gpu-1", in_flight=8),), 3, tenants))
    assert text.index("eu-de") < text.index("eu-es"), "the busiest first"
    for part in (
        "leader cp-1",
        "failed",
        "45.0",
        "90/100",
        "11/12",
        " 90%",
        "gpu-1",
        "100%",
        "differs",
        "3 more",
        "acme",
        "61",
        "17",
    ):
        assert part in text


def test_a_fleet_without_a_leader_and_reports_is_shown() -> None:
    assert "no leader" in shown(Top(None, (), (), (), 0, ()))
