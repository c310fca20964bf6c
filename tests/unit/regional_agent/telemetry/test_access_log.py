from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
import structlog

from penstock.log_chains.log_ends import SignedHeads
from penstock.log_chains.residency_report import ReportBuilder
from penstock.log_chains.signed_head import SignedHead, read_head
from regional_agent.telemetry.access_line import AccessLine
from regional_agent.telemetry.access_log import BLOCK_LINES, AccessLog, LogSigner
from tests.support.identities import agent_keyring, trust
from tests.support.wait import until


def line(name: str, at: float = 0.0) -> AccessLine:
    return AccessLine(at, name, "t", "m", "/v1/x", "home", "eu-de", "gpu-0", "ok", 200, 1, 10, 20, 3.0)


def written(file: Path) -> list[str]:
    return [json.loads(record)["request_id"] for record in file.read_text().splitlines()]


def test_every_line_is_written_in_order(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    log = AccessLog(file, 1.0, Random(1))
    names = [f"r{n}" for n in range(3 * BLOCK_LINES + 5)]
    for name in names:
        log.add(line(name))
    log.close()
    assert written(file) == names
    assert log.dropped_lines == 0


def test_a_renamed_file_is_begun_anew(tmp_path: Path) -> None:
    file, old = tmp_path / "access.log", tmp_path / "access.log.1"
    log = AccessLog(file, 1.0, Random(1))
    file.rename(old)
    log.add(line("new"))
    log.close()
    assert (written(old), written(file)) == ([], ["new"])


async def test_the_chain_continues_over_rotation_and_lost_lines(tmp_path: Path) -> None:
    directory, away = tmp_path / "logs", tmp_path / "away"
    directory.mkdir()
    file, old = directory / "access.log", directory / "access.log.1"
    log = AccessLog(file, 1.0, Random(1), LogSigner("eu-de", "a"))
    log.add(line("rotated"))
    log.flush()
    await until(lambda: file.stat().st_size > 0)
    file.rename(old)
    directory.rename(away)
    log.add(line("lost"))
    log.flush()
    await until(lambda: log.dropped_lines == 1)
    away.rename(directory)
    log.add(line("kept"))
    with structlog.testing.capture_logs() as logged:
        log.close()
    assert (written(old), written(file)) == (["rotated"], ["kept"])
    builder = ReportBuilder()
    for log_file in (file, old):
        with log_file.open("rb") as lines:
            builder.add_file(log_file.name, lines)
    report = builder.report()
    assert [(epoch.first_seq, epoch.head.seq, epoch.dropped) for epoch in report.epochs] == [(1, 3, 1)]
    assert report.epochs[0].head.epoch.startswith("eu-de/a/")
    heads = [entry["head"] for entry in logged if "head" in entry]
    assert [head.split(":")[1] for head in heads] == ["1", "3"]
    assert heads[-1] == str(report.epochs[0].head)
    assert [(fault.file, fault.problem) for fault in report.faults] == [
        ("access.log", "the agent dropped the 1 lines before it")
    ]


async def test_the_head_is_signed_at_start_at_rotation_in_intervals_and_at_the_end(tmp_path: Path) -> None:
    file, old, heads = tmp_path / "access.log", tmp_path / "access.log.1", tmp_path / "access.log.heads"

    def stated() -> list[SignedHead]:
        return [read_head(text, trust()) for text in heads.read_bytes().splitlines()]

    def written_heads() -> int:
        return heads.read_bytes().count(b"\n") if heads.exists() else 0

    signer = LogSigner("eu", "agent-1", agent_keyring())
    started = time.time()
    log = AccessLog(file, 1.0, Random(1), signer, sign_interval_s=3600.0)
    await until(lambda: written_heads() == 1)
    log.add(line("rotated"))
    log.flush()
    await until(lambda: file.stat().st_size > 0)
    file.rename(old)
    log.add(line("last", at=started + 3.0))
    log.close()
    assert [(head.head.seq, head.final) for head in stated()] == [(0, False), (1, False), (2, True)]
    assert stated()[1].until == pytest.approx(started + 3.0, abs=0.01), "the first line that is not in the renamed file"
    assert started <= stated()[2].until + 0.01 <= time.time() + 0.01
    signed = SignedHeads(trust())
    signed.add_file("heads", heads.read_bytes().splitlines())
    report = ReportBuilder(signed=signed)
    for log_file in (file, old):
        report.add_file(log_file.name, log_file.read_bytes().splitlines(keepends=True))
    assert (report.report().unproved, signed.faults) == ((), [])

    log = AccessLog(file, 1.0, Random(1), signer, sign_interval_s=0.001)
    await until(lambda: written_heads() >= 6)
    log.close()


def test_lines_that_were_dropped_leave_the_end_unsigned(tmp_path: Path) -> None:
    file = tmp_path / "full"
    file.symlink_to("/dev/full")
    log = AccessLog(file, 1.0, Random(1), LogSigner("eu", "agent-1", agent_keyring()), sign_interval_s=3600.0)
    log.add(line("lost"))
    log.close()
    heads = (tmp_path / "full.heads").read_bytes().splitlines()
    assert [read_head(head, trust()).final for head in heads] == [False]


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Let this process write no file beyond this size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_block_that_does_not_fit_on_the_disk_leaves_no_part_of_a_line(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    log = AccessLog(file, 1.0, Random(1), LogSigner("eu-de", "a"))
    with structlog.testing.capture_logs(), largest_file(1 << 18):
        for number in range(10 * BLOCK_LINES):
            log.add(line(f"r{number}"))
        log.flush()
        await until(lambda: log.dropped_lines > 0)
    log.add(line("kept"))
    log.close()
    assert written(file)[-1] == "kept"
    builder = ReportBuilder()
    with file.open("rb") as lines:
        builder.add_file(file.name, lines)
    assert [fault.problem for fault in builder.report().faults] == [
        f"the agent dropped the {log.dropped_lines} lines before it"
    ]


def test_failures_are_always_logged_and_the_rest_by_share(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "access.log", 0.1, Random(1))
    assert all(log.samples(False) for _ in range(100))
    assert 50 < sum(log.samples(True) for _ in range(1000)) < 200
    log.close()


def test_a_disk_that_does_not_keep_up_costs_lines_and_no_time(tmp_path: Path) -> None:
    log = AccessLog(Path("/dev/full"), 1.0, Random(1))
    for _ in range(BLOCK_LINES):
        log.add(line("lost"))
    log.close()
    assert log.dropped_lines == BLOCK_LINES
