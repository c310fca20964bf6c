"""Builds the configuration files and environments of a fleet's processes from its topology and ports."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from adapters.servers.free_ports import LOOPBACK
from lab.planet.sites import entry_rtt_ms
from lab.planet.topology import (
    ETCD,
    FACES,
    Region,
    Topology,
    agent_port,
    control_plane_port,
    engine_port,
    etcd_link,
    etcd_port,
    peer_link,
)
from lab.wan.matrix import RttMatrix

Ports = Mapping[str, int]
"""Port by the names of `Topology.port_names`."""

AUTHORITY_DIR = "authority"
IDENTITIES_DIR = "identities"
ADMIN_TOKEN_FILE = "admin.token"
AGENTS_KEY_FILE = "agents.key"
"""File with the API key of the agents' admin listeners."""
AGENTS_API_KEYS_FILE = "agents-keys.yaml"
"""File with the digest of the key in AGENTS_KEY_FILE, for the agents."""

QUEUE_PER_ENGINE = 1
"""Requests that may wait in an engine beyond its slots, so that the engine does not idle between two requests. All
other requests wait in the agent, which can still send them to any engine."""

COLD_START_S = 0.5
"""Time (s) from an engine's start until it serves. Real engines load these models in one to two minutes; the demo shows
the return of traffic and not the load time."""


class FleetFiles(NamedTuple):
    """The directories and files of a fleet."""

    directory: Path
    """Empty directory for state and configuration files."""
    logs: Path
    policy_dir: Path
    """Directory of the bundle that the control planes publish."""
    geoip_file: Path
    """The database with which agents locate clients."""


def engines_file(topology: Topology, region: Region, ports: Ports, witness_dir: Path) -> dict[str, Any]:
    """Return the configuration of `penstock-lab engines` for the engines of a region."""
    return {
        "region": region.name,
        "witness_dir": str(witness_dir),
        "endpoints": [
            {
                "name": engine.name,
                "model": engine.pace_of or engine.model,
                "served_model_name": engine.model,
                "accelerator": engine.accelerator,
                "zone": engine.zone,
                "port": ports[engine_port(region.name, engine.name)],
                "max_num_seqs": engine.max_num_seqs,
                "cold_start_s": COLD_START_S * topology.time_scale,
                "time_scale": topology.time_scale,
            }
            for engine in region.engines
        ],
    }


def endpoints_file(region: Region, ports: Ports) -> list[dict[str, Any]]:
    """Return the endpoints file of a region's agents."""
    return [
        {
            "name": engine.name,
            "url": url(ports[engine_port(region.name, engine.name)]),
            "models": [engine.model],
            "zone": engine.zone,
            "accelerator": engine.accelerator,
            "slots": engine.max_num_seqs,
            "queue": QUEUE_PER_ENGINE,
        }
        for engine in region.engines
    ]


def wan_file(topology: Topology, ports: Ports, matrix: RttMatrix) -> dict[str, Any]:
    """Return the configuration of `penstock-lab wan`: round trips between regions from `matrix`, from sites estimated.

    Raises:
        MatrixError: the matrix lacks a pair of regions.
    """
    sites = {site.name: site for site in topology.sites}
    links = []
    for link in topology.links():
        site = sites.get(link.origin)
        if link.region == ETCD:
            rtt_ms = 0.0
        else:
            rtt_ms = entry_rtt_ms(site, link.region) if site is not None else matrix.between(link.origin, link.region)
        links.append(
            {
                "name": link.name,
                "from": link.origin,
                "to": link.region,
                "target": f"{LOOPBACK}:{ports[link.target_port]}",
                "port": ports[link.name],
                "rtt_ms": round(rtt_ms, 1),
            }
        )
    return {"control_port": ports["wan control"], "links": links}


def agent_identity_dir(directory: Path, region: str, name: str) -> Path:
    """Return the identity directory of an agent."""
    return directory / IDENTITIES_DIR / f"agent-{region}-{name}"


def control_plane_identity_dir(directory: Path, name: str) -> Path:
    """Return the identity directory of a control plane."""
    return directory / IDENTITIES_DIR / f"control-plane-{name}"


def agent_environment(
    topology: Topology, region: Region, agent: str, ports: Ports, files: FleetFiles
) -> dict[str, str]:
    """Return the environment of `penstock-agent`, which reaches other regions and etcd only through the WAN."""
    directory = files.directory
    peer_urls = {
        other.name: [f"https://{LOOPBACK}:{ports[peer_link(region.name, other.name, peer)]}" for peer in other.agents]
        for other in topology.regions
        if other.name != region.name
    }
    listens = {f"{face}_listen": f"{LOOPBACK}:{ports[agent_port(region.name, agent, face)]}" for face in FACES}
    return _environment(
        "PENSTOCK_AGENT_",
        {
            "region": region.name,
            "name": agent,
            **listens,
            "peer_urls": json.dumps(peer_urls),
            "etcd_endpoints": _members(ports[etcd_link(region.name, member)] for member in topology.etcd_members),
            "control_plane_urls": ",".join(control_plane_urls(topology, ports).values()),
            "redis_url": f"redis://{LOOPBACK}:{ports['redis']}/0",
            "endpoints_file": str(directory / f"{region.name}-endpoints.yaml"),
            "geoip_file": str(files.geoip_file),
            "identity_dir": str(agent_identity_dir(directory, region.name, agent)),
            "state_dir": str(directory / "state" / f"{region.name}-{agent}"),
            "admin_api_keys_file": str(directory / AGENTS_API_KEYS_FILE),
            # Clients connect from loopback, which acts as the edge proxy that reports their addresses.
            "trusted_proxies": "127.0.0.0/8",
            "access_log_file": str(files.logs / f"access-{region.name}-{agent}.jsonl"),
        },
    )


def control_plane_environment(topology: Topology, name: str, ports: Ports, files: FleetFiles) -> dict[str, str]:
    """Return the environment of `penstock serve`."""
    return _environment(
        "PENSTOCK_",
        {
            "name": name,
            "listen": f"{LOOPBACK}:{ports[control_plane_port(name)]}",
            "etcd_endpoints": _members(ports[etcd_port(member, "client")] for member in topology.etcd_members),
            "policy_dir": str(files.policy_dir),
            "identity_dir": str(control_plane_identity_dir(files.directory, name)),
            "admin_token_file": str(files.directory / ADMIN_TOKEN_FILE),
            "geoip_file": str(files.geoip_file),
        },
    )


def control_plane_urls(topology: Topology, ports: Ports) -> dict[str, str]:
    """Return the URL of each control plane by name."""
    return {name: url(ports[control_plane_port(name)]) for name in topology.control_planes}


def url(port: int) -> str:
    """Return the URL of a loopback port."""
    return f"http://{LOOPBACK}:{port}"


def write_json(path: Path, content: Mapping[str, Any] | Sequence[Any]) -> Path:
    """Write a configuration file as JSON, which is also valid YAML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def _members(ports: Iterable[int]) -> str:
    return ",".join(f"{LOOPBACK}:{port}" for port in ports)


def _environment(prefix: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {prefix + name.upper(): value for name, value in settings.items()}
