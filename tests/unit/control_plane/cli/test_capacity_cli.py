"""`penstock capacity`: the recommendations as a table."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from control_plane.cli.commands.viewing.capacity_command import _view
from penstock.scaling.recommender import Recommendation
from penstock.scaling.replicas import Cause
from penstock.scaling.standby import Takeover


def test_each_recommendation_states_its_reason() -> None:
    out = StringIO()
    rows = [
        Recommendation("eu-de", "llama", 4, 4, 6, Cause.REGION_LOSS, "eu-es", 5.0, 9.5, 360.0, cost_per_hour=12.5),
        Recommendation("eu-es", "llama", 9, 8, 4, Cause.DEMAND, None, 5.0, 5.0, 360.0, ("g1", "g2", "g3", "g4", "g5")),
    ]
    takeover = Takeover(("eu-es",), 1e9, ready_after_s=90.0)
    Console(file=out, width=160).print(_view(rows, takeover))
    for words in (
        "took over from eu-es: endpoints ready after 90 s; regions back not yet",
        "loss of eu-es",
        "9.5/s",
        "12.50",
        "demand",
        "g1, g2, g3 and 2 more",
    ):
        assert words in out.getvalue(), words
