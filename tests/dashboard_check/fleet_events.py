"""Additional faults and changes during the demo's scenario, so that panels of faults have data."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import httpx

from lab.demo.demo_workload import TENANT_KEYS
from lab.planet.configs import control_plane_urls, url
from lab.planet.planet import Planet
from lab.planet.topology import CHAT_8B, CHAT_70B, IMAGE_MODEL, agent_port, engine_port

FAULTS_S = 20
"""Duration (s) of the faults. An endpoint without progress becomes suspect after 10 s."""

ENGINE_FAULTS = (
    ("eu-de", {"slow": 1000}),
    ("eu-es", {"error_rate": 1.0, "error_status": 500}),
    ("jp-tok", {"die_mid_stream": 3}),
)
"""Region and fault of its last engine of the small model. The engine becomes suspect, is ejected, or breaks streams."""

US = "us-east"
RESTRICTED_PER_S = 6
RESTRICTED_S = (2.0, 8.0)
"""Rate (1/s) of large image jobs that only the region US may run, which exceeds its capacity several times, and the
alternating timeouts (s) of their clients. The load causes a capacity shortfall, refusals, and clients that leave the
queue."""

OVERRIDE = {"kind": "weight", "region": "eu-gb", "value": 0.9, "reason": "dashboard check", "expires_in_s": FAULTS_S}

RESULT_CACHE = {
    "apiVersion": "penstock/v1",
    "kind": "ResultCache",
    "name": "dashboard-check",
    "routes": ["openai-chat-completions"],
    "tenants": ["*"],
    "max_age_s": 600,
    "max_response_bytes": 65536,
    "max_bytes": 1_000_000,
    "price_percent": 10,
}
VERSIONS = {
    "apiVersion": "penstock/v1",
    "kind": "ModelVersions",
    "name": "chat",
    "versions": [{"model": CHAT_8B, "percent": 100}, {"model": CHAT_70B, "percent": 0}],
}
MODEL_ROLLOUT = {"apiVersion": "penstock/v1", "kind": "ModelRollout", "name": "chat", "to": CHAT_70B}
"""Documents that CHANGED adds to the policy."""

REPEATED = {"model": CHAT_8B, "messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 8}
REPEATED_S, REPEAT_EVERY_S = 120.0, 1.0
"""A chat whose response may be kept, for how long (s) the region US receives it, and its interval (s)."""

CHANGED = ("models.yaml", "expected_service_s: 2.5", "expected_service_s: 2.6")
"""File of the policy, old text and new text: a change that starts a rollout."""


async def inject_engine_faults(planet: Planet) -> None:
    """Inject every fault for FAULTS_S, and overload the image engines of the region US during this time."""
    async with httpx.AsyncClient(timeout=max(RESTRICTED_S), limits=httpx.Limits(max_connections=None)) as client:
        targets = [url(planet.ports[engine_port(region, _engine(planet, region))]) for region, _ in ENGINE_FAULTS]
        for target, (_, fault) in zip(targets, ENGINE_FAULTS, strict=True):
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
    """Change the policy in the directory that the control planes poll."""
    name, old, new = CHANGED
    path = folder / name
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    added = "\n---\n".join(json.dumps(each) for each in (RESULT_CACHE, VERSIONS, MODEL_ROLLOUT))
    (folder / "added.yaml").write_text(added, encoding="utf-8")


async def repeat_chat(planet: Planet) -> None:
    """Send one chat again and again, whose response is kept once the changed policy is in force."""
    entry = url(planet.ports[agent_port(US, planet.topology.region(US).agents[0], "traffic")])
    headers = {"authorization": f"Bearer {TENANT_KEYS['open']}"}
    async with httpx.AsyncClient(base_url=entry, headers=headers, timeout=5) as client:
        for _ in range(int(REPEATED_S / REPEAT_EVERY_S)):
            with suppress(httpx.HTTPError):
                await client.post("/v1/chat/completions", json=REPEATED)
            await asyncio.sleep(REPEAT_EVERY_S)


async def set_override(planet: Planet, admin_token: str) -> None:
    """Set an override that expires after FAULTS_S."""
    where = next(iter(control_plane_urls(planet.topology, planet.ports).values()))
    headers = {"authorization": f"Bearer {admin_token}"}
    async with httpx.AsyncClient(timeout=5) as client:
        (await client.post(f"{where}/v1/overrides", json=OVERRIDE, headers=headers)).raise_for_status()


async def _send_restricted(client: httpx.AsyncClient, planet: Planet, wait_s: float) -> None:
    """Send an image job that only the region US may run. The outcome is ignored; the metrics contain it."""
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
