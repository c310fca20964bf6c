"""How many examples property tests make: all of them, or the share that the environment sets."""

from __future__ import annotations

import os

SHARE = float(os.environ.get("PENSTOCK_TEST_EXAMPLES", "1"))
"""Share of the examples that every property test makes: `.ci/run` lowers it; above 1, a search takes longer."""


def examples(count: int) -> int:
    """Return the number of examples to make where a full run makes `count`."""
    return max(1, round(count * SHARE))
