"""The completion window of a batch, and the forecast of its completion."""

from __future__ import annotations

import re
from typing import Final

from penstock.jobs.job_records import BatchRecord, Claim

MAX_WINDOW_S: Final = 14 * 86_400
"""Maximum completion window (s)."""

_WINDOW: Final = re.compile(r"([1-9][0-9]{0,3})([hd])")
_UNIT_S: Final = {"h": 3600, "d": 86_400}


def window_s(text: str) -> int | None:
    """The window (s) of a text such as `24h` or `7d`; None if it is malformed or longer than MAX_WINDOW_S."""
    found = _WINDOW.fullmatch(text)
    if found is None:
        return None
    seconds = int(found[1]) * _UNIT_S[found[2]]
    return seconds if seconds <= MAX_WINDOW_S else None


def expected_at(batch: BatchRecord, claim: Claim | None, now: float) -> int | None:
    """Unix time (s) at which a running batch is expected to be complete, by its rate so far; None if unknown.

    Args:
        claim: the newest claim, with the progress.
        now: Unix time (s).
    """
    if claim is None or claim.per_s <= 0.0:
        return None
    left = batch.requests - claim.counts.completed - claim.counts.failed
    return min(batch.expires_at, int(now + max(0, left) / claim.per_s))
