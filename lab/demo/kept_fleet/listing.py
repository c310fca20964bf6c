"""Lists the addresses, keys and files of a running fleet, and a tour of five things to try."""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote

from rich.console import Console

from adapters.servers.free_ports import LOOPBACK
from lab.demo.demo_workload import TENANT_KEYS
from lab.planet.configs import ADMIN_TOKEN_FILE, AGENTS_KEY_FILE, IDENTITIES_DIR, control_plane_urls, url
from lab.planet.planet import Planet
from lab.planet.topology import CHAT_8B, FACES, IMAGE_MODEL, agent_port, engine_port


def print_page(planet: Planet, console: Console) -> None:
    """Print the URL of the operators' page and the path of the sign-in key."""
    pages = " or ".join(f"{where}/ui" for where in control_plane_urls(planet.topology, planet.ports).values())
    line = f"operators' page: {pages}; the sign-in key is in {planet.directory / ADMIN_TOKEN_FILE}"
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def print_listing(planet: Planet, console: Console) -> None:
    """Print the addresses, keys and files of the fleet, and a tour."""
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
        ("key for agents' metrics", str(planet.directory / AGENTS_KEY_FILE)),
        ("key for other metrics", "the admin token"),
        ("logs", str(planet.logs)),
    ]
    console.print("the fleet runs until Ctrl-C:", highlight=False)
    for what, where in lines:
        console.print(f"  {what:<28}{where}", highlight=False, markup=False, soft_wrap=True)
    console.print("set these in another terminal:", highlight=False)
    for command in _environment(planet):
        console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)
    console.print("five things to try, under a light load that the operators' page shows:", highlight=False)
    for number, (what, commands) in enumerate(_tour(planet), 1):
        console.print(f"  {number}. {what}", highlight=False, markup=False, soft_wrap=True)
        for command in commands:
            console.print(f"     {command}", highlight=False, markup=False, soft_wrap=True)


def _environment(planet: Planet) -> list[str]:
    return [
        f'export PATH={quote(str(Path(sys.executable).parent))}:"$PATH"',
        f"export PENSTOCK_URL={','.join(control_plane_urls(planet.topology, planet.ports).values())}",
        f"export PENSTOCK_ADMIN_TOKEN_FILE={quote(str(planet.directory / ADMIN_TOKEN_FILE))}",
        f"export PENSTOCK_AGENTS_KEY_FILE={quote(str(planet.directory / AGENTS_KEY_FILE))}",
    ]


def _tour(planet: Planet) -> list[tuple[str, list[str]]]:
    """Return five things to try, each with shell commands that work in any directory."""
    topology, ports = planet.topology, planet.ports
    first, site = topology.regions[0], topology.sites[0]
    agent = first.agents[0]
    entry = url(ports[agent_port(first.name, agent, "traffic")])
    admin = url(ports[agent_port(first.name, agent, "admin")])
    address = site.network.partition("/")[0]
    asked = f"--tenant open --model {CHAT_8B}"
    headers = (
        f"-H 'authorization: Bearer {TENANT_KEYS['open']}' -H 'x-forwarded-for: {address}'"
        " -H 'content-type: application/json'"
    )
    chat = f'{{"model":"{CHAT_8B}","stream":true,"messages":[{{"role":"user","content":"hello"}}]}}'
    policies = quote(str(planet.policy_dir))
    image = f'{{"prompt":"a lake","steps":20,"override_settings":{{"sd_model_checkpoint":"{IMAGE_MODEL}"}}}}'
    return [
        (
            "Send a chat and an image job, and ask why they are served where they are.",
            [
                f"curl -N {entry}/v1/chat/completions {headers} -d '{chat}'",
                f"curl {entry}/sdapi/v1/txt2img {headers} -d '{image}'",
                f"penstock explain --origin {first.name} --ip {address} {asked}",
                f"penstock explain --agent {first.name}/{agent} --origin {first.name} --ip {address} {asked}",
                f"penstock steer {address} {asked}",
            ],
        ),
        (
            f"Preview a drain of {first.name}, drain it, and watch its traffic move and return.",
            [
                f"penstock drain {first.name} --reason 'a look' --dry-run",
                f"penstock drain {first.name} --reason 'a try' --for 5m",
                "penstock status --watch",
                f"penstock undrain {first.name} --reason 'it is over'",
            ],
        ),
        (
            f"Cut the network to {first.name}, see the other regions take its traffic, and mend it.",
            [
                _fault(url(ports["wan control"]), first.name, "cut"),
                "penstock status",
                _fault(url(ports["wan control"]), first.name, "none"),
            ],
        ),
        (
            "Change the policy; the control planes verify it and try it in a canary region.",
            [
                f"sed -i 's/^target_utilisation: .*/target_utilisation: 0.5/' {policies}/spillover.yaml",
                f"penstock policy verify {policies}",
                "penstock rollout show",
            ],
        ),
        (
            "Read the metrics that Prometheus would scrape.",
            [
                f"curl -s {admin}/metrics {_bearer('PENSTOCK_AGENTS_KEY_FILE')} | head -40",
                f'curl -s "${{PENSTOCK_URL%%,*}}/metrics" {_bearer("PENSTOCK_ADMIN_TOKEN_FILE")} | head -40',
            ],
        ),
    ]


def _fault(control_url: str, region: str, mode: str) -> str:
    """Return the command that sets the fault of all links to a region."""
    body = f'{{"select":{{"to":"{region}"}},"fault":{{"mode":"{mode}"}}}}'
    return f"curl -X PUT {control_url}/faults -d '{body}'"


def _bearer(variable: str) -> str:
    """Return the option of curl that sends the key in the file that an environment variable names."""
    return f'-H "authorization: Bearer $(cat "${variable}")"'
