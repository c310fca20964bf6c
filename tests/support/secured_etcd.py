"""An etcd that asks its clients for certificates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.servers.etcd import EtcdServer
from lab.servers.free_ports import free_ports
from lab.servers.process import ServerProcess


@contextmanager
def secured_etcd(directory: Path, certificates: Path, name: str) -> Iterator[str]:
    """One that runs in `directory`; its endpoint.

    Args:
        certificates: folder with the certificates of `name` and of the authority (`tests.support.certificates`).
    """
    client_port, peer_port = free_ports(2)
    plain = EtcdServer(directory, client_port=client_port, peer_port=peer_port)
    argv = [flag.replace(f"http://{plain.endpoint}", f"https://{plain.endpoint}") for flag in plain.argv]
    flags = [
        "--client-cert-auth",
        f"--trusted-ca-file={certificates / 'authority.pem'}",
        f"--cert-file={certificates / f'{name}.pem'}",
        f"--key-file={certificates / f'{name}.key'}",
    ]
    server = ServerProcess("etcd", [*argv, *flags], log_path=directory.with_suffix(".log"))
    server.start()
    try:
        yield plain.endpoint
    finally:
        server.stop()
