"""Runs the lab's router by SkyWalker's rule, in one region as a peer, or one process for several regions."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from adapters.servers.free_ports import LOOPBACK, free_ports
from adapters.servers.process import ServerProcess
from adapters.servers.readiness import http_ok
from lab.bench.outside.skywalker_router import RegionConfig, RouterConfig
from lab.bench.peers.peer import READY_PATH, Launch
from lab.bench.peers.running import READY_S
from lab.planet.configs import url
from lab.planet.topology import Engine
from lab.server_starting import PORT_TRIES, start_server
from lab.wan.matrix import RttMatrix

NAME: Final = "skywalker-rule"

FILE: Final = "skywalker.json"


class SkyWalkerPeer:
    """The rule in one region."""

    name = NAME
    settings = (
        "the rule of the paper (EuroSys 2026) in a router of the lab, as there is no package of it: the longest match"
        " among engines without pending requests, else the region with the longest match among those with such an"
        " engine",
        "one process for all regions, which knows their state exactly; no authentication, no policy, no health probes",
    )

    def __init__(self, slots: int) -> None:
        """Route to engines that run `slots` requests at once."""
        self._slots = slots

    def version(self) -> str:
        """As `Peer.version`."""
        return "the lab's"

    def launch(self, directory: Path, port: int, backends: Sequence[int]) -> Launch:
        """As `Peer.launch`."""
        config = RouterConfig({"here": RegionConfig(port, dict.fromkeys(backends, self._slots), {})})
        return Launch(_argv(directory), {FILE: msgspec.json.encode(config).decode()}, READY_PATH)


@contextmanager
def running_skywalker(
    engines: Mapping[str, Sequence[Engine]], engine_ports: Mapping[str, int], matrix: RttMatrix, directory: Path
) -> Iterator[dict[str, str]]:
    """Run the router of all regions during the context, and yield the URL of each region's entry.

    Args:
        engines: the engines by region.
        engine_ports: their ports by name.
        matrix: round trips between the regions.
        directory: directory for the configuration and the log.
    """
    urls: dict[str, str] = {}

    def make() -> ServerProcess:
        ports = dict(zip(engines, free_ports(len(engines)), strict=True))
        regions = {
            name: RegionConfig(
                port,
                {engine_ports[engine.name]: engine.max_num_seqs for engine in engines[name]},
                {other: matrix.between(name, other) for other in engines if other != name},
            )
            for name, port in ports.items()
        }
        directory.mkdir(parents=True, exist_ok=True)
        (directory / FILE).write_bytes(msgspec.json.encode(RouterConfig(regions)))
        urls.update({name: url(port) for name, port in ports.items()})
        checks = [http_ok(f"http://{LOOPBACK}:{port}{READY_PATH}") for port in ports.values()]
        return ServerProcess(
            NAME,
            _argv(directory),
            log_path=directory / f"{NAME}.log",
            ready=lambda: all(check() for check in checks),
            ports=list(ports.values()),
        )

    process = start_server(make, tries=PORT_TRIES, timeout_s=READY_S)
    try:
        yield urls
    finally:
        process.stop()


def _argv(directory: Path) -> tuple[str, ...]:
    return (sys.executable, "-m", "lab.bench.outside.skywalker_router", "--config", str(directory / FILE))
