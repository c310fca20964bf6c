"""Runs a peer as a process that ends with this process, optionally on a separate core."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from adapters.servers.free_ports import LOOPBACK, free_ports
from adapters.servers.process import ServerProcess
from adapters.servers.readiness import http_ok
from lab.bench.cores import pinned_to
from lab.bench.peers.peer import Peer
from lab.server_starting import PORT_TRIES, start_server

READY_S = 30.0


class PeerProcess(ServerProcess):
    """One instance of a peer.

    Args:
        peer: the peer to run.
        directory: directory of this instance only; created if missing.
        port: loopback port for clients.
        backends: loopback ports of the endpoints.
        core: the only core that the peer may use; None for any core.

    Raises:
        MissingBinary: the peer is not installed.
    """

    def __init__(self, peer: Peer, directory: Path, port: int, backends: Sequence[int], core: int | None) -> None:
        self.port = port
        directory.mkdir(parents=True, exist_ok=True)
        launch = peer.launch(directory.resolve(), port, backends)
        for name, content in launch.files.items():
            (directory / name).write_text(content, encoding="utf-8")
        super().__init__(
            peer.name,
            launch.argv if core is None else pinned_to(core, launch.argv),
            log_path=directory / f"{peer.name}.log",
            ready=http_ok(f"http://{LOOPBACK}:{port}{launch.ready_path}"),
            ports=(port,),
        )


def start_peer(peer: Peer, directory: Path, backends: Sequence[int], core: int | None = None) -> PeerProcess:
    """Start a peer on a free port and wait until it is ready.

    Raises:
        MissingBinary: the peer is not installed.
        NotReady: the peer is not ready in time.
    """
    return start_server(
        lambda: PeerProcess(peer, directory, free_ports(1)[0], backends, core), tries=PORT_TRIES, timeout_s=READY_S
    )
