"""The compiled agent, if `make wheel` built one. Benchmarks measure it, since production installs it."""

from __future__ import annotations

import sys
from pathlib import Path

COMPILED = Path(sys.prefix) / "compiled"
"""The unpacked wheel of `make wheel`; the Makefile has the same path."""


def environment() -> dict[str, str]:
    """Return the environment in which Penstock's processes run compiled; empty if nothing is compiled."""
    return {"PYTHONPATH": str(COMPILED)} if is_there() else {}


def is_there() -> bool:
    """Whether a compiled agent exists."""
    return any(COMPILED.glob("*__mypyc*"))


def form() -> str:
    """Return a description of how agents run."""
    return "agents compiled with mypyc" if is_there() else "agents interpreted: `make` found no C compiler"
