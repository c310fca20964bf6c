"""The demo on real processes, at a higher speed: every check passes, the report states it, no process is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.demo_process import left_behind, start


@pytest.mark.timeout(240)
def test_every_check_passes(tmp_path: Path) -> None:
    demo = start(tmp_path, "--pace", "0.6")
    output, _ = demo.communicate(timeout=200)
    assert demo.returncode == 0, output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["residency"]["violations"] == 0
    assert report["residency"]["checked"] >= report["requests"]["ok"] > 200
    assert report["spillover"]["in_surge"] > 0
    assert report["failover"]["rerouted_s"] <= 1.0
    assert report["failover"]["lost_not_started"] == 0
    assert report["failback"]["seconds"] > 0
    assert report["control_plane_loss"]["failed_requests"] == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Every promise was kept" in page
    assert "every promise was kept" in output
    assert left_behind(tmp_path) == []
    assert list((tmp_path / "state").iterdir()) == []
