"""The router benchmark end to end, with tiny parameters: a real site, a real peer, and a file with the results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from lab.bench import pinned
from lab.bench.router.bench_router_report import Results
from tests.support.programs import run_program

BENCH = [str(Path(sys.executable).with_name("penstock-lab")), "bench-router"]
TINY = [
    *("--rounds", "1", "--seconds", "0.3", "--warm-up", "0.1", "--connections", "8", "--rate", "100"),
    *("--fast-streams", "10", "--chunks", "200", "--slow-streams", "30"),
    *("--decisions", "100", "--leak-requests", "200"),
]

needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@pytest.mark.long
@needs_two_cores
@pytest.mark.timeout(180)
def test_every_part_is_measured_and_written(tmp_path: Path) -> None:
    out = tmp_path / "router.json"
    ran = subprocess.run(
        [*BENCH, *TINY, "--peer", "bare-relay", "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    results = msgspec.json.decode(out.read_bytes(), type=Results)
    assert set(results.systems) | set(results.missing) == {"penstock", "bare-relay"}
    penstock = results.systems["penstock"]
    assert penstock.errors == 0
    assert results.systems["bare-relay"].errors == 0
    for figure in (penstock.requests_per_s, penstock.cpu_us_per_request, penstock.cpu_us_per_chunk):
        assert figure is not None
        assert figure >= 0
    assert penstock.requests_per_s
    assert penstock.added_p50_ms is not None
    assert penstock.added_p99_ms is not None
    assert penstock.open_streams is not None
    assert penstock.open_streams.streams == 30
    assert [decision.endpoints for decision in results.decision] == [10, 100, 1000]
    assert results.leak is not None
    assert results.leak.requests >= 200
    assert results.leak.errors == 0
    assert results.cache is not None
    assert results.cache.errors == 0
    assert len(results.cache.cpu_us) == 5
    assert "x envoy" in ran.stdout
    assert "not measured" in ran.stdout, "there is no envoy to compare with"


def test_one_core_is_too_few(tmp_path: Path) -> None:
    core = str(min(os.sched_getaffinity(0)))
    ran = subprocess.run(
        [sys.executable, pinned.__file__, core, *BENCH, "--out", str(tmp_path / "x.json")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 2
    assert "two are needed" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_baseline_without_a_compiled_agent_is_refused(tmp_path: Path) -> None:
    ran = run_program("penstock-lab", "bench-router", "--baseline", str(tmp_path))
    assert ran.returncode == 2
    assert f"{tmp_path} has no compiled agent; run `make wheel` there" in ran.stdout


def test_an_unknown_peer_is_named() -> None:
    ran = run_program("penstock-lab", "bench-router", "--peer", "squid")
    assert ran.returncode == 2
    assert "squid" in ran.stdout
    assert "nginx, haproxy, envoy, vllm-router, sglang-router, bare-relay" in ran.stdout
