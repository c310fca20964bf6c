"""A peer as a process that dies with us, on a core of its own where it is given one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.bench.cores import pinned_to
from lab.bench.peers.peer import Peer
from lab.servers.free_ports import LOOPBACK, free_ports
from lab.servers.process import ServerProcess
from lab.servers.readiness import http_ok
from lab.servers.starting import PORT_TRIES, start_server

READY_S = 30.0


class PeerProcess(ServerProcess):
    """One instance of a peer.

    Args:
        peer: what to run.
        directory: of this instance alone; made if it is missing.
        port: loopback port for clients.
        backends: loopback ports of the endpoints behind it.
        core: the only core that it may use; None leaves it to the kernel.

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
    """A peer that serves, on a free port.

    Raises:
        MissingBinary: it is not installed.
        NotReady: it does not serve in time.
    """
    return start_server(
        lambda: PeerProcess(peer, directory, free_ports(1)[0], backends, core), tries=PORT_TRIES, timeout_s=READY_S
    )
