"""`penstock capacity`: the recommendations as a table."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from control_plane.cli.commands.viewing.capacity_command import _view
from penstock.scaling.recommender import Recommendation
from penstock.scaling.replicas import Cause


def test_each_recommendation_states_its_reason() -> None:
    out = StringIO()
    rows = [
        Recommendation("eu-de", "llama", 4, 4, 6, Cause.REGION_LOSS, "eu-es", 5.0, 9.5, 360.0),
        Recommendation("eu-es", "llama", 9, 8, 4, Cause.DEMAND, None, 5.0, 5.0, 360.0, ("g1", "g2", "g3", "g4", "g5")),
    ]
    Console(file=out, width=160).print(_view(rows))
    for words in ("loss of eu-es", "9.5/s", "demand", "g1, g2, g3 and 2 more"):
        assert words in out.getvalue(), words
