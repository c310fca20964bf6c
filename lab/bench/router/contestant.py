"""The systems under test: an agent, and each peer that could be started."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from adapters.servers.errors import ServerError
from adapters.servers.free_ports import LOOPBACK, free_ports
from adapters.servers.process import ServerProcess
from adapters.servers.readiness import http_ok
from lab.bench.compiled import Build
from lab.bench.cores import Cores
from lab.bench.peers.bare_relay import BareRelay
from lab.bench.peers.envoy import Envoy
from lab.bench.peers.haproxy import Haproxy
from lab.bench.peers.inference_routers import SGLANG_ROUTER, VLLM_ROUTER
from lab.bench.peers.nginx import Nginx
from lab.bench.peers.peer import Peer
from lab.bench.peers.running import start_peer
from lab.bench.router.chat import MODEL
from lab.bench.site import SETTINGS, agents_of, make_site, traffic_ports
from lab.envoy_picker import start_envoy_with_picker
from lab.planet.bundle import bench_router_bundle, write_bundle
from lab.planet.topology import Engine
from lab.server_starting import PORT_TRIES, start_server

PENSTOCK = "penstock"
WITH_PICKER = "envoy + picker"
"""Name of Envoy with the agent as its endpoint picker."""

BASELINE = "baseline"
"""Name of the other build of Penstock in the results."""

PEERS: tuple[Peer, ...] = (Nginx(), Haproxy(), Envoy(), VLLM_ROUTER, SGLANG_ROUTER, BareRelay())

BACKENDS = 4
"""Number of backends, which are listeners of one process."""

SLOTS = 4096
"""Slots of each backend in the agent's configuration, high enough that no limit applies."""


class Contestant(msgspec.Struct, frozen=True):
    """One system under test, running."""

    name: str
    version: str
    settings: tuple[str, ...]
    process: ServerProcess
    port: int
    beside: tuple[ServerProcess, ...] = ()
    """Further processes whose cost counts: the agent whose picker an Envoy asks."""

    @property
    def processes(self) -> tuple[ServerProcess, ...]:
        """All processes whose cost counts."""
        return self.process, *self.beside


class Field(msgspec.Struct, frozen=True):
    """All running systems."""

    backends: tuple[int, ...]
    """Ports of the backends."""
    contestants: tuple[Contestant, ...]
    missing: dict[str, str]
    """Reasons why peers could not be started, by name."""


@contextmanager
def start_field(
    directory: Path,
    cores: Cores,
    peers: Sequence[Peer] = PEERS,
    *,
    baseline: Build | None = None,
    continue_streams: bool,
) -> Iterator[Field]:
    """Start the backends, the agent with all its dependencies, the same of another build, and every installed peer.

    Args:
        directory: directory for all files; must be empty.
        cores: division of the cores; this process must already be restricted to the cores of the load.
        peers: peers to start.
        baseline: the other build of Penstock to compare with; None compares with none.
        continue_streams: whether agents prepare to continue every stream, which no peer does.

    Raises:
        ServerError: the backends or Penstock do not start. A peer that does not start is `missing`.
    """
    with ExitStack() as running:
        process, backends = start_backends(directory)
        running.callback(process.kill)
        engines = [Engine(f"backend-{number}", MODEL, "h100", "a", SLOTS) for number in range(BACKENDS)]
        listen = {engine.name: port for engine, port in zip(engines, backends, strict=True)}
        builds = {PENSTOCK: Build()} | ({} if baseline is None else {BASELINE: baseline})
        agents = []
        for name, build in builds.items():
            bundle = directory / f"{name}-policy"
            write_bundle(bundle, bench_router_bundle(build.bundle, continue_streams=continue_streams))
            run = Build(build.compiled, bundle)
            site = running.enter_context(make_site(engines, listen, 1, directory / name, run, cores.router))
            policy = f"continue_streams: {str(continue_streams).lower()} in all models"
            settings = (*SETTINGS, policy, build.form(), f"build: {build.compiled}")
            version = importlib.metadata.version(PENSTOCK)
            agents.append(Contestant(name, version, settings, agents_of(site)[0], traffic_ports(site)[0]))
        if any(peer.name == Envoy.name for peer in peers):
            with suppress(ServerError):  # Envoy is missing, as the peer of this name reports
                agents.append(_start_with_picker(directory / "picker", engines, listen, cores.router, running))
        others, missing = start_peers(peers, directory, backends, cores.router, running)
        yield Field(backends, (*agents, *others), missing)


def _start_with_picker(
    directory: Path, engines: Sequence[Engine], listen: dict[str, int], core: int, running: ExitStack
) -> Contestant:
    """Start an agent, and an Envoy that asks it for the endpoint of each request."""
    picker = free_ports(1)[0]
    build = Build(settings={"PENSTOCK_AGENT_PICKER_LISTEN": f"{LOOPBACK}:{picker}"})
    agent = agents_of(running.enter_context(make_site(engines, listen, 1, directory / "site", build, core)))[0]
    envoy, port = start_envoy_with_picker(directory, core, picker, list(listen.values()))
    running.callback(envoy.kill)
    settings = (*SETTINGS, "deploy/gateways/envoy-picker.yaml; both processes on the core of the router", build.form())
    return Contestant(WITH_PICKER, Envoy().version(), settings, envoy, port, (agent,))


def start_peers(
    peers: Sequence[Peer], directory: Path, backends: Sequence[int], core: int | None, running: ExitStack
) -> tuple[list[Contestant], dict[str, str]]:
    """Start the peers. Returns the started peers and the reasons for failure by name; `running` stops the peers."""
    contestants, missing = [], {}
    for peer in peers:
        try:
            version = peer.version()
            process = start_peer(peer, directory / peer.name, backends, core)
        except ServerError as error:
            missing[peer.name] = " ".join(str(error).split())
            continue
        running.callback(process.stop)
        contestants.append(Contestant(peer.name, version, peer.settings, process, process.port))
    return contestants, missing


def start_backends(directory: Path) -> tuple[ServerProcess, tuple[int, ...]]:
    """Start the backends; returns their process and their ports."""
    ports: list[int] = []

    def make() -> ServerProcess:
        ports[:] = free_ports(BACKENDS)
        return ServerProcess(
            "backends",
            [sys.executable, "-m", "lab.bench.router.backends", *map(str, ports)],
            log_path=directory / "backends.log",
            ready=http_ok(f"http://{LOOPBACK}:{ports[-1]}/health"),
            ports=ports,
        )

    process = start_server(make, tries=PORT_TRIES, timeout_s=15.0)
    return process, tuple(ports)
