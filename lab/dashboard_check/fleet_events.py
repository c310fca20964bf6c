"""What happens to the fleet besides the demo's story, so that panels of trouble have something to show."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from lab.demo.demo_workload import TENANT_KEYS
from lab.planet.configs import control_plane_urls, url
from lab.planet.planet import Planet
from lab.planet.topology import CHAT_8B, IMAGE_MODEL, agent_port, engine_port

FAULTS_S = 20
"""Duration (s) of the faults: an endpoint without progress is suspect after 10 s."""

TROUBLE = (
    ("eu-de", {"slow": 1000}),
    ("eu-es", {"error_rate": 1.0, "error_status": 500}),
    ("jp-tok", {"die_mid_stream": 3}),
)
"""Region, and the fault of its last engine of the small model: it becomes suspect, it is ejected, its streams fail."""

US = "us-east"
RESTRICTED_PER_S = 6
RESTRICTED_S = (2.0, 8.0)
"""Rate of large images that only the region US may generate, several times as many as its engines can, and the times
(s) for which their clients wait, in turn: a shortfall of capacity, requests that are refused, and clients that leave
the queue."""

OVERRIDE = {"kind": "weight", "region": "eu-gb", "value": 0.9, "reason": "to show it", "expires_in_s": FAULTS_S}

CHANGED = ("models.yaml", "expected_service_s: 2.5", "expected_service_s: 2.6")
"""File of the policy, and the text that replaces another there: a change that begins a rollout."""


async def trouble_engines(planet: Planet) -> None:
    """Put every fault in force for FAULTS_S, and meanwhile overload the image engines of one region."""
    async with httpx.AsyncClient(timeout=max(RESTRICTED_S), limits=httpx.Limits(max_connections=None)) as client:
        targets = [url(planet.ports[engine_port(region, _engine(planet, region))]) for region, _ in TROUBLE]
        for target, (_, fault) in zip(targets, TROUBLE, strict=True):
            (await client.post(f"{target}/lab/faults", json=fault)).raise_for_status()
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(FAULTS_S * RESTRICTED_PER_S):
                    wait_s = RESTRICTED_S[number % len(RESTRICTED_S)]
                    group.create_task(_send_restricted(client, planet, wait_s))
                    await asyncio.sleep(1.0 / RESTRICTED_PER_S)
        finally:
            for target in targets:
                (await client.post(f"{target}/lab/faults", json={})).raise_for_status()


def change_policy(folder: Path) -> None:
    """Change a policy that the control planes poll."""
    name, old, new = CHANGED
    path = folder / name
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


async def set_override(planet: Planet, admin_token: str) -> None:
    """Set an override that expires by itself."""
    where = next(iter(control_plane_urls(planet.topology, planet.ports).values()))
    headers = {"authorization": f"Bearer {admin_token}"}
    async with httpx.AsyncClient(timeout=5) as client:
        (await client.post(f"{where}/v1/overrides", json=OVERRIDE, headers=headers)).raise_for_status()


async def _send_restricted(client: httpx.AsyncClient, planet: Planet, wait_s: float) -> None:
    """A job that only the region US may run. Whatever becomes of it is for the metrics to show."""
    entry = url(planet.ports[agent_port(US, planet.topology.region(US).agents[0], "traffic")])
    site = next(site for site in planet.topology.sites if site.country == "US")
    headers = {
        "authorization": f"Bearer {TENANT_KEYS['us-restricted']}",
        "x-forwarded-for": site.network.partition("/")[0],
        "x-lab-residency": US,
    }
    body = {
        "width": 1024,
        "height": 1024,
        "steps": 30,
        "override_settings": {"sd_model_checkpoint": IMAGE_MODEL},
    }
    try:
        await client.post(f"{entry}/sdapi/v1/txt2img", json=body, headers=headers, timeout=wait_s)
    except httpx.HTTPError:
        return


def _engine(planet: Planet, region: str) -> str:
    return [engine.name for engine in planet.topology.region(region).engines if engine.model == CHAT_8B][-1]
