"""A real Envoy with the shipped configuration, in front of an agent's endpoint picker."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY
from adapters.servers.errors import MissingBinary
from adapters.servers.free_ports import LOOPBACK
from adapters.servers.process import ServerProcess, find_binary
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


@contextmanager
def _kept_port() -> Iterator[int]:
    """A TCP port that no other process receives meanwhile. Envoy's listeners share it, by SO_REUSEPORT."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind((LOOPBACK, 0))
        yield kept.getsockname()[1]


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
    shipped = SHIPPED.read_text().replace("/etc/penstock/identity", str(identity_dir))
    config: Config = yaml.safe_load(shipped)
    by_name = clusters(config)
    for name in ("eu", "eu-picked"):
        by_name[name]["load_assignment"]["endpoints"] = [{"lb_endpoints": lb_endpoints(endpoints)}]
    by_name["penstock-picker"]["load_assignment"]["endpoints"] = [{"lb_endpoints": lb_endpoints([picker])}]
    for name in ("penstock-picker", "other-regions", "next-region") if identity_dir is None else ():
        del by_name[name]["transport_socket"]
    with _kept_port() as port:
        listener = config["static_resources"]["listeners"][0]
        listener["address"]["socket_address"] = {"address": LOOPBACK, "port_value": port}
        change(config)
        async with _running(directory / "envoy", config):
            yield Address(LOOPBACK, port)


@asynccontextmanager
async def running_translator(
    directory: Path, front: Address, version: str, authorities: Path
) -> AsyncIterator[Address]:
    """Run an Envoy that sends what HTTP/1.1 clients ask on to another one, by TLS; yields the address for clients.

    Args:
        front: the other Envoy; for HTTP/3, its UDP port.
        version: `http2` or `http3`.
        authorities: file with the authority of its certificate.
    """
    v3 = "type.googleapis.com/envoy.extensions"
    tls: Config = {
        "sni": "localhost",
        "common_tls_context": {"validation_context": {"trusted_ca": {"filename": str(authorities)}}},
    }
    if version == "http3":
        kind, context = "quic.v3.QuicUpstreamTransport", {"upstream_tls_context": tls}
    else:
        kind, context = "tls.v3.UpstreamTlsContext", tls
        tls["common_tls_context"]["alpn_protocols"] = ["h2"]
    to_front: Config = {
        "name": "front",
        "connect_timeout": "10s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{v3}.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {f"{version}_protocol_options": {}},
            }
        },
        "transport_socket": {
            "name": f"envoy.transport_sockets.{kind.partition('.')[0]}",
            "typed_config": {"@type": f"{v3}.transport_sockets.{kind}", **context},
        },
        "load_assignment": {"cluster_name": "front", "endpoints": [{"lb_endpoints": lb_endpoints([front])}]},
    }
    manager = {
        "@type": f"{v3}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "clients",
        "http_filters": [
            {"name": "router", "typed_config": {"@type": f"{v3}.filters.http.router.v3.Router"}},
        ],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "any",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "front", "timeout": "0s"}}],
                }
            ]
        },
    }
    with _kept_port() as port:
        listener = {
            "address": {"socket_address": {"address": LOOPBACK, "port_value": port}},
            "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
        }
        config: Config = {"static_resources": {"listeners": [listener], "clusters": [to_front]}}
        async with _running(directory / "translator", config):
            yield Address(LOOPBACK, port)


@asynccontextmanager
async def _running(file: Path, config: Config) -> AsyncIterator[None]:
    """Run Envoy by a configuration; `file` is the path of its files without their suffix.

    `config` receives the address of the administration interface, which Envoy chooses: no other one has it.
    """
    try:
        program = find_binary("envoy", package="envoy", inside="_bin/envoy", distribution="penstock-lab[bench]")
    except MissingBinary as missing:
        pytest.skip(str(missing))
    admin = {"address": LOOPBACK, "port_value": 0}
    config["admin"] = {"address": {"socket_address": admin}}
    written, chosen = file.with_suffix(".yaml"), file.with_suffix(".admin")
    written.write_text(yaml.safe_dump(config))
    chosen.unlink(missing_ok=True)
    options = ["--use-dynamic-base-id", "--concurrency", "1", "-l", "warning", "--drain-time-s", "0"]
    options += ["--admin-address-path", str(chosen)]

    def is_ready() -> bool:
        try:
            port = int(chosen.read_text().rpartition(":")[2])
            is_up = httpx.get(f"http://{LOOPBACK}:{port}/ready", timeout=1.0).status_code == 200
        except (OSError, ValueError, httpx.HTTPError):
            return False
        admin["port_value"] = port
        return is_up

    argv = [str(program), "-c", str(written), *options]
    process = ServerProcess("envoy", argv, log_path=file.with_suffix(".log"), ready=is_ready)
    await asyncio.to_thread(process.start)
    try:
        await asyncio.to_thread(process.wait_ready, PATIENCE_S)
        yield
    finally:
        await asyncio.to_thread(process.kill)
