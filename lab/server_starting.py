"""Starts a server on a configured port, and retries with other ports if the port is in use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from adapters.servers.errors import PortTaken
from adapters.servers.etcd import EtcdServer, EtcdSettings
from adapters.servers.free_ports import free_ports
from adapters.servers.process import ServerProcess

PORT_TRIES = 5

Server = TypeVar("Server", bound=ServerProcess)


def start_server(make: Callable[[], Server], *, tries: int, timeout_s: float) -> Server:
    """Start a server and wait until it is ready.

    Args:
        make: creates the server with new ports; called for each attempt.
        tries: maximum number of attempts; 1 for fixed ports.
        timeout_s: maximum time (s) until the server is ready, for each attempt.

    Raises:
        PortTaken: the port was in use in every attempt.
        NotReady: the server is not ready within `timeout_s`; it was killed.
    """
    while True:
        server = make()
        tries -= 1
        try:
            server.start()
            server.wait_ready(timeout_s)
            return server
        except PortTaken:
            if tries <= 0:
                raise
        except BaseException:
            server.kill()
            raise


def start_etcd(
    directory: Path, *, client_port: int | None = None, timeout_s: float = 15.0, quota_bytes: int = 0
) -> EtcdServer:
    """Start a cluster of one etcd member and wait until it is ready.

    Args:
        client_port: loopback port for clients; None selects a free port.
        quota_bytes: maximum size of the database (bytes); 0 for the default of etcd.

    Raises:
        MissingBinary: etcd is not installed.
        PortTaken: `client_port` is in use.
        NotReady: etcd is not ready within `timeout_s`.
    """

    def make() -> EtcdServer:
        free_client_port, peer_port = free_ports(2)
        return EtcdServer(
            directory,
            client_port=client_port or free_client_port,
            peer_port=peer_port,
            settings=EtcdSettings(quota_bytes),
        )

    return start_server(make, tries=PORT_TRIES, timeout_s=timeout_s)
