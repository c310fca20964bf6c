"""The comparison of live and simulated figures, on live results generated from simulated ones."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import typer

from lab.bench.bench_results import this_machine
from lab.bench.live.bench_live_report import Conditions, Contest, Demand, LiveResults, Scores
from lab.bench.live.contest import LiveRun, Times
from lab.bench.live.engine_use import EngineUse
from tests.calibration.__main__ import calibrate
from tests.calibration.calibration import FIGURES, CannotCompare, compare, misranked

DEMAND = Demand("multi-turn", "", {"a": "h100", "b": "l40s"}, 4, 2.0, 1.0, 0.5, 1)
CONDITIONS = Conditions(time_scale=1.0, seconds=30.0, warm_up_seconds=5.0, rounds=1, seed=3)


def scores(system: str, requests: int, figures: dict[str, float | None]) -> Scores:
    times = Times(1.0, 1.0, 1.0, 1.0)
    run = LiveRun(requests, requests, 0, 0, {}, times, times, times, EngineUse(0.0, 0.0), 0.0)
    return Scores(system, figures, {}, 0, 0, 0.0, 0.0, 0.0, [run])


def results(*found: Scores, workload: str = "multi-turn") -> LiveResults:
    demand = msgspec.structs.replace(DEMAND, workload=workload)
    return LiveResults(this_machine(), CONDITIONS, [], [Contest(demand, list(found), {})], [], {}, [])


@pytest.fixture(scope="module")
def requests() -> int:
    """The number of counted requests of the workload, read from the error for another number."""
    with pytest.raises(CannotCompare, match=r"\[\d+\] requests") as raised:
        compare(results(scores("penstock", -1, {})), Path("absent"))
    return int(str(raised.value).partition("[")[2].partition("]")[0])


def test_the_same_figures_agree_and_others_do_not(requests: int) -> None:
    guess = dict.fromkeys(FIGURES, 1.0)
    simulated = {
        (comparison.system, comparison.figure): comparison.simulated
        for comparison in compare(
            results(scores("penstock", requests, guess), scores("haproxy", requests, guess)), Path("absent")
        )
    }
    assert len(simulated) == 2 * len(FIGURES)
    live = {
        system: {figure: simulated[system, figure] * off for figure in FIGURES}
        for system, off in (("penstock", 1.0), ("haproxy", 1.2))
    }
    found = compare(results(*(scores(name, requests, figures) for name, figures in live.items())), Path("absent"))
    assert all(comparison.agrees is (comparison.system == "penstock") for comparison in found)
    assert misranked(found) == []
    swapped = [
        msgspec.structs.replace(comparison, live=2.0 if comparison.system == "penstock" else 1.0)
        for comparison in found
    ]
    simulated_order = [
        msgspec.structs.replace(comparison, simulated=1.0 if comparison.system == "penstock" else 2.0)
        for comparison in swapped
    ]
    assert len(misranked(simulated_order)) == len(FIGURES)


def test_what_cannot_be_compared_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, broken = tmp_path / "images.json", tmp_path / "broken.json"
    images.write_bytes(msgspec.json.encode(results(scores("penstock", 1, {}), workload="images")))
    broken.write_text("{}")
    for file, said in ((images, "no contest of chats"), (broken, "no result"), (tmp_path / "none", "make bench-live")):
        with pytest.raises(typer.Exit):
            calibrate(file, tmp_path, tmp_path / "out.json")
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
