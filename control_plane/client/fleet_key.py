"""The fleet's shared secret as a file: one key a line, newest first, the same for agents and control planes."""

from __future__ import annotations

from pathlib import Path

from penstock.signing import SHORTEST_KEY_BYTES, FleetKey

LARGEST_FILE_BYTES = 64 * 1024
"""A key file is a few lines; anything larger is another file."""


class BadFleetKey(Exception):
    """The key file cannot be used; the message names the file and the remedy, never its content."""


def load_fleet_key(path: Path) -> FleetKey:
    """Read the secrets of a key file; blank lines and the space around a key do not count.

    Raises:
        BadFleetKey: the file is missing, unreadable, too large, empty, or a key in it is too short.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise BadFleetKey(f"{path}: cannot read the fleet key: {error.strerror}; {_REMEDY}") from None
    if len(content) > LARGEST_FILE_BYTES:
        raise BadFleetKey(f"{path}: more than {LARGEST_FILE_BYTES} bytes is no fleet key; {_REMEDY}")
    keys = [line.strip() for line in content.splitlines() if line.strip()]
    if not keys:
        raise BadFleetKey(f"{path}: the fleet key file is empty; {_REMEDY}")
    for number, key in enumerate(keys, start=1):
        if len(key) < SHORTEST_KEY_BYTES:
            raise BadFleetKey(f"{path}: key {number} has {len(key)} bytes, fewer than {SHORTEST_KEY_BYTES}; {_REMEDY}")
    return FleetKey(*keys)


_REMEDY = "make one with `openssl rand -hex 32` and give the same file to every agent and control plane"
