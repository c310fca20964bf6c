"""Reads how full an engine reports to be from its metrics page, and weighs it by age.

A signal is a hint beside the agents' own counts. It can make an endpoint look up to wholly full, and never closes it: a
stale or wrong page stops no traffic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import islice
from math import isfinite, isnan
from typing import NamedTuple

from penstock.health.engine_kinds import ENGINES, Engine, EngineKind, Gauge

FRESH_S = 2.0
"""A signal counts in full for this long (s): twice the polling period."""

FADED_S = 10.0
"""A signal of this age (s) counts for nothing; in between it fades evenly."""

KV_PRESSURE_FROM = 0.9
"""Share of the KV cache in use from which on an engine may have to preempt what it runs."""


class Signal(StrEnum):
    """What engines report."""

    QUEUED = "queued"
    """Requests that wait in it."""
    RUNNING = "running"
    """Requests that it runs."""
    KV_USED = "kv_used"
    """Share of its KV cache in use (0-1)."""
    UTILISATION = "utilisation"
    """Its utilisation by its own measure (0-1; above 1 is overload)."""
    PREFIX_HITS = "prefix_hits"
    """Prompt tokens that its prefix cache had, since its start."""
    PREFIX_QUERIES = "prefix_queries"
    """Prompt tokens that it looked up in its prefix cache, since its start."""


LOAD_SIGNALS = (Signal.QUEUED, Signal.RUNNING, Signal.KV_USED, Signal.UTILISATION)
"""The signals that are load; the others are counters of the engine."""


_SHARES = (Signal.KV_USED, Signal.UTILISATION)

MAX_VALUE: dict[Signal, float] = {
    Signal.QUEUED: 1_000_000,
    Signal.RUNNING: 1_000_000,
    Signal.KV_USED: 1.001,
    Signal.UTILISATION: 1000.0,
    Signal.PREFIX_HITS: 1e18,
    Signal.PREFIX_QUERIES: 1e18,
}
"""The largest valid value of each signal."""


class Reading(NamedTuple):
    """One signal's value and when it was received (s)."""

    value: float
    received_at: float


Readings = dict[Signal, Reading]


class InvalidSignals(Exception):
    """An engine's report cannot be used; the message has the reason."""


def read_metrics(page: bytes, kind: EngineKind) -> tuple[EngineKind, dict[Signal, float]]:
    """The signals on a metrics page in Prometheus' text format, and the kind of engine that has these metric names.

    Of several series of one gauge (one for each rank or model), counts are summed and the largest share is used. NaN is
    skipped.

    Args:
        page: as served; the caller bounds its size.
        kind: the engine's kind; with AUTO, the names of every kind are searched.

    Raises:
        InvalidSignals: none of the names exists, or a value is invalid for its signal.
    """
    kinds = [known for known in ENGINES if known is kind or kind is EngineKind.AUTO]
    found = _samples(page, [ENGINES[candidate] for candidate in kinds])
    for candidate in kinds:
        signals = _signals(ENGINES[candidate], found)
        if signals:
            return candidate, signals
    raise InvalidSignals(f"no metric of {'a known engine' if kind is EngineKind.AUTO else kind.value} in the page")


def checked(signal: Signal, value: float) -> float:
    """The value, if it is valid for `signal`.

    Raises:
        InvalidSignals: it is not.
    """
    if not (isfinite(value) and 0.0 <= value <= MAX_VALUE[signal]):
        raise InvalidSignals(f"{signal.value} of {value!r}")
    return value


def updated_readings(readings: Readings, signals: Mapping[Signal, float], now: float) -> Readings:
    """`readings` with the signals received at `now` (s)."""
    return readings | {signal: Reading(value, now) for signal, value in signals.items()}


def signal_weight(age_s: float) -> float:
    """The weight (0-1) of a signal of that age (s)."""
    if age_s <= FRESH_S:
        return 1.0
    return max(0.0, (FADED_S - age_s) / (FADED_S - FRESH_S))


def pressure(readings: Readings, slots: int, now: float) -> float:
    """How close to full an engine reports to be, beyond what running requests show: 0 not at all, 1 wholly.

    Requests that wait in it count by their share of its slots; KV cache, and its own measure of utilisation, count over
    their last tenth. The strongest signal counts, each faded by its own age.

    Args:
        readings: the signals received, with their times.
        slots: requests that it runs at once.
        now: the clock of the readings, in seconds.
    """
    strongest = 0.0
    for signal, reading in readings.items():
        if signal is Signal.QUEUED:
            share = reading.value / slots
        elif signal not in _SHARES:
            continue
        else:
            share = (reading.value - KV_PRESSURE_FROM) / (1.0 - KV_PRESSURE_FROM)
        strongest = max(strongest, min(1.0, share) * signal_weight(now - reading.received_at))
    return strongest


_LABELS = rb'\{(?:[^"}\n]++|"(?:[^"\\\n]++|\\.)*+")*+\}'
_LINE = re.compile(rb"(%b)?[ \t]+([^ \t\r\n]{1,64})" % _LABELS)
_LABEL = re.compile(rb'(?<![A-Za-z0-9_])([A-Za-z_][A-Za-z0-9_]*+)="((?:[^"\\]++|\\.)*+)"')
"""None of these patterns backtracks: pages are read on the event loop and may be hostile."""

MAX_SERIES = 1000
"""Series of one gauge; an engine has one for each model and rank."""

MAX_LABELS = 16
"""Labels of one series; Triton has four. Later ones are ignored."""

MAX_BYTES = 256 * 1024
"""Bytes of all series of one gauge together, about ten milliseconds; a line that only begins like a series counts as
NO_SERIES_BYTES."""

NO_SERIES_BYTES = 1024

MAX_LINE_BYTES = 4096
"""Bytes of a sample after its name; a longer sample is ignored."""

Samples = dict[str, list[tuple[dict[str, str], float]]]


def _samples(page: bytes, engines: Iterable[Engine]) -> Samples:
    """The samples of known gauges. A page has thousands of others, which are not even split."""
    names = {gauge.name for engine in engines for gauges in _gauges(engine).values() for gauge in gauges}
    lines = b"\n" + page
    found: Samples = {}
    for name in sorted(names):
        start = b"\n" + name.encode()
        at, read_bytes = lines.find(start), 0
        while at >= 0:
            after = at + len(start)
            line = _LINE.match(lines, after, after + MAX_LINE_BYTES)
            read_bytes += NO_SERIES_BYTES if line is None else line.end() - line.start()
            if read_bytes > MAX_BYTES:
                raise InvalidSignals(f"more than {MAX_BYTES} bytes of {name}")
            if line is not None:
                series = found.setdefault(name, [])
                if len(series) >= MAX_SERIES:
                    raise InvalidSignals(f"more than {MAX_SERIES} series of {name}")
                series.append(_sample(name, *line.groups(b"")))
            at = lines.find(start, at + 1)
    return found


def _sample(name: str, labels: bytes, text: bytes) -> tuple[dict[str, str], float]:
    try:
        value = float(text)
    except ValueError:
        raise InvalidSignals(f"{name} is no number") from None
    first = islice(_LABEL.finditer(labels), MAX_LABELS)
    return {label[1].decode(): label[2].decode("utf-8", "replace") for label in first}, value


def _gauges(engine: Engine) -> dict[Signal, tuple[Gauge, ...]]:
    return {
        Signal.QUEUED: engine.queued,
        Signal.RUNNING: engine.running,
        Signal.KV_USED: engine.kv_used,
        Signal.PREFIX_HITS: engine.prefix_hits,
        Signal.PREFIX_QUERIES: engine.prefix_queries,
    }


def _signals(engine: Engine, found: Samples) -> dict[Signal, float]:
    signals = {}
    for signal, alternatives in _gauges(engine).items():
        for gauge in alternatives:
            values = [
                checked(signal, value)
                for labels, value in found.get(gauge.name, ())
                if not isnan(value) and (not gauge.label or labels.get(gauge.label) == gauge.value)
            ]
            if values:
                signals[signal] = max(values) if signal is Signal.KV_USED else checked(signal, sum(values))
                break
    return signals
