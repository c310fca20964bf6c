"""Examples of property tests: a quarter of all, the same in each run; or a share that the environment sets, anew."""

from __future__ import annotations

import os

VARIABLE = "PENSTOCK_TEST_EXAMPLES"

SHARE = float(os.environ.get(VARIABLE, "0.25"))
"""Share of the examples that property tests run; `make test-stress` runs all."""

DRAWS_ANEW = VARIABLE in os.environ
"""Whether each run draws other examples. Those of `make test` are the same in each run, so that it does not fail for a
defect that an earlier change made."""


def examples(count: int) -> int:
    """Return the number of examples to run if a full run has `count` examples."""
    return max(1, round(count * SHARE))
