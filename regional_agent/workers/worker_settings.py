"""The settings of one worker: the settings of the host with a separate name, identity, state, ports and log file."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from regional_agent.config.settings import AgentSettings
from regional_agent.upstream.address import Address


def worker_settings(settings: AgentSettings, number: int) -> AgentSettings:
    """Return the settings of a worker.

    Args:
        settings: the settings of the host.
        number: number of the worker, from 1.
    """
    name = f"{settings.name}-{number}"
    peer_url, admin_url, log_file = settings.advertise_peer_url, settings.advertise_admin_url, settings.access_log_file
    server_name = settings.advertise_peer_server_name
    if peer_url is not None and server_name is None:
        peer_url = _url(peer_url, number)
    return settings.model_copy(
        update={
            "workers": 1,
            "name": name,
            "identity_dir": settings.identity_dir / name,
            "state_dir": settings.state_dir / name,
            "peer_listen": _address(settings.peer_listen, number),
            "admin_listen": _address(settings.admin_listen, number),
            "advertise_peer_url": peer_url,
            "advertise_peer_server_name": _server_name(server_name, number) if server_name is not None else None,
            "advertise_admin_url": _url(admin_url, number) if admin_url is not None else None,
            "dns_socket": settings.dns_socket if number == 1 else None,
            "access_log_file": _file(log_file, name) if log_file is not None else None,
        }
    )


def _address(listen: Address, number: int) -> Address:
    """Return the address of a worker's listener. Port 0 is kept, so that each worker selects a free port."""
    return listen._replace(port=listen.port + number - 1) if listen.port else listen


def _url(url: str, number: int) -> str:
    parts = urlsplit(url)
    host, _, port = parts.netloc.rpartition(":")
    return parts._replace(netloc=f"{host}:{int(port) + number - 1}").geturl()


def _server_name(name: str, number: int) -> str:
    """Return the name of a worker behind a gateway: workers share its port, and differ in the first label."""
    label, dot, rest = name.partition(".")
    return f"{label}-{number}{dot}{rest}"


def _file(path: Path, name: str) -> Path:
    return path.with_name(f"{path.stem}-{name}{path.suffix}")
