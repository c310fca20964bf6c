"""The settings of outlier detection at one agent."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from penstock.health.outlier_ejection import EjectionRules


class OutlierDetection(NamedTuple):
    """The outlier detection settings of all endpoints of an agent."""

    rules: EjectionRules = EjectionRules()
    warm_up_s: float = 30.0
    """Time (s) over which a new endpoint's weight grows to 1."""
    clock: Callable[[], float] = time.monotonic
    rng: Random = Random()
    """Adds jitter to ejection times."""
