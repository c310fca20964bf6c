from __future__ import annotations

import pytest

from penstock.retries.busy_rest import busy_rest_s


@pytest.mark.parametrize(("waited_s", "rest_s"), [(0.0, 0.5), (2.0, 0.5), (8.0, 2.0), (16.0, 4.0), (600.0, 4.0)])
def test_the_rest_grows_with_the_wait_within_bounds(waited_s: float, rest_s: float) -> None:
    assert busy_rest_s(waited_s) == rest_s
