"""An etcd that requires client certificates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adapters.servers.etcd import EtcdServer
from adapters.servers.process import ServerProcess
from tests.support.reserved_ports import reserved_ports


@contextmanager
def secured_etcd(directory: Path, certificates: Path, name: str) -> Iterator[str]:
    """Run an etcd that requires client certificates and yield its endpoint.

    Args:
        certificates: folder with the certificates of `name` and of the authority (`tests.support.certificates`).
    """
    authority, certificate, key = (certificates / file for file in ("authority.pem", f"{name}.pem", f"{name}.key"))
    with etcd_with_client_cert_auth(directory, authority, certificate, key) as endpoint:
        yield endpoint


@contextmanager
def etcd_with_client_cert_auth(directory: Path, authority: Path, certificate: Path, key: Path) -> Iterator[str]:
    """Run an etcd that requires client certificates of an authority, and yield its endpoint."""
    with reserved_ports(2) as (client_port, peer_port):
        plain = EtcdServer(directory, client_port=client_port, peer_port=peer_port)
        server = ServerProcess(
            "etcd",
            [
                *(flag.replace(f"http://{plain.endpoint}", f"https://{plain.endpoint}") for flag in plain.argv),
                "--client-cert-auth",
                f"--trusted-ca-file={authority}",
                f"--cert-file={certificate}",
                f"--key-file={key}",
            ],
            log_path=directory.with_suffix(".log"),
        )
        server.start()
        try:
            yield plain.endpoint
        finally:
            server.stop()
