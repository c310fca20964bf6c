"""The secrets of a fleet on one machine: generated for each fleet, and readable by their owner only."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path

from adapters.authority_files import create_authority, issue_identity
from lab.planet.configs import ADMIN_TOKEN_FILE, AUTHORITY_DIR, agent_identity_dir, control_plane_identity_dir
from lab.servers.free_ports import LOOPBACK
from penstock.wire.identity import ProcessRole, SpiffeId

FLEET = "lab"


def write_secrets(directory: Path, agents: Iterable[tuple[str, str]], control_planes: Iterable[str]) -> None:
    """Write the admin token of a new fleet, its certificate authority, and a certificate for each process.

    Args:
        directory: of the fleet.
        agents: region and name of each.
        control_planes: their names.
    """
    write_secret(directory / ADMIN_TOKEN_FILE, secrets.token_hex(32))
    authority = create_authority(directory / AUTHORITY_DIR, FLEET)
    hosts = (LOOPBACK, "localhost")
    for region, name in agents:
        agent = SpiffeId(FLEET, ProcessRole.AGENT, name, region)
        issue_identity(authority, agent, hosts, agent_identity_dir(directory, region, name))
    for name in control_planes:
        control_plane = SpiffeId(FLEET, ProcessRole.CONTROL_PLANE, name)
        issue_identity(authority, control_plane, hosts, control_plane_identity_dir(directory, name))


def write_secret(path: Path, secret: str) -> None:
    """Write one secret as one line."""
    path.touch(mode=0o600)
    path.write_text(secret + "\n", encoding="ascii")
