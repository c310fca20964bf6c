"""docs/proxying.md lists exactly the paths that an agent serves."""

from __future__ import annotations

import re

from regional_agent.routing.classify import INFERENCE_PATHS, TUNNEL_PATHS
from tests.support.paths import ROOT

GUIDE = ROOT / "docs" / "proxying.md"


def test_every_path_is_documented_and_none_that_is_not_served() -> None:
    section = GUIDE.read_text().partition("## Paths\n")[2].partition("\n## ")[0]
    documented = set(re.findall(r"/v1/[a-z/]+", section))
    assert documented == {path.decode() for path in INFERENCE_PATHS | TUNNEL_PATHS} | {"/v1/models"}
