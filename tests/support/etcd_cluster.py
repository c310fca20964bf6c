"""An etcd cluster of several members, for tests that lose a member or the quorum."""

from __future__ import annotations

from pathlib import Path

from adapters.servers.etcd import EtcdServer
from adapters.servers.free_ports import LOOPBACK
from tests.support.reserved_ports import reserved_ports


def start_etcd_cluster(directory: Path, *, members: int = 3, timeout_s: float = 30.0) -> tuple[EtcdServer, ...]:
    """Start a cluster and wait until every member is ready.

    Raises:
        MissingBinary: etcd is not installed.
        NotReady, PortTaken: a member is not ready within `timeout_s`.
    """
    with reserved_ports(2 * members) as ports:
        names = [f"etcd-{number}" for number in range(members)]
        peers = {name: f"http://{LOOPBACK}:{port}" for name, port in zip(names, ports[members:], strict=True)}
        servers = tuple(
            EtcdServer(directory / name, client_port=client, peer_port=peer, name=name, peers=peers)
            for name, client, peer in zip(names, ports[:members], ports[members:], strict=True)
        )
        try:
            for server in servers:
                server.start()
            for server in servers:
                server.wait_ready(timeout_s)
        except BaseException:
            for server in servers:
                server.kill()
            raise
    return servers
