"""Status of service objectives: the target, and the share of recent requests that met it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.policy.service_objective import ObjectiveReport


class ObjectiveStatus(msgspec.Struct, frozen=True):
    """One model's service objective and its recent attainment, over the requests that entered at one region."""

    model: str
    first_byte_s: float
    """Target time (s) from a request to the first byte of the response, by the agents' policy."""
    share: float
    """Target share (0-1) of requests that succeed and start within `first_byte_s`."""
    answers: int
    """Requests of the last five minutes that succeeded or failed."""
    within: int
    """Requests of the last five minutes that succeeded and started within `first_byte_s`."""
    attained: float | None
    """`within` as a share (0-1) of `answers`; null without requests."""
    is_met: bool | None
    """Whether `attained` is at least `share`; null without requests."""

    @property
    def wanted(self) -> tuple[str, float, float]:
        """The model and its targets: the key of an objective."""
        return self.model, self.first_byte_s, self.share


def objective_statuses(reports: Iterable[ObjectiveReport | ObjectiveStatus]) -> tuple[ObjectiveStatus, ...]:
    """Return the objectives of several agents or regions, added up by model and targets."""
    counts: dict[tuple[str, float, float], tuple[int, int]] = {}
    for report in reports:
        key = report.wanted
        answers, within = counts.get(key, (0, 0))
        counts[key] = (answers + report.answers, within + report.within)
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
