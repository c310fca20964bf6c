"""Generates the secrets of a lab fleet, in files that only their owner can read."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from adapters.files.authority_files import create_authority, issue_identity
from adapters.servers.free_ports import LOOPBACK
from lab.planet.configs import (
    ADMIN_TOKEN_FILE,
    AGENTS_API_KEYS_FILE,
    AGENTS_KEY_FILE,
    AUTHORITY_DIR,
    agent_identity_dir,
    control_plane_identity_dir,
    write_json,
)
from penstock.wire.identity import ProcessRole, SpiffeId

FLEET = "lab"


def write_secrets(directory: Path, agents: Iterable[tuple[str, str]], control_planes: Iterable[str]) -> None:
    """Write the admin token, the agents' API key, the certificate authority, and a certificate for each process.

    Args:
        directory: directory of the fleet.
        agents: region and name of each agent.
        control_planes: names of the control planes.
    """
    write_secret(directory / ADMIN_TOKEN_FILE, secrets.token_hex(32))
    key = secrets.token_hex(32)
    write_secret(directory / AGENTS_KEY_FILE, key)
    entry = {"name": FLEET, "sha256": sha256(key.encode()).hexdigest(), "role": "viewer"}
    write_json(directory / AGENTS_API_KEYS_FILE, [entry])
    authority = create_authority(directory / AUTHORITY_DIR, FLEET)
    hosts = (LOOPBACK, "localhost")
    for region, name in agents:
        agent = SpiffeId(FLEET, ProcessRole.AGENT, name, region)
        issue_identity(authority, agent, hosts, agent_identity_dir(directory, region, name))
    for name in control_planes:
        control_plane = SpiffeId(FLEET, ProcessRole.CONTROL_PLANE, name)
        issue_identity(authority, control_plane, hosts, control_plane_identity_dir(directory, name))


def write_secret(path: Path, secret: str) -> None:
    """Write a secret to a file of mode 0600."""
    path.touch(mode=0o600)
    path.write_text(secret + "\n", encoding="ascii")


def read_secret_line(path: Path) -> str:
    """Return the secret of a file that `write_secret` wrote."""
    return path.read_text(encoding="ascii").strip()
