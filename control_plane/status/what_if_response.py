"""What POST /v1/what-if answers."""

from __future__ import annotations

import msgspec

from penstock.what_if.moved_demand import Move
from penstock.what_if.totals import Totals


class WhatIf(msgspec.Struct, frozen=True):
    """One demand today and as proposed, side by side."""

    before: Totals
    """Under the policy in force, with nothing lost."""
    after: Totals
    moves: tuple[Move, ...]
    """Who is served elsewhere or refused then; the most first, at most 500."""
    moved_per_s: float
    """Requests that move, in all."""
    policy_before: str
    """Digest."""
    policy_after: str
    demand: str
    """Whether it was given, or made up."""
    fleet: str
    """Whether it is what regions report now, or made up because none does."""
