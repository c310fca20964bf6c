"""What is made of measurements: medians with their spread, goals, and tables that say what was not measured."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lab.bench.bench_results import Machine, closing_line, goal, measured, this_machine, write_results
from lab.bench.router.bench_router_report import Results, Setup, results, tables
from lab.bench.router.contestant import Contestant, Field
from lab.bench.router.decision import DecisionCost, Percentiles
from lab.bench.router.leak import LeakCheck
from lab.bench.router.rounds import DIRECT, OpenStreams, RequestRound, StreamRound
from lab.servers.process import ServerProcess

MACHINE = Machine("a processor", 2, "6.1", 0.1, "2026-01-01T00:00:00+00:00")
SETUP = Setup(2, 1.0, 0.1, 8, 100.0, 4, 100.0, 10, 1.0, 100, 1000)


def round_of(cpu_us: float, p50_ms: float, p99_ms: float, errors: int = 0) -> RequestRound:
    return RequestRound(1e6 / cpu_us, cpu_us, 0.95, p50_ms, p99_ms, errors)


def field(*names: str, tmp_path: Path) -> Field:
    process = ServerProcess("never started", ["true"], log_path=tmp_path / "log")
    return Field((1,), tuple(Contestant(name, "1.0", (), process, 1) for name in names), {"nginx": "not installed"})


def all_of(tmp_path: Path) -> Results:
    return results(
        MACHINE,
        SETUP,
        field("penstock", "envoy", "vllm-router", tmp_path=tmp_path),
        {
            DIRECT: [round_of(5, 0.1, 0.2), round_of(5, 0.2, 0.4)],
            "penstock": [round_of(30, 0.15, 0.4), round_of(34, 0.25, 0.7, errors=1)],
            "envoy": [round_of(40, 0.2, 0.6), round_of(40, 0.3, 0.8)],
            "vllm-router": [round_of(60, 0.3, 1.0), round_of(60, 0.4, 1.2)],
        },
        {"penstock": [StreamRound(12.0, 1000.0, 0.5, 0), StreamRound(14.0, 1000.0, 0.6, 2)]},
        {"penstock": OpenStreams(10, 18.0, 60.0, 0.1, 20.0, 10.0, 0)},
        [DecisionCost(100, Percentiles(15.0, 120.0, 100), Percentiles(10.0, 90.0, 100), None)],
        LeakCheck(1000, 10, 0, (50.0, 60.0, 60.0), 0.1, 0.2),
    )


def test_a_figure_is_the_median_of_its_rounds_with_their_extremes() -> None:
    one = measured([3.0, 1.0, 2.0])
    assert (one.median, one.least, one.most) == (2.0, 1.0, 3.0)
    assert one.spread == 1.0
    assert measured([0.0]).spread == 0.0


def test_a_goal_that_was_not_measured_is_neither_kept_nor_missed() -> None:
    assert goal("x", 1.0, None).kept is None
    assert goal("x", 1.0, 1.0).kept is True
    assert goal("x", 1.0, 1.01).kept is False


def test_latency_is_what_is_added_to_the_direct_way_in_the_same_round(tmp_path: Path) -> None:
    penstock = all_of(tmp_path).systems["penstock"]
    assert penstock.cpu_us_per_request == 32.0
    assert penstock.added_p50_ms == pytest.approx(0.05)
    assert penstock.added_p99_ms == pytest.approx(0.25)
    assert (penstock.spread["added_p99_ms"].least, penstock.spread["added_p99_ms"].most) == pytest.approx((0.2, 0.3))


def test_errors_of_every_part_are_added_up(tmp_path: Path) -> None:
    assert all_of(tmp_path).systems["penstock"].errors == 3
    assert all_of(tmp_path).systems["envoy"].errors == 0


def test_goals_compare_with_those_that_were_there(tmp_path: Path) -> None:
    kept = {one.what: one.kept for one in all_of(tmp_path).goals}
    assert kept == {
        "CPU per request, as a part of envoy's": True,
        "CPU per request, as a part of vllm-router's": False,
        "CPU per request, as a part of sglang-router's": None,
        "CPU per relayed chunk, us": True,
        "resident memory per open stream, kB": True,
        "decision at 100 endpoints, p50 us": True,
        "the same, p99 us": False,
        "decision awaiting Redis, p99 us": None,
        "growth of memory over the requests, as a part of it": True,
        "errors": False,
    }


def test_the_file_holds_what_was_measured_and_who_was_missing(tmp_path: Path) -> None:
    found = all_of(tmp_path)
    write_results(tmp_path / "deep" / "router.json", found)
    written = (tmp_path / "deep" / "router.json").read_bytes()
    assert msgspec.json.decode(written, type=Results) == found
    system = msgspec.json.decode(written)["systems"]["penstock"]
    assert {"requests_per_s", "cpu_us_per_request", "added_p50_ms", "added_p99_ms", "errors"} <= set(system)
    assert found.missing == {"nginx": "not installed"}


def test_parts_that_were_not_asked_for_are_left_out(tmp_path: Path) -> None:
    found = results(MACHINE, SETUP, field("penstock", tmp_path=tmp_path), {}, {}, {}, [], None)
    assert tables(found) == []
    assert found.systems["penstock"].requests_per_s is None
    assert all(one.kept is None for one in found.goals)
    assert len(tables(all_of(tmp_path))) == 4


def test_the_machine_is_described() -> None:
    assert this_machine().cores >= 1


def test_a_machine_that_others_used_is_said() -> None:
    assert "noise" not in closing_line(MACHINE, Path("x.json"))
    assert "noise" in closing_line(msgspec.structs.replace(MACHINE, load_average_before=3.0), Path("x.json"))
