"""The secrets of a fleet on one machine: generated for each fleet, and readable by their owner only."""

from __future__ import annotations

import secrets
from pathlib import Path

from lab.planet.configs import ADMIN_TOKEN_FILE, FLEET_KEY_FILE


def write_secrets(directory: Path) -> None:
    """Write the fleet key and the admin token of a new fleet."""
    for name in (FLEET_KEY_FILE, ADMIN_TOKEN_FILE):
        write_secret(directory / name, secrets.token_hex(32))


def write_secret(path: Path, secret: str) -> None:
    """Write one secret as one line."""
    path.touch(mode=0o600)
    path.write_text(secret + "\n", encoding="ascii")
