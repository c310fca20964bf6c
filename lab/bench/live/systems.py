"""The balancers that are compared, each with the settings that balance best for the engines."""

from __future__ import annotations

import importlib.metadata

from lab.bench.compiled import Build
from lab.bench.live.bench_live_report import PENSTOCK, System
from lab.bench.peers.envoy import Envoy
from lab.bench.peers.haproxy import Haproxy
from lab.bench.peers.inference_routers import AT_THEIR_BEST
from lab.bench.peers.nginx import Nginx
from lab.bench.peers.peer import Peer
from lab.bench.site import SETTINGS
from lab.planet.configs import QUEUE_PER_ENGINE


def peers_for(slots: int, instances: int) -> tuple[Peer, ...]:
    """Return all balancers except Penstock.

    Args:
        slots: number of requests that each engine runs concurrently.
        instances: number of instances of the balancer, which share the slots and queue of an engine.
    """
    max_connections = -(-(slots + QUEUE_PER_ENGINE) // instances)
    return (Envoy(full_scan=True), Haproxy(), Haproxy(max_connections), Nginx(), *AT_THEIR_BEST)


PEER_NAMES = tuple(peer.name for peer in peers_for(1, 1))


def system_of(peer: Peer | None) -> System:
    """Describe a balancer for the results; None is Penstock. Raises MissingBinary if the balancer is not installed."""
    if peer is not None:
        return System(peer.name, peer.version(), peer.settings)
    known = f"per engine: its accelerator, its slots and {QUEUE_PER_ENGINE} queue place"
    return System(PENSTOCK, importlib.metadata.version(PENSTOCK), (*SETTINGS, Build().form(), known))
