"""The fleet's shared secret as a file: one key a line, newest first, the same for agents and control planes."""

from __future__ import annotations

from pathlib import Path

from adapters.secret_file import read_secrets
from penstock.wire.signing import MIN_KEY_BYTES, FleetKey

_REMEDY = "make one with `openssl rand -hex 32` and give the same file to every agent and control plane"


def load_fleet_key(path: Path) -> FleetKey:
    """Read the keys of a file.

    Raises:
        BadSecret: the file cannot be used.
    """
    return FleetKey(*read_secrets(path, "fleet key", min_bytes=MIN_KEY_BYTES, remedy=_REMEDY))
