"""Reads the load that an engine reports on its metrics page, and weights it by age.

A signal supplements the agents' own counts. It can raise the pressure of an endpoint to full, but does not make the
endpoint unavailable, so a stale or wrong page does not stop traffic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import islice
from math import isfinite, isnan
from typing import NamedTuple

from penstock.health.engines.engine_kinds import ENGINES, Engine, EngineKind, EngineMetric

FRESH_S = 2.0
"""Maximum age (s) of a signal with full weight: twice the polling period."""

FADED_S = 10.0
"""Age (s) from which a signal has no weight; between FRESH_S and this age, the weight falls linearly."""

KV_PRESSURE_FROM = 0.9
"""Share (0-1) of the KV cache in use above which an engine may have to preempt running requests."""


class Signal(StrEnum):
    """The values that engines report."""

    QUEUED = "queued"
    """Requests that wait in the engine."""
    RUNNING = "running"
    """Requests that the engine runs."""
    KV_USED = "kv_used"
    """Share (0-1) of the engine's KV cache that is in use."""
    UTILISATION = "utilisation"
    """Utilisation as the engine measures it (0-1; above 1 is overload)."""
    PREFIX_HITS = "prefix_hits"
    """Prompt tokens found in the prefix cache since the engine's start."""
    PREFIX_QUERIES = "prefix_queries"
    """Prompt tokens looked up in the prefix cache since the engine's start."""


LOAD_SIGNALS = (Signal.QUEUED, Signal.RUNNING, Signal.KV_USED, Signal.UTILISATION)
"""Signals of load; the other signals are counters."""


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
    """The value of one signal, and the time (s) at which it was received."""

    value: float
    received_at: float


Readings = dict[Signal, Reading]


class InvalidSignals(Exception):
    """An engine's report cannot be used; the message states the reason."""


def read_metrics(page: bytes, kind: EngineKind) -> tuple[EngineKind, dict[Signal, float]]:
    """Return the kind of engine and the signals of a metrics page in Prometheus' text format.

    Of several series of one gauge (one for each rank or model), counts are summed and the largest share is used. NaN is
    skipped.

    Args:
        page: content of the metrics page; the caller bounds its size.
        kind: the engine's kind; with AUTO, the names of every kind are searched.

    Raises:
        InvalidSignals: none of the names exists, a gauge has too many series or bytes, or a value is invalid for its
            signal.
    """
    kinds = [known for known in ENGINES if known is kind or kind is EngineKind.AUTO]
    gauges = (gauge for known in kinds for of_signal in _metrics(ENGINES[known]).values() for gauge in of_signal)
    found = read_samples(page, [gauge.name for gauge in gauges])
    for candidate in kinds:
        signals = _signals(ENGINES[candidate], found)
        if signals:
            return candidate, signals
    raise InvalidSignals(f"no metric of {'a known engine' if kind is EngineKind.AUTO else kind.value} in the page")


def checked(signal: Signal, value: float) -> float:
    """The value, if it is valid for `signal`.

    Raises:
        InvalidSignals: the value is not valid.
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
    """Return the pressure (0-1) that an engine reports in addition to its running requests; 1 is a full engine.

    Waiting requests count as a share of the slots; KV cache use and utilisation count from KV_PRESSURE_FROM to 1. Each
    signal is weighted by its age, and the strongest signal is the result.

    Args:
        readings: the signals received, with their times.
        slots: requests that the engine runs at once.
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
"""The patterns above do not backtrack, since pages are read on the event loop and may be hostile."""

MAX_SERIES = 1000
"""Maximum number of series of one gauge; an engine has one series for each model and rank."""

MAX_LABELS = 64
"""Maximum number of labels that are read of one series; vLLM has 38. Further labels are ignored."""

MAX_BYTES = 256 * 1024
"""Maximum size (bytes) of all series of one gauge together, which takes about ten milliseconds to read; a line that
only begins like a series counts as NO_SERIES_BYTES."""

NO_SERIES_BYTES = 1024

MAX_LINE_BYTES = 4096
"""Maximum size (bytes) of a sample after its name; a longer sample is ignored."""

Samples = dict[str, list[tuple[dict[str, str], float]]]


def read_samples(page: bytes, names: Iterable[str]) -> Samples:
    """Return the labels and values of the gauges with these names. The thousands of other lines are not split.

    Args:
        page: a page in Prometheus' text format; the caller bounds its size.

    Raises:
        InvalidSignals: a gauge has too many series or bytes, or a value that is no number.
    """
    lines = b"\n" + page
    found: Samples = {}
    for name in sorted(set(names)):
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


def _metrics(engine: Engine) -> dict[Signal, tuple[EngineMetric, ...]]:
    return {
        Signal.QUEUED: engine.queued,
        Signal.RUNNING: engine.running,
        Signal.KV_USED: engine.kv_used,
        Signal.PREFIX_HITS: engine.prefix_hits,
        Signal.PREFIX_QUERIES: engine.prefix_queries,
    }


def _signals(engine: Engine, found: Samples) -> dict[Signal, float]:
    signals = {}
    for signal, alternatives in _metrics(engine).items():
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
