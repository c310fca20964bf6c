"""Reading any trace file returns requests or raises one clear error."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.traces.mooncake import BATCH_S
from lab.traces.read import read_trace
from lab.traces.trace import TraceError, blocks_of
from tests.support.examples import examples

ROWS = st.lists(
    st.tuples(st.integers(0, 10**9), st.integers(1, 200_000), st.integers(0, 5_000)), min_size=1, max_size=30
).map(sorted)
"""Arrival in units of 100 ns, prompt, output."""


def azure_instant(ticks: int) -> str:
    seconds, fraction = divmod(ticks, 10**7)
    return f"2023-11-16 18:{seconds // 60:02d}:{seconds % 60:02d}.{fraction:07d}"


@given(rows=ROWS)
@settings(deadline=None)
def test_azure_round_trip(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]]) -> None:
    path = tmp_path_factory.mktemp("azure") / "t"
    lines = [f"{azure_instant(ticks)},{prompt},{output}" for ticks, prompt, output in rows]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(lines))
    trace = read_trace(path, Random(1))
    assert [(r.prompt_tokens, r.output_tokens) for r in trace] == [row[1:] for row in rows]
    for request, row in zip(trace, rows, strict=True):
        assert abs(request.at_s - (row[0] - rows[0][0]) / 1e7) < 1e-9


@given(rows=ROWS, seed=st.integers())
@settings(deadline=None)
def test_mooncake_round_trip(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]], seed: int
) -> None:
    path = tmp_path_factory.mktemp("mooncake") / "t"
    records = [
        {
            "timestamp": at // 10**4,
            "input_length": i,
            "output_length": o,
            "hash_ids": list(range(blocks_of(i))),
        }
        for at, i, o in rows
    ]
    path.write_text("\n".join(json.dumps(record) for record in records))
    trace = read_trace(path, Random(seed))
    assert [(r.prompt_tokens, r.output_tokens) for r in trace] == [row[1:] for row in rows]
    times = [r.at_s for r in trace]
    assert times == sorted(times)
    for request, row in zip(trace, rows, strict=True):
        batch_s = (row[0] // 10**4 - rows[0][0] // 10**4) / 1000
        assert batch_s <= request.at_s <= batch_s + BATCH_S


SCRAPS = st.sampled_from(
    b'TIMESTAMP,ContextTokens,GeneratedTokens|2023-11-16 18:15:46.68,374,44|,|"|\n|\r\n|{|}|[]|-1|1e309|null|NaN|'
    b"\xef\xbb\xbf|"
    b'{"timestamp": 0, "input_length": 700, "output_length": 20, "hash_ids": [0]}'.split(b"|")
)


@given(parts=st.lists(st.one_of(SCRAPS, st.binary(max_size=12)), max_size=12))
@settings(max_examples=examples(300), deadline=None)
def test_any_bytes_give_a_trace_or_a_trace_error(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("scraps") / "t"
    path.write_bytes(b"".join(parts))
    try:
        trace = read_trace(path, Random(1))
    except TraceError as error:
        message = str(error)
    else:
        message = f"{path} is fine"
        assert trace
        assert all(r.prompt_tokens >= 1 and r.output_tokens >= 0 and r.at_s >= 0 for r in trace)
    assert message.startswith(str(path))
    assert "\n" not in message
