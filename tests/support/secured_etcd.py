"""An etcd that requires client certificates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.servers.etcd import EtcdServer
from lab.servers.free_ports import LOOPBACK, free_ports
from lab.servers.process import ServerProcess
from lab.servers.readiness import tcp_reply
from lab.servers.starting import PORT_TRIES, start_server
from tests.support.wait import PATIENCE_S


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
    flags = [
        "--client-cert-auth",
        f"--trusted-ca-file={authority}",
        f"--cert-file={certificate}",
        f"--key-file={key}",
    ]
    endpoints: list[str] = []

    def make() -> ServerProcess:
        client_port, peer_port = free_ports(2)
        plain = EtcdServer(directory, client_port=client_port, peer_port=peer_port)
        endpoints.append(plain.endpoint)
        argv = [flag.replace(f"http://{plain.endpoint}", f"https://{plain.endpoint}") for flag in plain.argv]
        return ServerProcess(
            "etcd",
            [*argv, *flags],
            log_path=directory.with_suffix(".log"),
            # Ready once the port accepts connections: a request would need a certificate.
            ready=tcp_reply(LOOPBACK, client_port, b"", b""),
            ports=(client_port, peer_port),
        )

    server = start_server(make, tries=PORT_TRIES, timeout_s=PATIENCE_S)
    try:
        yield endpoints[-1]
    finally:
        server.stop()
