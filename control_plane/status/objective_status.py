"""Status of service objectives: the target, and the share of recent requests that met it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.policy.service_objective import Measure, ObjectiveReport, Wanted


class ObjectiveStatus(msgspec.Struct, frozen=True):
    """One model's service objective and its recent attainment, over the requests that entered at one region."""

    model: str
    limit_s: float
    """Limit (s) of the measured time, by the agents' policy."""
    share: float
    """Target share (0-1) of requests that succeed within `limit_s`."""
    answers: int
    """Requests of the last five minutes that succeeded or failed."""
    within: int
    """Requests of the last five minutes that succeeded within `limit_s`."""
    attained: float | None
    """`within` as a share (0-1) of `answers`; null without requests."""
    is_met: bool | None
    """Whether `attained` is at least `share`; null without requests."""
    measure: Measure = Measure.FIRST_BYTE
    """The measured time: `first_byte` of streams, or `total` of responses that are not streamed."""

    @property
    def wanted(self) -> Wanted:
        """The model and its targets: the key of an objective."""
        return self.model, self.limit_s, self.share, self.measure


def objective_statuses(reports: Iterable[ObjectiveReport | ObjectiveStatus]) -> tuple[ObjectiveStatus, ...]:
    """Return the objectives of several agents or regions, added up by model and targets."""
    counts: dict[Wanted, tuple[int, int]] = {}
    for report in reports:
        key = report.wanted
        answers, within = counts.get(key, (0, 0))
        counts[key] = (answers + report.answers, within + report.within)
    return tuple(
        ObjectiveStatus(
            model,
            limit_s,
            share,
            answers,
            within,
            within / answers if answers else None,
            within / answers >= share if answers else None,
            measure,
        )
        for (model, limit_s, share, measure), (answers, within) in sorted(counts.items())
    )
