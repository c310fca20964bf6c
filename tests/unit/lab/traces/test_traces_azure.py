"""The Azure reader: exact values for valid lines, and an exact error for an invalid line."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from lab.traces.read import read_trace
from lab.traces.trace import TraceError, TraceRequest

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
GOOD = "2023-11-16 18:15:46.6805900,374,44"


def read(path: Path, text: str, newline: str = "\n") -> list[TraceRequest]:
    path.write_bytes(text.replace("\n", newline).encode())
    return read_trace(path, Random(1))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_reads_times_to_the_seventh_digit(tmp_path: Path, newline: str) -> None:
    text = f"{HEADER}\n{GOOD}\n2023-11-16 18:15:50.9951690,396,109\n2023-11-16 18:15:50.9951691,7,0"
    trace = read(tmp_path / "trace", text, newline)
    assert [(r.prompt_tokens, r.output_tokens) for r in trace] == [(374, 44), (396, 109), (7, 0)]
    assert [r.at_s for r in trace] == pytest.approx([0.0, 4.3145790, 4.3145791], abs=1e-9)


def test_finds_columns_by_name_and_skips_others(tmp_path: Path) -> None:
    text = "model,GeneratedTokens,TIMESTAMP,ContextTokens\nx,44,2023-11-16 18:15:46,374\n"
    assert read(tmp_path / "trace", "\ufeff" + text) == [TraceRequest(0.0, 374, 44)]


def test_crosses_midnight(tmp_path: Path) -> None:
    text = f"{HEADER}\n2023-12-31 23:59:59.5,1,1\n2024-01-01 00:00:00.25,1,1\n"
    assert read(tmp_path / "trace", text)[1].at_s == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("text", "line", "field", "message"),
    [
        ("TIMESTAMP,ContextTokens\n" + GOOD, 1, "GeneratedTokens", "the header must be TIMESTAMP,"),
        (f"{HEADER}\n{GOOD}\n2023-11-16 18:15:47,9", 3, "", "2 fields where the header has 3"),
        (f"{HEADER}\n\n16/11/2023 18:15,9,9", 3, "TIMESTAMP", "is not a time"),
        (f"{HEADER}\n2023-13-16 18:15:46,9,9", 2, "TIMESTAMP", "is not a time"),
        (f"{HEADER}\n{GOOD}\n2023-11-16 18:15:46.6,9,9", 3, "TIMESTAMP", "sort the file"),
        (f"{HEADER}\n2023-11-16 18:15:46,0,9", 2, "ContextTokens", "'0' is not a count of tokens"),
        (f"{HEADER}\n2023-11-16 18:15:46,9,-3", 2, "GeneratedTokens", "'-3' is not a count of tokens"),
        (f"{HEADER}\n2023-11-16 18:15:46,9,1.5", 2, "GeneratedTokens", "a whole number from 0"),
        (f"{HEADER}\n2023-11-16 18:15:46,{'9' * 5000},1", 2, "ContextTokens", "is not a count"),
        (HEADER, None, "", "no requests"),
    ],
)
def test_names_line_field_and_remedy(tmp_path: Path, text: str, line: int | None, field: str, message: str) -> None:
    path = tmp_path / "broken.csv"
    with pytest.raises(TraceError) as caught:
        read(path, text)
    error = caught.value
    assert (error.path, error.line, error.field) == (path, line, field)
    assert message in str(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 400
