"""The compiled agent, where `make` could build one: what is installed in production, and so what is measured."""

from __future__ import annotations

import sys
from pathlib import Path

COMPILED = Path(sys.prefix) / "compiled"
"""Where the wheel that `make wheel` builds is unpacked; the Makefile says the same."""


def environment() -> dict[str, str]:
    """What makes a process of Penstock run compiled; empty where nothing is."""
    return {"PYTHONPATH": str(COMPILED)} if is_there() else {}


def is_there() -> bool:
    """Whether there is a compiled form; without a C compiler there is none."""
    return any(COMPILED.glob("*__mypyc*"))


def form() -> str:
    """How agents run here, for people."""
    return "agents compiled with mypyc" if is_there() else "agents interpreted: `make` found no C compiler"
