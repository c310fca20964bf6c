"""The results of requests by which a candidate is judged, by region, for operators."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.fleet.counts.request_counts import RequestCounts
from penstock.rollout.canary_analysis import AgentObservation, requests_since
from penstock.rollout.policy_rollout import Rollout


class RequestResults(msgspec.Struct, frozen=True):
    """Results of the requests of one region in one period."""

    requests: int
    """Requests that ended."""
    failed_share: float
    """Share (0-1) of the ended requests that failed or were refused."""
    first_byte_s: float | None
    """Mean time (s) to the first byte; None without responses."""


class RegionEvidence(msgspec.Struct, frozen=True):
    """Evidence of one region for the judgement of a candidate."""

    region: str
    runs_candidate: bool
    """Whether the candidate is assigned to the region; other regions are the baseline."""
    now: RequestResults
    """Results since the phase began."""
    before: RequestResults
    """Results during the shadow phase."""


def by_region(rollout: Rollout, agents: Mapping[str, AgentObservation]) -> tuple[RegionEvidence, ...]:
    """Returns the results of each region by which a rollout is judged; nothing once it is over.

    Args:
        agents: by `region/agent`, see `observations`.
    """
    if rollout.is_over:
        return ()
    found: dict[str, dict[str, AgentObservation]] = {}
    for name, agent in sorted(agents.items()):
        found.setdefault(agent.region, {})[name] = agent
    return tuple(
        RegionEvidence(
            region,
            rollout.digest_for(region) == rollout.candidate,
            _results(requests_since(rollout.marks, observed)),
            _results(rollout.counts_before.get(region, RequestCounts())),
        )
        for region, observed in found.items()
    )


def _results(counts: RequestCounts) -> RequestResults:
    return RequestResults(counts.ended, counts.failed_share, counts.mean_first_byte_s if counts.begun else None)
