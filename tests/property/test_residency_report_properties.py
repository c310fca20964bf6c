"""The report on a manipulated log is no evidence; an unchanged log is complete, however it was rotated."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log_chains.access_log_chain import ChainHead, ChainWriter, chained_line, epoch_of
from penstock.log_chains.residency_report import ReportBuilder, ResidencyReport
from tests.support.examples import examples

LINES = 12


def log(epoch: str, count: int = LINES, blocks: int = 3, dropped_block: int | None = None) -> list[bytes]:
    """The lines of one start of an agent, in blocks, of which one may have been dropped."""
    chain, lines = ChainWriter(epoch, 1.0), []
    for number in range(0, count, blocks):
        requests = [
            {"at": float(n), "request_id": f"r{n}", "tenant": "acme", "kind": "home", "server": "eu-de"}
            | {"outcome": "ok", "origin": "eu-de", "residency_class": "eu-de+eu-es"}
            for n in range(number, min(number + blocks, count))
        ]
        if number // blocks == dropped_block:
            continue
        chained, last = chain.chained(msgspec.json.Encoder().encode_lines(requests), number + 1)
        chain.written(last)
        lines += chained.splitlines(keepends=True)
    return lines


def report(*files: list[bytes], kept: tuple[ChainHead, ...] = ()) -> ResidencyReport:
    builder = ReportBuilder(kept=kept)
    for number, lines in enumerate(files):
        builder.add_file(f"file-{number}", lines)
    return builder.report()


ONE, OTHER = log(epoch_of("eu-de", "a", 1)), log(epoch_of("eu-de", "a", 2))


@settings(max_examples=examples(50))
@given(st.integers(0, LINES), st.integers(0, LINES), st.randoms(use_true_random=False))
def test_rotation_and_the_order_of_files_do_not_matter(cut: int, other_cut: int, random: object) -> None:
    files = [ONE[:cut], ONE[cut:] + OTHER[:other_cut], OTHER[other_cut:]]
    random.shuffle(files)  # type: ignore[attr-defined]
    outcome = report(*files)
    assert (outcome.consistent, outcome.faults, outcome.requests) == (True, (), 2 * LINES)
    assert [epoch.head.seq for epoch in outcome.epochs] == [LINES, LINES]


@settings(max_examples=examples(100))
@given(st.integers(0, LINES - 1), st.integers(0, 1000), st.integers(1, 255))
def test_a_changed_byte_is_reported(line: int, place: int, flip: int) -> None:
    text = bytearray(ONE[line])
    text[place % (len(text) - 1)] ^= flip
    assert not report([*ONE[:line], bytes(text), *ONE[line + 1 :]]).consistent


@settings(max_examples=examples(50))
@given(st.integers(0, LINES - 2), st.integers(1, LINES - 1))
def test_removed_lines_are_reported_with_file_and_line(first: int, count: int) -> None:
    rest = ONE[min(first + count, LINES - 1) :]
    outcome = report([*ONE[:first], *rest])
    assert [(fault.file, fault.line) for fault in outcome.faults] == [("file-0", first + 1)]
    assert "missing" in outcome.faults[0].problem


@settings(max_examples=examples(50))
@given(st.permutations(range(LINES)))
def test_reordered_lines_are_reported(order: list[int]) -> None:
    assert report([ONE[n] for n in order]).consistent is (order == list(range(LINES)))


@settings(max_examples=examples(20))
@given(st.integers(0, LINES - 1))
def test_lines_of_another_start_are_reported(line: int) -> None:
    foreign = ONE[line].replace(b"eu-de/a/1", b"eu-de/a/2")
    assert not report([*OTHER[:line], foreign, *OTHER[line + 1 :]]).consistent
    assert not report([*ONE, ONE[line]]).consistent, "repeated"


@settings(max_examples=examples(20))
@given(st.integers(0, LINES - 1))
def test_a_removed_end_is_found_by_a_kept_head(length: int) -> None:
    last = chained_line(ONE[-1].rstrip(b"\n"))
    assert last is not None
    assert report(ONE, kept=(last.head,)).consistent
    assert not report(ONE[:length], kept=(last.head,)).consistent


@settings(max_examples=examples(10))
@given(st.integers(0, 2))
def test_lines_that_the_agent_dropped_are_counted(block: int) -> None:
    outcome = report(log("eu-de/a/1", dropped_block=block))
    assert (outcome.consistent, outcome.epochs[0].dropped, len(outcome.faults)) == (False, 3, 1)
    assert "dropped the 3 lines" in outcome.faults[0].problem
