"""Builds of Penstock to run: what `make wheel` compiled. Benchmarks measure it, since production installs it."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from lab.planet.bundle import SHIPPED_BUNDLE

COMPILED = Path(sys.prefix) / "compiled"
"""The unpacked wheel of `make wheel`; the Makefile has the same path."""


class Build(msgspec.Struct, frozen=True):
    """A build of Penstock, and the policy bundle that it runs with."""

    compiled: Path = COMPILED
    """Directory of the unpacked wheel."""
    bundle: Path = SHIPPED_BUNDLE
    settings: dict[str, str] = {}
    """Environment variables with further settings of the agents."""

    @property
    def is_compiled(self) -> bool:
        """Whether the wheel has a compiled agent."""
        return any(self.compiled.glob("*__mypyc*"))

    def environment(self) -> dict[str, str]:
        """Return the additional environment in which Penstock's processes run this build."""
        return ({"PYTHONPATH": str(self.compiled)} if self.is_compiled else {}) | self.settings

    def form(self) -> str:
        """Return a description of how agents run."""
        return "agents compiled with mypyc" if self.is_compiled else "agents interpreted: `make` found no C compiler"


def build_of(checkout: Path) -> Build:
    """Return the build that `make wheel` left in another checkout, with the policy bundle of that checkout.

    Raises:
        FileNotFoundError: the checkout has no compiled agent.
    """
    checkout = checkout.resolve()
    build = Build(checkout / ".venv" / COMPILED.name, checkout / "policies" / "planet")
    if not build.is_compiled:
        raise FileNotFoundError(f"{checkout} has no compiled agent; run `make wheel` there")
    return build
