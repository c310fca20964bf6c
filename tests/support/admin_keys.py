"""A key for the admin listeners of agents, and for the metrics of control planes."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

ADMIN_KEY = "a-key-of-the-tests-for-agents"
ADMIN_HEADERS = {"authorization": f"Bearer {ADMIN_KEY}"}


def write_admin_keys(path: Path, key: str = ADMIN_KEY, role: str = "viewer") -> Path:
    """Write a file of API keys with one key; returns its path."""
    digest = sha256(key.encode()).hexdigest()
    path.write_text(f"- {{name: tests, sha256: {digest}, role: {role}}}\n")
    return path
