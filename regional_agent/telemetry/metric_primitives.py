"""Request counts and durations as plain numbers, converted to Prometheus metrics only at a scrape."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class DurationHistogram:
    """A histogram of durations: the count of each bucket, and the sum."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        """`bounds_s` are the ascending upper bounds of the buckets in seconds; a last bucket has no bound."""
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        # A search of its own: `bisect_left` is five times as slow as this compiled loop.
        bounds_s, bucket, end = self._bounds_s, 0, len(self._bounds_s)
        while bucket < end:
            middle = (bucket + end) >> 1
            if bounds_s[middle] < seconds:
                bucket = middle + 1
            else:
                end = middle
        self._counts[bucket] += 1
        self._sum_s += seconds

    def add(self, other: DurationHistogram) -> None:
        """Add the counts of a histogram with the same bounds."""
        self._counts = [own + more for own, more in zip(self._counts, other._counts, strict=True)]
        self._sum_s += other._sum_s

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative counts by upper bound, in the format of Prometheus."""
        bounds = [*map(floatToGoString, self._bounds_s), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self._counts)), strict=True))

    @property
    def sum_s(self) -> float:
        """Sum of the durations, in seconds."""
        return self._sum_s


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
            model: the requested model; counted as `other` if the policy has no such model.
            server: name of the region that served the request, or NO_SERVER.
            kind: a RequestKind or ArcReason.
            outcome: an Outcome.
            ttft_s: time to the first byte of the body, in seconds; None if no byte was sent.
            total_s: time to the end, in seconds. Recorded only for `ok` and `timed_out` of clients' requests, since
                cancelled and failed requests would distort the response time.

        Raises:
            ValueError: `kind` or `outcome` is not a member of its enumeration.
        """
        series = self.known.get((model, server, kind, outcome))
        if series is None:
            series = self._find(model, server, kind, outcome)
        series.count += 1
        if ttft_s is not None and series.ttft is not None:
            series.ttft.observe(ttft_s)
        if series.total is not None:
            series.total.observe(total_s)


SeriesValues = Callable[[], Iterable[tuple[tuple[str, ...], float | DurationHistogram]]]
"""Returns the label values and the value of every series."""


class ComputedFamily(Collector):
    """A metric whose series are computed at a scrape."""

    def __init__(
        self,
        family: Callable[..., CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily],
        name: str,
        help_text: str,
        labels: tuple[str, ...],
        values: SeriesValues,
    ) -> None:
        """Use `counter_family`, `gauge_family` or `histogram_family`; the name of a counter is without `_total`."""
        self.label_names = labels
        self._new_family = partial(family, name, help_text, labels=labels)
        self._values = values

    def collect(self) -> Iterator[Metric]:
        """Called by the registry at a scrape."""
        family: Any = self._new_family()
        for labels, value in self._values():
            shown = (value.buckets(), value.sum_s) if isinstance(value, DurationHistogram) else (value,)
            family.add_metric(labels, *shown)
        yield family


counter_family = partial(ComputedFamily, CounterMetricFamily)
gauge_family = partial(ComputedFamily, GaugeMetricFamily)
histogram_family = partial(ComputedFamily, HistogramMetricFamily)


class RequestCounter(Collector):
    """The counts of all label combinations, exported as one counter."""

    def __init__(self, name: str, help_text: str, labels: tuple[str, ...]) -> None:
        """`name` is without the suffix `_total`."""
        self.label_names = labels
        self.series: dict[tuple[str, ...], Series] = {}
        self._family = counter_family(name, help_text, labels, self._counts)

    def keep(self, label: str, values: Collection[str]) -> None:
        """Drop the series whose value of `label` is not in `values`."""
        at = self.label_names.index(label)
        self.series = {labels: series for labels, series in self.series.items() if labels[at] in values}

    def collect(self) -> Iterator[Metric]:
        """Called by the registry at a scrape."""
        return self._family.collect()

    def _counts(self) -> Iterable[tuple[tuple[str, ...], float]]:
        return [(labels, series.count) for labels, series in self.series.items()]


class DurationHistograms(Collector):
    """Durations by model and further labels, exported as one histogram."""

    def __init__(self, name: str, help_text: str, bounds_s: tuple[float, ...], *labels: str) -> None:
        """`bounds_s` are the buckets' upper bounds in seconds; `labels` come after `model`."""
        self._bounds_s = bounds_s
        self._times: dict[tuple[str, ...], DurationHistogram] = {}
        self.label_names = ("model", *labels)
        self._family = histogram_family(name, help_text, self.label_names, self._series)

    def of(self, *labels: str) -> DurationHistogram:
        """Return the histogram of one combination of label values, model first; created and exported if new."""
        times = self._times.get(labels)
        if times is None:
            times = self._times[labels] = DurationHistogram(self._bounds_s)
        return times

    def keep(self, models: Collection[str]) -> None:
        """Drop the histograms of models that are not in `models`."""
        self._times = {labels: times for labels, times in self._times.items() if labels[0] in models}

    def collect(self) -> Iterator[Metric]:
        """Called by the registry at a scrape."""
        return self._family.collect()

    def _series(self) -> Iterable[tuple[tuple[str, ...], DurationHistogram]]:
        return self._times.items()
