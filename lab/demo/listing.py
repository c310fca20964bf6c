"""Lists the addresses, keys and files of a running fleet, and example commands."""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote

from rich.console import Console

from adapters.servers.free_ports import LOOPBACK
from lab.demo.demo_workload import TENANT_KEYS
from lab.planet.configs import ADMIN_TOKEN_FILE, IDENTITIES_DIR, control_plane_urls, url
from lab.planet.planet import Planet
from lab.planet.topology import CHAT_8B, FACES, IMAGE_MODEL, agent_port, engine_port


def print_page(planet: Planet, console: Console) -> None:
    """Print the URL of the operators' page and the path of the sign-in key."""
    pages = " or ".join(f"{where}/ui" for where in control_plane_urls(planet.topology, planet.ports).values())
    line = f"operators' page: {pages}; the sign-in key is in {planet.directory / ADMIN_TOKEN_FILE}"
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def print_listing(planet: Planet, console: Console) -> None:
    """Print the addresses, keys and files of the fleet, and example commands."""
    topology, ports = planet.topology, planet.ports
    lines: list[tuple[str, str]] = []
    for region in topology.regions:
        for agent in region.agents:
            for face in FACES:
                where = url(ports[agent_port(region.name, agent, face)])
                lines.append((f"agent {region.name}/{agent}, {face}", where))
        for engine in region.engines:
            lines.append((f"engine {engine.name}", url(ports[engine_port(region.name, engine.name)])))
    lines += [(f"control plane {name}", where) for name, where in control_plane_urls(topology, ports).items()]
    lines += [
        ("operators' page", f"{lines[-1][1]}/ui"),
        ("etcd", url(ports["etcd client"])),
        ("redis", f"redis://{LOOPBACK}:{ports['redis']}/0"),
        ("WAN fault control", url(ports["wan control"])),
        ("tenant keys", ", ".join(TENANT_KEYS.values())),
        ("policy (editable)", str(planet.policy_dir)),
        ("certificates", str(planet.directory / IDENTITIES_DIR)),
        ("admin token", str(planet.directory / ADMIN_TOKEN_FILE)),
        ("logs", str(planet.logs)),
    ]
    console.print("the fleet runs until Ctrl-C:", highlight=False)
    for what, where in lines:
        console.print(f"  {what:<28}{where}", highlight=False, markup=False, soft_wrap=True)
    console.print("example commands for another terminal:", highlight=False)
    for command in _to_try(planet):
        console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)


def _to_try(planet: Planet) -> list[str]:
    """Return example shell commands that work in any directory: requests, and `penstock` with its environment."""
    topology, ports = planet.topology, planet.ports
    first, site = topology.regions[0], topology.sites[0]
    entry = url(ports[agent_port(first.name, first.agents[0], "traffic")])
    address = site.network.partition("/")[0]
    asked = f"--tenant open --model {CHAT_8B}"
    return [
        f"curl -N {entry}/v1/chat/completions -H 'authorization: Bearer {TENANT_KEYS['open']}' "
        f"-H 'x-forwarded-for: {address}' -H 'content-type: application/json' "
        f'-d \'{{"model":"{CHAT_8B}","stream":true,"messages":[{{"role":"user","content":"hello"}}]}}\'',
        f"curl {entry}/sdapi/v1/txt2img -H 'authorization: Bearer {TENANT_KEYS['open']}' "
        f"-H 'x-forwarded-for: {address}' -H 'content-type: application/json' "
        f'-d \'{{"prompt":"a lake","steps":20,"override_settings":{{"sd_model_checkpoint":"{IMAGE_MODEL}"}}}}\'',
        f'export PATH={quote(str(Path(sys.executable).parent))}:"$PATH"',
        f"export PENSTOCK_URL={','.join(control_plane_urls(topology, ports).values())}",
        f"export PENSTOCK_ADMIN_TOKEN_FILE={quote(str(planet.directory / ADMIN_TOKEN_FILE))}",
        "penstock status",
        f"penstock explain --origin {first.name} --ip {address} {asked}",
        f"penstock explain --origin {first.name} --ip {address} --tenant open --model {IMAGE_MODEL} "
        "--path /sdapi/v1/txt2img --method POST",
        f"penstock steer {address} {asked}",
        f"penstock drain {first.name} --reason 'example drain' --for 5m",
    ]
