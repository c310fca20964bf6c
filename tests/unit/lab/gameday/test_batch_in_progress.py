"""The judgement of a batch that ran during a fault: every broken promise leaves no result to count."""

from __future__ import annotations

import msgspec
import pytest

from lab.demo.records import BatchScene
from lab.gameday.batch_in_progress import judge_batch

GOOD = BatchScene(
    region="jp-tok",
    requests=3,
    created_at_s=0.0,
    ended_at_s=30.0,
    status="completed",
    output=("line-1", "line-0", "line-2"),
    errors=(),
    done_before_loss=None,
    engine_runs=(1, 2, 1),
    outside=0,
)


def test_the_results_of_a_good_batch_are_counted() -> None:
    found = judge_batch(GOOD, 12.0, max_runs=2)
    assert found.events == 3
    assert "18.0 s after the fault began" in found.says
    assert "1 extra engine runs" in found.says


@pytest.mark.parametrize(
    "broken",
    [
        {"status": "in_progress"},
        {"output": ("line-0", "line-1")},
        {"output": ("line-0", "line-1", "line-2", "line-2")},
        {"output": ("line-0", "line-1"), "errors": ("line-2",)},
        {"engine_runs": (1, 3, 1)},
        {"engine_runs": (1, 0, 1)},
        {"engine_runs": ()},
        {"outside": 1},
        {"ended_at_s": 11.0},
    ],
)
def test_a_broken_promise_leaves_nothing_to_count(broken: dict[str, object]) -> None:
    assert judge_batch(msgspec.structs.replace(GOOD, **broken), 12.0, max_runs=2).events == 0
