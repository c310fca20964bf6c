"""Reads any metrics page of an engine: Prometheus' text format of vLLM, SGLang, Triton, TensorRT-LLM, TGI.

The first byte selects the kind of engine. Property: the result is InvalidSignals, or signals within their limits that
read the same from a page with one sample for each.
"""

from __future__ import annotations

from penstock.health.engines.engine_kinds import ENGINES, Engine, EngineKind
from penstock.health.engines.engine_signals import MAX_VALUE, InvalidSignals, Signal, read_metrics

WORDS = (
    *(b"\n", b"{", b"}", b'"', b"\\", b'="', b'",', b"NaN", b"+Inf", b"1e400", b"# TYPE ", b'request_type="waiting"'),
    *(
        gauge.name.encode()
        for engine in ENGINES.values()
        for gauge in (*engine.queued, *engine.running, *engine.kv_used)
    ),
)

_KINDS = list(EngineKind)


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    kind = _KINDS[data[0] % len(_KINDS)] if data else EngineKind.AUTO
    try:
        found, signals = read_metrics(data[1:], kind)
    except InvalidSignals:
        return
    assert signals
    assert found is kind or kind is EngineKind.AUTO
    assert all(0.0 <= value <= MAX_VALUE[signal] for signal, value in signals.items())
    assert read_metrics(_page(ENGINES[found], signals), found) == (found, signals)


def _page(engine: Engine, signals: dict[Signal, float]) -> bytes:
    gauges = {Signal.QUEUED: engine.queued, Signal.RUNNING: engine.running, Signal.KV_USED: engine.kv_used}
    lines = []
    for signal, value in signals.items():
        gauge = gauges[signal][0]
        labels = f'{{{gauge.label}="{gauge.value}"}}' if gauge.label else ""
        lines.append(f"{gauge.name}{labels} {value!r}\n")
    return "".join(lines).encode()
