"""A real Envoy with the shipped configuration, in front of an agent's endpoint picker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY
from adapters.servers.binaries import find_binary
from adapters.servers.errors import MissingBinary
from adapters.servers.free_ports import LOOPBACK, free_ports
from adapters.servers.process import ServerProcess
from adapters.tls_contexts import ServerTls
from regional_agent.picker.picker_server import PickerServer, PickerTls
from regional_agent.upstream.address import Address
from tests.support.agents import Agent
from tests.support.identities import trust
from tests.support.paths import ROOT
from tests.support.picker_streams import parts_of
from tests.support.wait import PATIENCE_S

SHIPPED = ROOT / "deploy" / "gateways" / "envoy-picker.yaml"

Config = dict[str, Any]
Change = Callable[[Config], None]


def unchanged(config: Config) -> None:
    """Leave the configuration as it is."""


def clusters(config: Config) -> dict[str, Config]:
    """The clusters of a configuration, by name."""
    return {cluster["name"]: cluster for cluster in config["static_resources"]["clusters"]}


def http_manager(config: Config) -> Config:
    """The HTTP connection manager of the only listener."""
    found: Config = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def ext_proc(config: Config) -> Config:
    """The settings of the filter that asks the picker."""
    found: Config = http_manager(config)["http_filters"][0]["typed_config"]
    return found


def lb_endpoints(addresses: Sequence[Address]) -> list[Config]:
    """The endpoints of a cluster."""
    return [
        {"endpoint": {"address": {"socket_address": {"address": each.host, "port_value": each.port}}}}
        for each in addresses
    ]


@asynccontextmanager
async def running_picker(
    agent: Agent, *, forwards: bool = False, identity_dir: Path | None = None
) -> AsyncIterator[Address]:
    """Serve the endpoint picker of an agent; yields its address. Without `identity_dir`, it serves without TLS."""
    tls = None
    if identity_dir is not None:
        files = (identity_dir / name for name in (CERTIFICATE, PRIVATE_KEY, AUTHORITIES))
        tls = PickerTls(ServerTls(*files, alpn=["h2"]), trust)
    server = PickerServer(parts_of(agent, forwards=forwards), lambda: None, tls)
    address = await server.start(Address(LOOPBACK, 0))
    try:
        yield address
    finally:
        server.stop_accepting()
        await server.drain(0.0)


@asynccontextmanager
async def running_envoy(
    directory: Path,
    picker: Address,
    endpoints: Sequence[Address],
    change: Change = unchanged,
    identity_dir: Path | None = None,
) -> AsyncIterator[Address]:
    """Run Envoy with the shipped configuration; yields the address for clients.

    Args:
        endpoints: the endpoints of the cluster.
        change: changes the configuration, whose addresses are already those of this fleet.
        identity_dir: directory with Envoy's certificate; None for connections without TLS to picker and agents.
    """
    try:
        program = find_binary("envoy", package="envoy", inside="_bin/envoy", distribution="penstock-lab[bench]")
    except MissingBinary as missing:
        pytest.skip(str(missing))
    port, admin = free_ports(2)
    shipped = SHIPPED.read_text().replace("/etc/penstock/identity", str(identity_dir))
    config: Config = yaml.safe_load(shipped)
    config["admin"] = {"address": {"socket_address": {"address": LOOPBACK, "port_value": admin}}}
    listener = config["static_resources"]["listeners"][0]
    listener["address"]["socket_address"] = {"address": LOOPBACK, "port_value": port}
    by_name = clusters(config)
    by_name["eu"]["load_assignment"]["endpoints"] = [{"lb_endpoints": lb_endpoints(endpoints)}]
    by_name["penstock-picker"]["load_assignment"]["endpoints"] = [{"lb_endpoints": lb_endpoints([picker])}]
    for name in ("penstock-picker", "other-regions") if identity_dir is None else ():
        del by_name[name]["transport_socket"]
    change(config)
    file = directory / "envoy.yaml"
    file.write_text(yaml.safe_dump(config))
    options = ["--use-dynamic-base-id", "--concurrency", "1", "-l", "warning", "--drain-time-s", "0"]

    def is_ready() -> bool:
        try:
            return httpx.get(f"http://{LOOPBACK}:{admin}/ready", timeout=1.0).status_code == 200
        except httpx.HTTPError:
            return False

    process = ServerProcess(
        "envoy",
        [str(program), "-c", str(file), *options],
        log_path=directory / "envoy.log",
        ready=is_ready,
        ports=(port, admin),
    )
    await asyncio.to_thread(process.start)
    try:
        await asyncio.to_thread(process.wait_ready, PATIENCE_S)
        yield Address(LOOPBACK, port)
    finally:
        await asyncio.to_thread(process.kill)
