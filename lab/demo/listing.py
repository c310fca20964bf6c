"""Says where everything of a kept planet listens, and how to talk to it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from lab.demo.workload import TENANT_KEYS
from lab.planet.configs import ADMIN_TOKEN_FILE, FLEET_KEY_FILE, control_plane_urls, url
from lab.planet.planet import Planet
from lab.planet.topology import CHAT_8B, agent_port, engine_port


def print_where_everything_listens(planet: Planet, console: Console, directory: Path) -> None:
    """Addresses, keys and files of the planet, with a request to try."""
    topology, ports = planet.topology, planet.ports
    table = Table(
        box=None, padding=(0, 2), show_header=False, title="The planet is up until Ctrl-C", title_justify="left"
    )
    for region in topology.regions:
        for agent in region.agents:
            faces = ", ".join(
                f"{face} {url(ports[agent_port(region.name, agent, face)])}" for face in ("traffic", "peer", "admin")
            )
            table.add_row(f"agent {region.name}/{agent}", faces)
        for engine in region.engines:
            table.add_row(f"engine {engine.name}", url(ports[engine_port(region.name, engine.name)]))
    for name, where in control_plane_urls(topology, ports).items():
        table.add_row(f"control plane {name}", where)
    table.add_row("etcd", url(ports["etcd client"]))
    table.add_row("redis", f"redis://127.0.0.1:{ports['redis']}/0")
    table.add_row("WAN", f"faults at {url(ports['wan control'])}")
    table.add_row("tenant keys", ", ".join(TENANT_KEYS.values()))
    table.add_row("fleet key", str(directory / FLEET_KEY_FILE))
    table.add_row("admin token", str(directory / ADMIN_TOKEN_FILE))
    table.add_row("logs", str(planet.logs))
    console.print(table, highlight=False)
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
    console.print(
        f"  penstock status --url {','.join(control_plane_urls(topology, ports).values())} "
        f"--token-file {directory / ADMIN_TOKEN_FILE}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
