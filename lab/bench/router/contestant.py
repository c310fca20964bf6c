"""Everything that is measured in the same way: an agent, and each peer that could be started."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from lab.bench import compiled
from lab.bench.cores import Cores
from lab.bench.peers.bare_relay import BareRelay
from lab.bench.peers.envoy import Envoy
from lab.bench.peers.haproxy import Haproxy
from lab.bench.peers.inference_routers import SGLANG_ROUTER, VLLM_ROUTER
from lab.bench.peers.nginx import Nginx
from lab.bench.peers.peer import Peer
from lab.bench.peers.running import start_peer
from lab.bench.router.chat import MODEL
from lab.bench.site import SETTINGS, Site
from lab.planet.topology import Engine
from lab.servers.errors import ServerError
from lab.servers.free_ports import LOOPBACK, free_ports
from lab.servers.process import ServerProcess
from lab.servers.readiness import http_ok
from lab.servers.starting import PORT_TRIES, start_server

PENSTOCK = "penstock"

PEERS: tuple[Peer, ...] = (Nginx(), Haproxy(), Envoy(), VLLM_ROUTER, SGLANG_ROUTER, BareRelay())

BACKENDS = 4
"""Listeners of the one process that answers for all of them."""

SLOTS = 4096
"""Slots of each backend in the agent's configuration, high enough that no limit applies."""


class Contestant(msgspec.Struct, frozen=True):
    """One system under test, running."""

    name: str
    version: str
    settings: tuple[str, ...]
    process: ServerProcess
    port: int


class Field(msgspec.Struct, frozen=True):
    """Everything that runs."""

    backends: tuple[int, ...]
    """Their ports."""
    contestants: tuple[Contestant, ...]
    missing: dict[str, str]
    """Why a peer is not among them."""


@contextmanager
def start_field(directory: Path, cores: Cores, peers: Sequence[Peer] = PEERS) -> Iterator[Field]:
    """Start backends, the agent with all it leans on, and every peer that is installed.

    Args:
        directory: for their files; has to be empty.
        cores: how the machine is divided; this process has to keep to those of the load already.
        peers: whom to compare with.

    Raises:
        ServerError: the backends or a process of Penstock's do not start. A peer that does not is `missing`.
    """
    with ExitStack() as running:
        backends = _start_backends(directory)
        running.callback(backends.process.kill)
        engines = [Engine(f"backend-{number}", MODEL, "h100", "a", SLOTS) for number in range(BACKENDS)]
        listen = {engine.name: port for engine, port in zip(engines, backends.ports, strict=True)}
        site = Site(engines, listen, agents=1, directory=directory / PENSTOCK, core=cores.router)
        running.enter_context(site)
        version = importlib.metadata.version(PENSTOCK)
        agent = Contestant(PENSTOCK, version, (*SETTINGS, compiled.form()), site.agents[0], site.traffic_ports[0])
        others, missing = start_peers(peers, directory, backends.ports, cores.router, running)
        yield Field(backends.ports, (agent, *others), missing)


def start_peers(
    peers: Sequence[Peer], directory: Path, backends: Sequence[int], core: int | None, running: ExitStack
) -> tuple[list[Contestant], dict[str, str]]:
    """Those that could be started, and for each of the others, by name, why not; `running` stops them."""
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


class _Backends(msgspec.Struct, frozen=True):
    process: ServerProcess
    ports: tuple[int, ...]


def _start_backends(directory: Path) -> _Backends:
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
    return _Backends(process, tuple(ports))
