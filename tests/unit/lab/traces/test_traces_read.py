"""Opening a trace: the content determines the format, other files are refused, real traces are read completely."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from lab.traces.generate import CHAT_ARRIVALS, CHAT_LENGTHS
from lab.traces.lines import MAX_LINE_BYTES
from lab.traces.read import read_trace
from lab.traces.trace import TraceError
from tests.support.paths import SHARED_DATA
from tests.support.trace_statistics import cache_hit_ratio, dispersion, length_misfit

AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n2023-11-16 18:15:56,374,44\n"
MOONCAKE = b'{"timestamp": 0, "input_length": 700, "output_length": 20, "hash_ids": [0, 1]}\n'

REAL_TRACES = SHARED_DATA / "traces"
needs_real_traces = pytest.mark.skipif(
    not REAL_TRACES.is_dir(), reason="the real traces are not at ../shared/data/traces"
)


def test_the_content_determines_the_format(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(AZURE)
    (tmp_path / "m.csv").write_bytes(b"\n\n" + MOONCAKE)
    assert read_trace(tmp_path / "a.jsonl", Random(1))[0].output_tokens == 44
    assert read_trace(tmp_path / "m.csv", Random(1))[0].output_tokens == 20


def test_a_window_reads_no_further(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(AZURE + b"this line is broken\n")
    assert len(read_trace(tmp_path / "t", Random(1), window_s=10.0)) == 1


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (b"", None, "the file is empty"),
        (b"\n  \n", None, "the file is empty"),
        (b"hello, world\n", 1, "the format is not known"),
        (b"\x1f\x8b\x08\x00compressed", 1, "not UTF-8"),
        (AZURE + b"2023-11-16 18:15:57,\xff,44", 4, "not UTF-8"),
        (b"x" * (MAX_LINE_BYTES + 1), 1, "longer than"),
    ],
)
def test_refuses_other_files(tmp_path: Path, content: bytes, line: int | None, message: str) -> None:
    path = tmp_path / "t"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(path, Random(1))
    assert caught.value.line == line


def test_refuses_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "absent.csv", Random(1))
    with pytest.raises(TraceError, match="Is a directory"):
        read_trace(tmp_path, Random(1))


def test_an_empty_window_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(AZURE)
    with pytest.raises(TraceError, match="first 0 s; take a longer window"):
        read_trace(tmp_path / "t", Random(1), window_s=0.0)


@needs_real_traces
def test_the_real_conversation_trace_fits_the_committed_figures() -> None:
    trace = read_trace(REAL_TRACES / "azure-llm-2023-conv.csv", Random(1))
    assert len(trace) == 19_366
    assert max(length_misfit(trace, CHAT_LENGTHS)) < 0.065
    times_s = [request.at_s for request in trace]
    assert len(trace) / times_s[-1] == pytest.approx(CHAT_ARRIVALS.rate_per_s, rel=0.001)
    assert dispersion(times_s, 1.0) == pytest.approx(1.4, abs=0.05)
    assert dispersion(times_s, 120.0) == pytest.approx(29.5, abs=0.1)


@needs_real_traces
def test_the_real_code_trace_fits_the_committed_figures() -> None:
    trace = read_trace(REAL_TRACES / "azure-llm-2023-code.csv", Random(1))
    assert len(trace) == 8_819
    times_s = [request.at_s for request in trace]
    assert len(trace) / times_s[-1] == pytest.approx(2.57, rel=0.002)
    assert dispersion(times_s, 10.0) == pytest.approx(71, abs=1)


@needs_real_traces
def test_the_real_mooncake_trace_fits_the_committed_figures() -> None:
    trace = read_trace(REAL_TRACES / "mooncake-conversation.jsonl", Random(1))
    assert len(trace) == 12_031
    assert cache_hit_ratio(trace) == pytest.approx(0.366, abs=0.001)
    times_s = [request.at_s for request in trace]
    assert times_s == sorted(times_s)
    assert dispersion(times_s, 1.0) < 1.2, "arrivals still come in batches"
