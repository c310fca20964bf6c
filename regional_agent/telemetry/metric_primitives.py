"""Metrics of Prometheus that are computed from plain numbers, only at a scrape."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from penstock.meters.duration_histogram import DurationHistogram
from penstock.meters.ended_requests import Series

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
            shown = (_buckets(value), value.sum_s) if isinstance(value, DurationHistogram) else (value,)
            family.add_metric(labels, *shown)
        yield family


def _buckets(histogram: DurationHistogram) -> list[tuple[str, float]]:
    """Return the cumulative counts by upper bound, in the format of Prometheus."""
    bounds = [*map(floatToGoString, histogram.bounds_s), "+Inf"]
    return list(zip(bounds, map(float, histogram.cumulative()), strict=True))


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
