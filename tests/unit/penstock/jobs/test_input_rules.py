"""Lines of input files: splitting in parts of any size, sets of lines, and what follows a response."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.jobs import claims
from penstock.jobs.batches.batch_state import TRANSITIONS, BatchState, InvalidTransition, advance, end_running, is_end
from penstock.jobs.batches.done_lines import DoneLines, ranges_of
from penstock.jobs.batches.item_results import Next, error_line, next_of, problem_of, result_line
from penstock.jobs.batches.line_splitter import LineSplitter, LineTooLong
from penstock.jobs.claims import may_claim, next_claim
from penstock.jobs.completion_window import deadline_of, expected_at, expected_of_waiting
from penstock.jobs.job_records import BatchCounts, BatchRecord, Claim, JobSender
from tests.support.examples import examples

CLOCK_SKEW_S, LEASE_S, NO_DEADLINE = 5.0, 30.0, 253_402_300_799
"""As documented, and not imported: a test fails if a tuned constant changes."""


@settings(max_examples=examples(200))
@given(st.lists(st.sampled_from([b"a", b"bc", b"", b" ", b"d\r"])), st.lists(st.integers(1, 5)), st.booleans())
def test_lines_do_not_depend_on_how_a_file_arrives(lines: list[bytes], sizes: list[int], ended: bool) -> None:
    content = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    splitter, found, at = LineSplitter(), [], 0
    for size in [*sizes, len(content)]:
        found += splitter.feed(content[at : at + size])
        at += size
    found += splitter.finish()
    expected = [(n, line.removesuffix(b"\r")) for n, line in enumerate(lines, 1) if line.strip()]
    assert found == expected


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_byte_order_mark_is_no_part_of_the_first_line(size: int) -> None:
    mark = b"\xef\xbb\xbf"
    content = mark + b"a\r\n" + mark + b"b"
    splitter, found = LineSplitter(), []
    for at in range(0, len(content), size):
        found += splitter.feed(content[at : at + size])
    assert [*found, *splitter.finish()] == [(1, b"a"), (2, mark + b"b")]
    only = LineSplitter()
    assert [*only.feed(mark), *only.finish()] == []


def test_a_long_line_is_refused_before_it_is_complete() -> None:
    splitter = LineSplitter(max_bytes=10)
    assert list(splitter.feed(b"0123456789\n")) == [(1, b"0123456789")]
    assert list(splitter.feed(b"01234")) == []
    with pytest.raises(LineTooLong, match="line 2 is longer than") as refused:
        list(splitter.feed(b"567890"))
    assert refused.value.line == 2


def test_a_line_may_have_the_maximum_length_and_no_more() -> None:
    splitter = LineSplitter(max_bytes=10)
    assert list(splitter.feed(b"01234")) == []
    assert list(splitter.feed(b"\n0123456789")) == [(1, b"01234")]
    assert list(splitter.finish()) == [(2, b"0123456789")]
    with pytest.raises(LineTooLong, match="line 3 is longer than"):
        list(splitter.feed(b"0123456789a\n"))


@settings(max_examples=examples(100))
@given(st.lists(st.integers(1, 60), unique=True))
def test_ranges_have_the_same_lines(lines: list[int]) -> None:
    done = DoneLines(60)
    done.add_ranges(ranges_of(lines))
    assert {line for line in range(1, 61) if line in done} == set(lines)
    assert done.count == len(lines)
    assert not any(done.add(line) for line in lines)
    assert not any(done.add(line) for line in (-1, 0, 61, 63, 64, 10**9)), "lines that the file does not have"


def test_a_line_that_is_not_of_the_file_is_not_added() -> None:
    done = DoneLines(7)
    assert 8 not in done
    assert not done.add(8)
    assert done.count == 0
    assert done.add(7)


def test_every_state_leads_to_an_end() -> None:
    for state in BatchState:
        reached, new = {state}, {state}
        while new:
            new = {after for each in new for after in TRANSITIONS[each]} - reached
            reached |= new
        assert any(is_end(each) for each in reached)
    with pytest.raises(InvalidTransition, match="completed -> in_progress"):
        advance(BatchState.COMPLETED, BatchState.IN_PROGRESS)


@pytest.mark.parametrize(
    ("status", "refusal", "engine_failed", "runs", "following"),
    [
        (200, "", False, 1, Next.RESULT),
        (400, "", False, 1, Next.RESULT),
        (404, "model_not_found", False, 1, Next.RESULT),
        (429, "saturated", False, 50, Next.WAIT),
        (429, "quota_exceeded", False, 50, Next.WAIT),
        (503, "none_ready", False, 50, Next.WAIT),
        (502, "engine_failed", False, 1, Next.RUN_AGAIN),
        (502, "engine_failed", False, 2, Next.RUN_AGAIN),
        (502, "engine_failed", False, 3, Next.RESULT),
        (500, "", False, 1, Next.RUN_AGAIN),
        (503, "none_ready", True, 2, Next.RUN_AGAIN),
        (503, "none_ready", True, 3, Next.RESULT),
        (429, "saturated", True, 2, Next.RUN_AGAIN),
        (429, "saturated", True, 3, Next.RESULT),
    ],
)
def test_what_follows_a_response(status: int, refusal: str, engine_failed: bool, runs: int, following: Next) -> None:
    assert next_of(status, refusal, runs, engine_failed=engine_failed) is following


def test_a_result_is_one_line_of_json() -> None:
    line = result_line("id", "a\n", 200, b'{\n  "text": "a\\nb"\r\n}\n')
    assert (line.count(b"\n"), line.count(b"\r")) == (1, 0)
    assert line.endswith(b"\n")
    assert json.loads(line) == {
        "id": "batch_req_id",
        "custom_id": "a\n",
        "response": {"status_code": 200, "request_id": "id", "body": {"text": "a\nb"}},
        "error": None,
    }
    for body in (b"abc", b"", b'"\xff"', b"{} {}", b"[" * 100_000):
        assert problem_of(200, body) == ("response_not_json", "the response with status 200 is not JSON")
    assert problem_of(500, b' {"a": 1}\n') is None
    error = {"code": "code", "message": "message"}
    line = error_line("id", "a", "code", "message")
    assert line.endswith(b"\n")
    assert json.loads(line) == {"id": "batch_req_id", "custom_id": "a", "response": None, "error": error}


def test_a_claim_is_free_after_its_lease_and_after_a_restart_of_its_agent() -> None:
    claim = Claim(1, "a", epoch=5, until=100.0, started_at=0.0)
    assert may_claim(None, "b", 1, 0.0)
    assert not may_claim(claim, "b", 9, 105.0)
    assert may_claim(claim, "b", 9, 105.1)
    ahead = replace(claim, until=1e9)
    assert not may_claim(ahead, "b", 9, 0.0, unchanged_s=LEASE_S + CLOCK_SKEW_S)
    assert may_claim(ahead, "b", 9, 0.0, unchanged_s=LEASE_S + CLOCK_SKEW_S + 0.1), "its clock was ahead"
    assert may_claim(claim, "a", 6, 50.0)
    assert not may_claim(claim, "a", 5, 50.0)
    assert not may_claim(claim, "a", 4, 50.0)
    assert not may_claim(claim, "b", 9, 500.0, usable_s=LEASE_S), "its agent renews it first"
    assert may_claim(claim, "b", 9, 500.0, usable_s=LEASE_S + 0.1)
    assert may_claim(claim, "a", 6, 500.0, usable_s=0.0)
    assert may_claim(None, "b", 9, 500.0, usable_s=0.0)
    # A claim survives some lost renewals, and the skew of clocks.
    assert claims.LEASE_S >= 4 * claims.RENEW_S + claims.CLOCK_SKEW_S


def test_a_further_claim_continues_the_progress_of_the_newest() -> None:
    first = next_claim(None, "a", 5, 100.0)
    assert first == Claim(1, "a", 5, 100.0 + LEASE_S, 100.0)
    newest = replace(first, until=0.0, counts=BatchCounts(4, 1), per_s=2.0, accepted=((1, 2),))
    assert next_claim(newest, "b", 7, 300.0) == Claim(2, "b", 7, 300.0 + LEASE_S, 100.0, BatchCounts(4, 1))


@pytest.mark.parametrize("end", [state for state in BatchState if is_end(state)])
def test_a_batch_that_runs_reaches_each_end(end: BatchState) -> None:
    assert end_running(end) is end


def test_a_batch_that_runs_cannot_end_in_another_state() -> None:
    for state in (BatchState.VALIDATING, BatchState.IN_PROGRESS, BatchState.FINALIZING):
        with pytest.raises(InvalidTransition):
            end_running(state)


def test_windows_and_forecasts() -> None:
    windows = ("24h", "1h", "7d", "14d", "none")
    assert [deadline_of(text, 5) for text in windows] == [86_405, 3605, 604_805, 1_209_605, NO_DEADLINE]
    assert [deadline_of(text, 5) for text in ("15d", "0h", "24", "-1h", "1m", "99999h", "")] == [None] * 7
    record = BatchRecord("b", JobSender("t", "open"), "f", "/v1/embeddings", "24h", 0, 1000, requests=100)
    claim = Claim(1, "a", 1, 0.0, 0.0, BatchCounts(40, 10), per_s=0.5)
    assert expected_at(record, claim, 500.0) == 600
    assert expected_at(record, claim, 950.0) == 1050, "and not the deadline, after which requests expire"
    assert expected_at(record, None, 0.0) is None
    assert expected_at(record, Claim(1, "a", 1, 0.0, 0.0), 500.0) is None
    assert expected_at(record, Claim(1, "a", 1, 0.0, 0.0, BatchCounts(90, 20), per_s=0.5), 500.0) == 500
    assert expected_of_waiting(100, [], 0.0, 500.0) is None, "no request of a batch has ended"
    assert expected_of_waiting(100, [], 4.0, 500.0) == 525, "by the rate of the last batch"
    assert expected_of_waiting(100, [(50, 0.0)], 4.0, 500.0) is None
    assert expected_of_waiting(100, [(50, 1.0), (30, 0.5)], 4.0, 500.0) == 620, "behind those that run"
