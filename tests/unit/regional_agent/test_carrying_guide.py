"""What clients may ask for is in docs/carrying.md, all of it."""

from __future__ import annotations

import re

from regional_agent.routing.classify import INFERENCE_PATHS, TUNNEL_PATHS
from tests.support.paths import ROOT

GUIDE = ROOT / "docs" / "carrying.md"


def test_every_path_is_documented_and_none_that_is_not_served() -> None:
    section = GUIDE.read_text().partition("## What clients may ask for")[2].partition("\n## ")[0]
    told = set(re.findall(r"/v1/[a-z/]+", section))
    assert told == {path.decode() for path in INFERENCE_PATHS | TUNNEL_PATHS} | {"/v1/models"}
