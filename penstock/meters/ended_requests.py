"""Counts requests that ended by model, server, kind and outcome, with their times, as plain numbers."""

from __future__ import annotations

from collections.abc import Callable

from penstock.meters.duration_histogram import DurationHistogram


class Series:
    """Request count of one combination of labels; combinations of one model share its histograms."""

    def __init__(self, ttft: DurationHistogram | None, total: DurationHistogram | None) -> None:
        """A histogram is None if the combination does not record that time."""
        self.count = 0
        self.ttft = ttft
        self.total = total


class EndedRequests:
    """Counts requests that ended, in the series of their combination of labels."""

    def __init__(self, find: Callable[[str, str, str, str], Series]) -> None:
        """`find` returns the series of a combination that is not in `known`."""
        self._find = find
        self.known: dict[tuple[str, str, str, str], Series] = {}
        """Series by model, server, kind and outcome; only combinations whose number the policy bounds."""

    def count(self, model: str, server: str, kind: str, outcome: str, ttft_s: float | None, total_s: float) -> None:
        """Count one request.

        Args:
            model: the requested model.
            server: name of the region that served the request; `none` for none.
            kind: why that region served it.
            outcome: an Outcome.
            ttft_s: time to the first byte of the body, in seconds; None if no byte was sent.
            total_s: time to the end, in seconds.
        """
        series = self.known.get((model, server, kind, outcome))
        if series is None:
            series = self._find(model, server, kind, outcome)
        series.count += 1
        if ttft_s is not None and series.ttft is not None:
            series.ttft.observe(ttft_s)
        if series.total is not None:
            series.total.observe(total_s)
