"""The live benchmark end to end, with tiny parameters: real engines, one agent and three, a real peer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from lab.bench.live.bench_live_report import LiveResults
from tests.support.programs import run_program

BENCH = [str(Path(sys.executable).with_name("penstock-lab")), "bench-live"]


@pytest.mark.long
@pytest.mark.timeout(180)
def test_all_systems_get_the_same_requests_and_serve_all(tmp_path: Path) -> None:
    out = tmp_path / "live.json"
    tiny = ["--workload", "multi-turn", "--seconds", "20", "--warm-up", "4", "--rate", "2", "--engines", "1"]
    few = ["--time-scale", "20", "--instances", "1", "--instances", "3", "--peer", "haproxy"]
    ran = subprocess.run([*BENCH, *tiny, *few, "--out", str(out)], capture_output=True, text=True, timeout=170)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    results = msgspec.json.decode(out.read_bytes(), type=LiveResults)
    assert [(contest.demand.workload, contest.demand.instances) for contest in results.contests] == [
        ("multi-turn", 1),
        ("multi-turn", 3),
    ]
    for contest in results.contests:
        assert {score.system for score in contest.scores} == {"penstock", "haproxy"} - set(results.missing)
        assert contest.demand.engines == {"h100-1": "h100", "a100-1": "a100", "l40s-1": "l40s"}
        for score in contest.scores:
            assert [run.requests for run in score.rounds] == [contest.scores[0].rounds[0].requests]
            assert (score.failed, score.refused) == (0, 0)
            assert score.figures["e2e_p50_s"] is not None
            assert (score.figures["gpu_s"] or 0.0) > 0.0, "engines report for how long they computed"
    assert all(system.settings for system in results.systems)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trace", "absent.csv"], "absent.csv"),
        (["--peer", "squid"], "envoy, haproxy, haproxy-maxconn, nginx, sglang-cache-aware"),
        (["--workload", "chess"], "azure-conversation"),
        (["--seconds", "5", "--warm-up", "5"], "nothing is left"),
    ],
)
def test_invalid_input_is_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run_program("penstock-lab", "bench-live", *options)
    assert ran.returncode == 2
    assert message in ran.stdout
    assert ran.stdout.count("\n") == 1
