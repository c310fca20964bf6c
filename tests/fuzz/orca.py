"""Reads any `endpoint-load-metrics` header (ORCA) of an engine.

Property: the result is InvalidSignals, or signals within their limits that read the same from the text form.
"""

from __future__ import annotations

from penstock.health.engines.engine_signals import MAX_VALUE, InvalidSignals
from penstock.health.engines.orca import SIGNALS, read_orca

WORDS = (
    *(b"TEXT ", b"JSON ", b"=", b":", b",", b'{"named_metrics":{"', b'"application_utilization":', b"1e400", b"nan"),
    *(name.encode() for name in SIGNALS),
)

_FIELDS = {signal: name for name, signal in SIGNALS.items()}


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    try:
        signals = read_orca(data)
    except InvalidSignals:
        return
    assert all(0.0 <= value <= MAX_VALUE[signal] for signal, value in signals.items())
    text = ", ".join(f"{_FIELDS[signal]}={value!r}" for signal, value in signals.items())
    assert not text or read_orca(b"TEXT " + text.encode()) == signals
