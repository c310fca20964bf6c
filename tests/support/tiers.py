"""The planet's policy with two tiers, for tenants that the API creates."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.paths import PLANET

TIERS = """\
apiVersion: penstock/v1
kind: Tier
name: gold
data_class: personal
priority: 3
budgets: [{unit: tokens_per_minute, limit: 1000}]
---
apiVersion: penstock/v1
kind: Tier
name: free
data_class: open
"""


def planet_with_tiers(folder: Path) -> Path:
    """Copy the planet's policy into a new folder, with the tiers gold and free."""
    shutil.copytree(PLANET, folder)
    (folder / "tiers.yaml").write_text(TIERS)
    return folder
