"""The Prometheus metric of pairs of answers that quality hooks score."""

from __future__ import annotations

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter


class PairResult(StrEnum):
    """What became of a pair of answers."""

    SCORED = "scored"
    FAILED = "failed"
    """The hook did not answer, or answered no score."""
    DROPPED = "dropped"
    """An answer was too large, or too many pairs waited for the hook."""


class QualityMetrics:
    """Counts pairs of answers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Create the metric without series."""
        self._pairs = Counter(
            "penstock_agent_quality_pairs",
            "Pairs of answers of two versions of a model for the quality hook, by the new version (`model`) and result:"
            " `scored`, `failed` (the hook) or `dropped` (too large, or too many wait).",
            ("model", "result"),
            registry=registry,
        )

    def counted(self, model: str, result: PairResult) -> None:
        """Count a pair."""
        self._pairs.labels(model, result.value).inc()
