"""What several dashboards have in common: colours of states, filters, and panels of quantiles."""

from __future__ import annotations

from dashboards.boards.panels import BLUE, GREEN, GREY, ORANGE, RED, YELLOW, Panel, Prose, Query, lines
from dashboards.recording_rules import STATE_CODES
from dashboards.rules import Recording
from penstock.health.region_health import RegionState

STATE_COLOURS = {
    RegionState.UNKNOWN: GREY,
    RegionState.HEALTHY: GREEN,
    RegionState.RECOVERING: BLUE,
    RegionState.DRAINING: YELLOW,
    RegionState.DEGRADED: YELLOW,
    RegionState.SUSPECT: ORANGE,
    RegionState.FAILED: RED,
}
STATE_WORDS = {code: (state.value, STATE_COLOURS[state]) for state, code in STATE_CODES.items()}
YES_NO = {0: ("no", GREY), 1: ("yes", GREEN)}
UP_DOWN = {0: ("down", RED), 1: ("up", GREEN)}

FROM_CLIENTS = 'site=~"$region",model=~"$model",kind!="forwarded"'
"""Requests as their origin counts them, so that a forwarded one is counted once."""


def quantiles(prose: Prose, buckets: Recording | str, *, by: str = "site", where: str = "", span: int = 12) -> Panel:
    """Median and, dashed, 99th percentile in seconds.

    Args:
        buckets: a recording of buckets, or an expression of one.
        by: the label that each line stands for; empty for one line.
        where: label matchers of a recording.
    """
    labels = f"{by}, le" if by else "le"
    text = f"{buckets.record}{{{where}}}" if isinstance(buckets, Recording) else buckets
    series = f"sum by ({labels}) ({text})"
    legend = f"{{{{{by}}}}} " if by else ""
    return lines(
        prose,
        [
            Query(f"histogram_quantile(0.5, {series})", f"{legend}p50"),
            Query(f"histogram_quantile(0.99, {series})", f"{legend}p99", dashed=True),
        ],
        "s",
        span=span,
    )
