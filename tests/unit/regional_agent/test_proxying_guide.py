"""docs/proxying.md lists exactly the paths that an agent serves."""

from __future__ import annotations

import re

from penstock.routes.presets.openai import OPENAI_ROUTES
from tests.support.paths import ROOT

GUIDE = ROOT / "docs" / "proxying.md"


def test_every_path_is_documented_and_none_that_is_not_served() -> None:
    section = GUIDE.read_text().partition("## Paths\n")[2].partition("\n## ")[0]
    documented = {path.rstrip("/") for path in re.findall(r"/v1/[a-z_/{}]+", section)}
    assert documented == {route.path for route in OPENAI_ROUTES if route.offered} | {"/v1/models", "/v1/models/{model}"}
