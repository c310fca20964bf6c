"""How many examples property tests make: a quarter of them, or the share that the environment sets."""

from __future__ import annotations

import os

SHARE = float(os.environ.get("PENSTOCK_TEST_EXAMPLES", "0.25"))
"""Share of the examples that every property test makes. Every run draws others, so a quick run may make fewer;
`make test-stress` makes all."""


def examples(count: int) -> int:
    """Return the number of examples to make where a full run makes `count`."""
    return max(1, round(count * SHARE))
