"""Number of examples of property tests: a quarter of the full number, or the share that the environment sets."""

from __future__ import annotations

import os

SHARE = float(os.environ.get("PENSTOCK_TEST_EXAMPLES", "0.25"))
"""Share of the examples that property tests run. Every run draws different examples, so a quick run may run fewer;
`make test-stress` runs all."""


def examples(count: int) -> int:
    """Return the number of examples to run if a full run has `count` examples."""
    return max(1, round(count * SHARE))
