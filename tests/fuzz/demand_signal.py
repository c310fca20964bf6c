"""Reads any response as the points of a demand signal.

Property: points are in ascending order with valid factors, or the response is refused with a printable message; a
forecast with them is finite and not lowered.
"""

from __future__ import annotations

from penstock.planning.forecasting.demand_signals import read_points, with_signals
from penstock.planning.share_moves import Key
from penstock.policy.kinds.external_sources import DemandSignal

WORDS = (b'{"points":[', b'{"at":', b',"factor":', b"1e308", b"-0.0", b"]}", b"\xff")

SIGNAL = DemandSignal("s", "https://signal.example/")


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    try:
        points = read_points(data)
    except ValueError as error:
        if not str(error).isprintable():
            raise AssertionError(str(error)) from None
        return
    for now in (0.0, 1e9):
        (rate,) = with_signals({Key("o", "m", "r"): 1.0}, (SIGNAL,), {"s": points}, now, 600.0).values()
        assert 1.0 <= rate <= SIGNAL.max_factor
