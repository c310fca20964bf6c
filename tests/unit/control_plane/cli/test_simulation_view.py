"""What a change would come to, as a table."""

from __future__ import annotations

from msgspec.structs import replace
from rich.console import Console

from control_plane.cli.views.simulation_view import simulated_view
from penstock.routing.reasons import Reason
from penstock.what_if.demand_outcomes import Totals
from penstock.what_if.moved_demand import Move


def test_the_part_that_moves_is_of_the_demand_that_has_grown() -> None:
    before = Totals(5.0, 5.0, {}, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, {"eu-de": 1.0})
    after = replace(before, requests_per_s=20.0, refused_per_s={Reason.SATURATED: 15.0})
    refused = Move("eu-de", "t", "m", ("DE",), "all", "all", "eu-de", "refused: saturated", 0.75, 15.0)
    console = Console(width=200)
    with console.capture() as shown:
        console.print(simulated_view(before, after, [refused]))
    assert "75.0% of requests get another region or another answer" in shown.get()
