"""How many of one unit are in another, where a calculation has both."""

from __future__ import annotations

BYTES_PER_GB = 1e9
MS_PER_S = 1000.0
SECONDS_PER_HOUR = 3600.0
