from __future__ import annotations

import json
from pathlib import Path
from random import Random

from regional_agent.telemetry.access_log import BLOCK_LINES, AccessLine, AccessLog


def line(name: str) -> AccessLine:
    return AccessLine(0.0, name, "t", "m", "/v1/x", "home", "eu-de", "gpu-0", "ok", 200, 1, 10, 20, 3.0)


def written(file: Path) -> list[str]:
    return [json.loads(one)["request_id"] for one in file.read_text().splitlines()]


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
