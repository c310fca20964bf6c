"""Counts the results of the versions in a rollout, by which the control plane judges the new version.

Only requests that the share decides count: those of tenants or clients that chose a version would not be comparable.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from penstock.accounts.account import Account
from penstock.accounts.outcome_rules import Outcome
from penstock.fleet.counts.version_counts import VersionCounts, VersionReport
from penstock.meters.request_tally import RequestTally
from penstock.policy.kinds.model_rollouts import ModelRollout
from penstock.policy.model_versions import is_drawn
from penstock.policy.policy import Policy
from regional_agent.requests.client_request_reader import choice_of
from regional_agent.requests.request_context import RequestContext

_OK: Final = Outcome.OK
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""


class _Counters:
    """The counters of one version."""

    def __init__(self) -> None:
        self.requests = RequestTally()
        self.timed = self.answers = self.answer_tokens = 0
        self.token_s = self.token_s2 = self.answer_tokens2 = self.score = self.score2 = 0.0
        self.scored = self.unscored = 0

    def counts(self) -> VersionCounts:
        return VersionCounts(
            self.requests.report(),
            self.timed,
            self.token_s,
            self.answers,
            self.answer_tokens,
            self.token_s2,
            self.answer_tokens2,
            self.scored,
            self.score,
            self.score2,
            self.unscored,
        )


class VersionTally:
    """Counters by requested name and version. The policy bounds their number."""

    def __init__(self) -> None:
        self.rollouts: dict[str, ModelRollout] = {}
        """The rollouts of the policy in force, by requested name."""
        self._counters: dict[tuple[str, str], _Counters] = {}

    def use(self, policy: Policy) -> None:
        """Count the versions of a newly accepted policy; counters of versions that it still has are kept."""
        self.rollouts = {} if policy.model_rollouts is UNSET else policy.model_rollouts
        keys = [(name, each.model) for name in self.rollouts for each in policy.versions[name].versions]
        self._counters = {key: self._counters.get(key) or _Counters() for key in keys}

    def ended(self, context: RequestContext, account: Account, total_s: float, *, is_copy: bool = False) -> None:
        """Count a client's request, or the copy of one, that ended after `total_s` (s)."""
        rollout = self.rollouts.get(context.asked_for)
        counters = self._counters.get((context.asked_for, context.model))
        if rollout is None or counters is None:
            return
        if not is_drawn(context.policy, rollout, context.principal.tenant, choice_of(context.request, rollout)):
            return
        first_byte_at, usage, is_streamed = account.first_byte_at, account.measured_usage, context.estimate.streaming
        # A copy counts as batch work, and never waits.
        is_timed = is_copy or not context.is_batch
        if not is_timed:
            # Batch work waits for idle slots, and for its file: its times are not those of the version.
            counters.requests.batch_ended(account.outcome)
        else:
            first_byte_s = None if first_byte_at is None else first_byte_at - context.received_at
            counters.requests.ended(context.model, account.outcome, first_byte_s, total_s, streaming=is_streamed)
        if account.outcome is not _OK or usage is None:
            return
        counters.answers += 1
        counters.answer_tokens += usage.answer_tokens
        counters.answer_tokens2 += float(usage.answer_tokens) ** 2
        if is_streamed and is_timed and first_byte_at is not None and usage.answer_tokens > 1:
            counters.timed += 1
            token_s = (account.ended_at - first_byte_at) / (usage.answer_tokens - 1)
            counters.token_s += token_s
            counters.token_s2 += token_s * token_s

    def scored(self, name: str, model: str, score: float | None) -> None:
        """Count the score of a pair of answers; None if the quality hook failed."""
        counters = self._counters.get((name, model))
        if counters is None:
            return
        if score is None:
            counters.unscored += 1
            return
        counters.scored += 1
        counters.score += score
        counters.score2 += score * score

    def report(self) -> tuple[VersionReport, ...]:
        """Return the counts of every version."""
        return tuple(
            VersionReport(name, model, counters.counts()) for (name, model), counters in self._counters.items()
        )
