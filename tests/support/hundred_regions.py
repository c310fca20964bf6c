"""A bundle with 100 regions, 10 models and 20 tenants, and the reports of its agents."""

from __future__ import annotations

from pathlib import Path

from control_plane.policy.folder import read_folder
from penstock.fleet.endpoint_report import EndpointCondition, EndpointReport
from penstock.fleet.report import AgentReport, DemandReport, PeerReport, PoolReport
from penstock.health.region_health import RegionState
from penstock.policy.residency import residency_class
from tests.support.paths import PLANET

REGIONS = tuple(f"region-{number:03d}" for number in range(100))
MODELS = tuple(f"model-{number:02d}" for number in range(10))
TENANTS = tuple(f"tenant-{number:02d}" for number in range(20))


def write_bundle(directory: Path) -> None:
    """Write the bundle."""
    directory.mkdir()
    for name in ("data-classes.yaml", "failover.yaml", "spillover.yaml"):
        (directory / name).write_text(read_folder(PLANET)[name])
    documents = [
        f"kind: Region\nname: {name}\ncity: City {number}\ncountry: {('DE', 'ES', 'US', 'JP')[number % 4]}\n"
        f"latitude_deg: {number % 60}\nlongitude_deg: {number * 3 - 150}\ncost_per_gpu_hour: 1.0\n"
        f"egress_cost_per_gb: 0.02"
        for number, name in enumerate(REGIONS)
    ]
    documents += [
        f"kind: Model\nname: {name}\nexpected_service_s: 1.0\ncost: {{unit: token, input_unit_s: 0.00003, "
        f"output_unit_s: 0.007}}\nservice_objective: {{first_byte_s: 1.5, share: 0.99}}"
        for name in MODELS
    ]
    documents += [
        f'kind: Tenant\nname: {name}\ndata_class: open\nkey_digests: ["{number:064x}"]'
        for number, name in enumerate(TENANTS)
    ]
    (directory / "fleet.yaml").write_text("---\n".join(f"apiVersion: penstock/v1\n{text}\n" for text in documents))


def fleet_reports(seq: int = 1) -> list[AgentReport]:
    """Reports of an agent of each region: 10 pools, 100 endpoints, 99 peers."""
    residency = residency_class(frozenset(REGIONS)).name
    return [
        AgentReport(
            region,
            agent,
            1,
            seq,
            0.0,
            tuple(PoolReport(model, 5, 5, 100, 10, 1.0) for model in MODELS),
            tuple(DemandReport(model, residency, REGIONS, 20.0 + index % 7) for model in MODELS),
            tuple(PeerReport(peer, RegionState.HEALTHY, 10.0) for peer in REGIONS if peer != region),
            endpoints=tuple(_endpoint(region, number) for number in range(100)),
        )
        for index, region in enumerate(REGIONS)
        for agent in ("one",)
    ]


def _endpoint(region: str, number: int) -> EndpointReport:
    models = (MODELS[number % len(MODELS)],)
    address, ready = f"gpu-{number}.{region}:8000", EndpointCondition.READY
    return EndpointReport(f"gpu-{number}", address, models, "zone-a", "h100", ready, 25, 3)
