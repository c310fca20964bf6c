"""The completion window of a job, which gives its deadline, and the forecast of a batch's completion."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from penstock.jobs.job_records import BatchRecord, Claim

MAX_WINDOW_S: Final = 14 * 86_400
"""Maximum completion window (s)."""

DEFAULT_WINDOW: Final = "24h"

NO_DEADLINE: Final = 253_402_300_799
"""Unix time (s) at which a job with the window `none` expires: the end of the year 9999."""

_WINDOW: Final = re.compile(r"([1-9][0-9]{0,3})([hd])")
_UNIT_S: Final = {"h": 3600, "d": 86_400}


def deadline_of(window: str, created_at: int) -> int | None:
    """The deadline (Unix time, s) of a job by its window, such as `24h`, `7d` or `none`.

    None for a window that is malformed or longer than MAX_WINDOW_S.
    """
    if window == "none":
        return NO_DEADLINE
    found = _WINDOW.fullmatch(window)
    if found is None:
        return None
    seconds = int(found[1]) * _UNIT_S[found[2]]
    return created_at + seconds if seconds <= MAX_WINDOW_S else None


def shown_deadline(expires_at: int) -> int | None:
    """The deadline as APIs show it: None for a job without one."""
    return None if expires_at == NO_DEADLINE else expires_at


def expected_at(batch: BatchRecord, claim: Claim | None, now: float) -> int | None:
    """Unix time (s) at which a running batch would be complete by its rate so far; None if unknown.

    A time after `expires_at` says that requests will expire.

    Args:
        claim: the newest claim, with the progress.
        now: Unix time (s).
    """
    if claim is None or claim.per_s <= 0.0:
        return None
    left = batch.requests - claim.counts.completed - claim.counts.failed
    return int(now + max(0, left) / claim.per_s)


def expected_of_waiting(
    requests: int, running: Iterable[tuple[int, float]], last_per_s: float, now: float
) -> int | None:
    """Unix time (s) at which a batch that no agent runs yet would be complete, behind those that run; None while no
    request of a batch has ended.

    Args:
        requests: of the batch.
        running: requests left of each batch that runs, and its rate (1/s) so far.
        last_per_s: rate of the last batch that has ended, which counts if none runs; 0 for none.
    """
    found = list(running)
    per_s = sum(rate for _, rate in found) if found else last_per_s
    return int(now + (requests + sum(left for left, _ in found)) / per_s) if per_s > 0.0 else None
