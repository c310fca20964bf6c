"""Where the checkout is, and the folder of shared data that may stand beside it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
POLICIES = ROOT / "policies"
PLANET = POLICIES / "planet"
SHARED_DATA = ROOT.parent / "shared" / "data"
"""Real traces, GeoIP databases and latencies. Tests that need them are skipped where the folder is absent."""
