"""Paths of the checkout and of the folder of shared data."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
POLICIES = ROOT / "policies"
PLANET = POLICIES / "planet"
SHARED_DATA = ROOT.parent / "shared" / "data"
"""Real traces, GeoIP databases and latencies. Tests that need the data are skipped if the folder is absent."""
