"""Rollouts of versions of models as the API and the CLI show them: the stored state, and its evidence now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from penstock.fleet.counts.version_counts import VersionCounts
from penstock.fleet.snapshot import Snapshot, pools
from penstock.policy.policy import Policy
from penstock.rollout.model_rollout import ModelEvent, ModelPhase, ModelRolloutState
from penstock.rollout.rollout_progress import Condition
from penstock.rollout.version_analysis import compared, conditions, evidence_of

if TYPE_CHECKING:
    # Commands import this module, and need no store.
    from control_plane.rollout.model_rollouts import StoredModelRollout


class ModelRolloutSummary(msgspec.Struct, frozen=True):
    """The state of the rollout of a version."""

    name: str
    """Name that clients request."""
    old: str
    """The version that is replaced."""
    to: str
    """The new version."""
    phase: ModelPhase
    percent: float
    """Share (0-100) of the new version."""
    since: float
    """Unix time (s) when the phase or step was entered."""
    began_at: float
    """Unix time (s) when the rollout began."""
    why: str
    """Reason of the last transition."""
    by: str
    """Operator who caused the last transition; empty if no operator did."""
    actions: tuple[ModelEvent, ...] = ()
    """The actions that are possible in this phase."""


class VersionResults(msgspec.Struct, frozen=True):
    """Results of the requests of one version in one period."""

    requests: int
    """Requests that ended."""
    failed_share: float
    """Share (0-1) of them that failed or were refused."""
    first_byte_s: float | None
    """Mean time (s) to the first byte of streams; null without one."""
    token_s: float | None
    """Mean time (s) per output token of streams; null without one."""
    answer_tokens: float | None
    """Mean length (tokens) of successful answers; null without one."""
    scored: int = 0
    """Pairs of answers that the quality hook scored."""
    score: float | None = None
    """Their mean score, from -1 (the old version is better) to 1; null without one."""


class ModelRolloutStatus(msgspec.Struct, frozen=True):
    """The rollout of a version, and its evidence now."""

    rollout: ModelRolloutSummary
    revision: int
    """ETag of the state: send it as If-Match with actions."""
    conditions: tuple[Condition, ...]
    """The conditions that end the phase, apart from regressions."""
    new: VersionResults
    """The new version since the phase or step began."""
    old: VersionResults
    """The old version at the same time."""
    before: VersionResults
    """The old version in the phase before: the baseline while it has too few requests in this one."""


def model_summary(state: ModelRolloutState) -> ModelRolloutSummary:
    """Return the state of a rollout for the API."""
    found = msgspec.convert(state, ModelRolloutSummary, from_attributes=True)
    return msgspec.structs.replace(found, actions=state.permitted)


def model_rollout_statuses(
    stored: Mapping[str, StoredModelRollout], policy: Policy | None, snapshot: Snapshot, now: float
) -> tuple[ModelRolloutStatus, ...]:
    """Return every rollout of a policy, by name; `now` is the time (s) by the clock that stamped the reports."""
    if policy is None or policy.model_rollouts is UNSET:
        return ()
    seen, found = pools(snapshot, now), []
    for name, rollout in sorted(policy.model_rollouts.items()):
        state = stored[name].state if name in stored else None
        if state is None or state.to != rollout.to:
            continue
        evidence = evidence_of(state, snapshot, seen, now)
        results = compared(state, evidence)
        found.append(
            ModelRolloutStatus(
                model_summary(state),
                stored[name].revision,
                conditions(state, rollout, evidence, now),
                _results(results.new),
                _results(results.old),
                _results(results.before),
            )
        )
    return tuple(found)


def _results(counts: VersionCounts) -> VersionResults:
    requests = counts.requests
    return VersionResults(
        requests.ended,
        requests.failed_share,
        requests.mean_first_byte_s if requests.begun else None,
        counts.mean_token_s if counts.timed else None,
        counts.mean_length if counts.answers else None,
        counts.scored,
        counts.mean_score if counts.scored else None,
    )
