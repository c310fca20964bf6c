"""Envoy with the shipped configuration (`deploy/gateways/envoy-picker.yaml`) in front of an agent's endpoint picker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from adapters.servers.free_ports import LOOPBACK, free_ports
from adapters.servers.process import ServerProcess
from adapters.servers.readiness import http_ok
from lab.bench.cores import pinned_to
from lab.bench.peers.envoy import Envoy
from lab.server_starting import PORT_TRIES, start_server
from regional_agent.upstream.address import Address

READY_S = 30.0

_FILTER = "envoy.filters.http.ext_proc"

SHIPPED = Path(__file__).parents[1] / "deploy" / "gateways" / "envoy-picker.yaml"


def picker_configuration(
    listen: Address,
    admin: int,
    picker: Address,
    endpoints: Sequence[int],
    identity_dir: Path | None = None,
    agent: Address | None = None,
) -> dict[str, Any]:
    """Return the shipped configuration with other addresses.

    Args:
        listen: the address for clients, who state their addresses in X-Forwarded-For.
        admin: port of Envoy's own page.
        picker: the endpoint picker, on loopback.
        endpoints: ports of the endpoints on loopback.
        identity_dir: the certificate of the agent beside Envoy, for agents of other regions; None without such.
        agent: the agent's listener for clients; None if no client uses files, batches or WebSockets.
    """
    config: dict[str, Any] = yaml.safe_load(
        SHIPPED.read_text(encoding="utf-8").replace("/etc/penstock/identity", str(identity_dir))
    )
    config["admin"] = {"address": _address(Address(LOOPBACK, admin))}
    listener = config["static_resources"]["listeners"][0]
    listener["address"] = _address(listen)
    # Clients are on this machine, and Envoy would append an address of this machine.
    listener["filter_chains"][0]["filters"][0]["typed_config"]["use_remote_address"] = False
    for cluster in config["static_resources"]["clusters"]:
        if "load_assignment" in cluster:
            targets = [agent or picker if cluster["name"] == "penstock-agent" else picker]
            if cluster["name"] in ("eu", "eu-picked"):
                targets = [Address(LOOPBACK, port) for port in endpoints]
            listed = [{"endpoint": {"address": _address(each)}} for each in targets]
            cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": listed}]
        # A picker on loopback serves without TLS.
        if identity_dir is None or cluster["name"] == "penstock-picker":
            cluster.pop("transport_socket", None)
    return config


def envoy_process(directory: Path, config: dict[str, Any], core: int | None = None) -> ServerProcess:
    """Return an Envoy that is not started.

    Args:
        directory: for its configuration and its log.
        config: with an admin address.
        core: the only core that it may use; None for any core.

    Raises:
        MissingBinary: Envoy is not installed.
    """
    file = directory / "envoy.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(config), encoding="utf-8")
    argv: Sequence[str] = (
        *(str(Envoy().program()), "-c", str(file), "--concurrency", "1"),
        *("--disable-hot-restart", "-l", "error"),
    )
    admin = config["admin"]["address"]["socket_address"]
    port = config["static_resources"]["listeners"][0]["address"]["socket_address"]["port_value"]
    return ServerProcess(
        "envoy",
        list(argv) if core is None else pinned_to(core, argv),
        log_path=directory / "envoy.log",
        ready=http_ok(f"http://{admin['address']}:{admin['port_value']}/ready"),
        ports=(port, admin["port_value"]),
    )


def without_picker(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration whose Envoy asks no picker, and is the same in everything else."""
    listener = config["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"] = [each for each in manager["http_filters"] if each["name"] != _FILTER]
    for host in manager["route_config"]["virtual_hosts"]:
        for each in (host, *host["routes"]):
            each.get("typed_per_filter_config", {}).pop(_FILTER, None)
            if each.get("route", {}).get("cluster") == "eu-picked":
                each["route"]["cluster"] = "eu"
    return config


def start_envoy_with_picker(
    directory: Path, core: int | None, picker: int | None, endpoints: Sequence[int]
) -> tuple[ServerProcess, int]:
    """Start Envoy in front of a picker on loopback; returns its process and its port for clients.

    Args:
        picker: port of the picker; None for an Envoy that asks none.

    Raises:
        ServerError: Envoy is not installed, or does not become ready.
    """
    ports: list[int] = []

    def make() -> ServerProcess:
        ports[:] = free_ports(2)
        listen, at = Address(LOOPBACK, ports[0]), Address(LOOPBACK, picker or ports[1])
        config = picker_configuration(listen, ports[1], at, endpoints)
        return envoy_process(directory, config if picker is not None else without_picker(config), core)

    return start_server(make, tries=PORT_TRIES, timeout_s=READY_S), ports[0]


def _address(address: Address) -> dict[str, Any]:
    return {"socket_address": {"address": address.host, "port_value": address.port}}
