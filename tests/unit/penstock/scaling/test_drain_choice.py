"""The endpoints that are drained first."""

from __future__ import annotations

from penstock.fleet.endpoint_report import EndpointCondition, EndpointReport
from penstock.scaling.drain_choice import endpoints_to_drain

READY, DOWN, DRAINING = EndpointCondition.READY, EndpointCondition.DOWN, EndpointCondition.DRAINING


def row(
    name: str,
    in_flight: int = 0,
    zone: str = "",
    condition: EndpointCondition = READY,
    models: tuple[str, ...] = ("m",),
) -> EndpointReport:
    return EndpointReport(name, "h:1", models, zone, "", condition, 8, in_flight)


def names(rows: list[EndpointReport], **surplus: int) -> list[str]:
    return [endpoint.name for endpoint in endpoints_to_drain(rows, surplus)]


def test_useless_ones_first_then_the_fullest_zone_then_the_idlest() -> None:
    rows = [
        row("busy", 7, "x"),
        row("idle", 1, "x"),
        row("third", 5, "x"),
        row("other", 0, "y"),
        row("down", 0, "y", DOWN),
        row("leaving", 0, "y", DRAINING),
    ]
    assert names(rows, m=3) == ["down", "idle", "third"]
    assert names(rows, m=0) == []
    assert names(rows, m=99) == ["down", "idle", "third", "other", "busy"]


def test_an_endpoint_stays_while_one_of_its_models_needs_it() -> None:
    rows = [row("both", 0, models=("m", "n")), row("one", 3)]
    assert names(rows, m=1, n=0) == ["one"]
    assert names(rows, m=2, n=1) == ["both", "one"]
