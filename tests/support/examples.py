"""How many examples property tests make: all of them, or a share where the environment asks for fewer."""

from __future__ import annotations

import os

SHARE = float(os.environ.get("PENSTOCK_TEST_EXAMPLES", "1"))
"""Share (0-1] of the examples that every property test makes. `.ci/run` lowers it on the second Python version."""


def examples(count: int) -> int:
    """Return the number of examples to make where a full run makes `count`."""
    return max(1, round(count * SHARE))
