"""What operators are told of a service objective: what is wanted, and how much of it was attained lately."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.policy.service_objective import ObjectiveReport


class ObjectiveStatus(msgspec.Struct, frozen=True):
    """How the service objective of one model was kept lately, over what came in at one region."""

    model: str
    first_byte_s: float
    """What agents go by: the time (s) within which an answer should begin, ..."""
    share: float
    """... and the part (0-1) that should."""
    answers: int
    """Requests of the last five minutes that were answered, or failed."""
    within: int
    """Those of them that were answered well, beginning in time."""
    attained: float | None
    """The part (0-1) that these are; None of no answers."""
    is_met: bool | None
    """Whether that is enough; None of no answers."""

    @property
    def wanted(self) -> tuple[str, float, float]:
        """What tells objectives apart."""
        return self.model, self.first_byte_s, self.share


def objective_statuses(kept: Iterable[ObjectiveReport | ObjectiveStatus]) -> tuple[ObjectiveStatus, ...]:
    """What several agents or regions tell of objectives, put together by model."""
    counts: dict[tuple[str, float, float], tuple[int, int]] = {}
    for one in kept:
        key = one.wanted
        answers, within = counts.get(key, (0, 0))
        counts[key] = (answers + one.answers, within + one.within)
    return tuple(
        ObjectiveStatus(
            model,
            first_byte_s,
            share,
            answers,
            within,
            within / answers if answers else None,
            within / answers >= share if answers else None,
        )
        for (model, first_byte_s, share), (answers, within) in sorted(counts.items())
    )
