"""Says where everything of a kept planet listens, and how to talk to it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from lab.demo.workload import TENANT_KEYS
from lab.planet.configs import ADMIN_TOKEN_FILE, FLEET_KEY_FILE, control_plane_urls, url
from lab.planet.planet import Planet
from lab.planet.topology import CHAT_8B, FACES, agent_port, engine_port
from lab.servers.ports import LOOPBACK


def print_where_everything_listens(planet: Planet, console: Console, directory: Path) -> None:
    """Addresses, keys and files of the planet, with a request to try."""
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
        ("etcd", url(ports["etcd client"])),
        ("redis", f"redis://{LOOPBACK}:{ports['redis']}/0"),
        ("WAN, for faults", url(ports["wan control"])),
        ("tenant keys", ", ".join(TENANT_KEYS.values())),
        ("fleet key", str(directory / FLEET_KEY_FILE)),
        ("admin token", str(directory / ADMIN_TOKEN_FILE)),
        ("logs", str(planet.logs)),
    ]
    console.print("the planet is up until Ctrl-C:", highlight=False)
    for what, where in lines:
        console.print(f"  {what:<28}{where}", highlight=False, markup=False, soft_wrap=True)
    first = topology.regions[0]
    entry = url(ports[agent_port(first.name, first.agents[0], "traffic")])
    site = topology.sites[0]
    console.print("try:", highlight=False)
    console.print(
        f"  curl -N {entry}/v1/chat/completions -H 'authorization: Bearer {TENANT_KEYS['open']}' "
        f"-H 'x-forwarded-for: {site.network.partition('/')[0]}' -H 'content-type: application/json' "
        f'-d \'{{"model":"{CHAT_8B}","stream":true,"messages":[{{"role":"user","content":"hello"}}]}}\'',
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    fleet = (
        f"--url {','.join(control_plane_urls(topology, ports).values())} --token-file {directory / ADMIN_TOKEN_FILE}"
    )
    asked = f"--tenant open --model {CHAT_8B}"
    address = site.network.partition("/")[0]
    for command in (
        "status",
        f"explain --origin {first.name} --ip {address} {asked}",
        f"steer {address} {asked}",
    ):
        console.print(f"  penstock {command} {fleet}", highlight=False, markup=False, soft_wrap=True)
