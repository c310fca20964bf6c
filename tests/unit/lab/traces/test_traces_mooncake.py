"""The Mooncake reader: batches are spread over their interval, and errors name the line."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from lab.traces.mooncake import BATCH_S
from lab.traces.read import read_trace
from lab.traces.trace import TraceError, TraceRequest


def line(timestamp: float, tokens: int = 700, output: int = 20, ids: tuple[int, ...] = (0, 1)) -> str:
    return json.dumps({"timestamp": timestamp, "input_length": tokens, "output_length": output, "hash_ids": list(ids)})


def read(path: Path, lines: list[str], seed: int = 1) -> list[TraceRequest]:
    path.write_text("\n".join(lines))
    return read_trace(path, Random(seed))


def test_spreads_each_batch_over_its_own_time(tmp_path: Path) -> None:
    batches = [5000.0, 8000.0, 8400.0, 60000.0]
    trace = read(tmp_path / "t", [line(t, tokens=600 + n) for t in batches for n in range(20)])
    times = [r.at_s for r in trace]
    assert times == sorted(times)
    for index, (start_s, width_s) in enumerate([(0.0, 3.0), (3.0, 0.4), (3.4, BATCH_S), (55.0, BATCH_S)]):
        batch = times[index * 20 : index * 20 + 20]
        assert start_s <= batch[0] < batch[-1] < start_s + width_s
        assert batch[-1] - batch[0] > width_s / 2
    assert [r.prompt_tokens for r in trace[:20]] == list(range(600, 620))


def test_the_same_rng_gives_the_same_times(tmp_path: Path) -> None:
    lines = [line(0)] * 10
    assert read(tmp_path / "t", lines, seed=3) == read(tmp_path / "t", lines, seed=3)
    assert read(tmp_path / "t", lines, seed=3) != read(tmp_path / "t", lines, seed=4)


def test_keeps_prefix_blocks(tmp_path: Path) -> None:
    assert read(tmp_path / "t", [line(0, 1025, 7, (0, 9, 4))])[0].prefix_blocks == (0, 9, 4)


@pytest.mark.parametrize(
    ("broken", "field", "message"),
    [
        ('{"timestamp": 0, "input_length": 7, "output_length": 1}', "hash_ids", "missing"),
        (line(0, tokens=0), "input_length", ">= 1"),
        (line(0).replace("20", '"20"'), "output_length", "Expected `int`"),
        (line(0, ids=(0, -4)), "hash_ids[1]", ">= 0"),
        (line(0, tokens=512, ids=(0, 1)), "hash_ids", "at most one id per 512"),
        (line(0)[:-9], "", "not a JSON object"),
        ("[1, 2]", "", "Expected `object`"),
        (line(1), "timestamp", "goes back in time"),
    ],
)
def test_names_line_field_and_remedy(tmp_path: Path, broken: str, field: str, message: str) -> None:
    path = tmp_path / "broken.jsonl"
    with pytest.raises(TraceError) as caught:
        read(path, [line(2), broken])
    error = caught.value
    assert (error.path, error.line, error.field) == (path, 2, field)
    assert message in str(error)
    assert "\n" not in str(error)
