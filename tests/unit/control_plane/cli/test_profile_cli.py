"""`penstock profile` on files: lines that are no records are counted, and a file without requests is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from control_plane.cli.main import app
from tests.support.codings import gzipped

LINE = {"at": 1e9, "tenant": "acme", "model": "llama", "kind": "home", "server": "eu-de", "outcome": "ok"}


def line(**fields: object) -> str:
    return json.dumps(LINE | {"total_ms": 2000.0, "work_s": 0.5, "request_id": "x"} | fields) + "\n"


def test_lines_of_several_logs_are_added_up(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.log", tmp_path / "b.log.gz"
    plain.write_text(line() + "no record\n\n" + line(model="qwen"))
    packed.write_bytes(gzipped(line(at=1e9 + 100, tenant="other-co").encode()))
    done = CliRunner().invoke(app, ["profile", str(plain), str(packed), "-o", "json"])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["requests"], found["models"]) == (3, {"llama": 2, "qwen": 1})
    assert f"1 lines are no records of an access log; the first is {plain}:2: " in done.stderr
    table = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["profile", str(plain)])
    assert "Proposed slots and reserve" in table.stdout
    assert "50.0%" in table.stdout


@pytest.mark.parametrize("queue_ms", [-1e12, -1.0, 1e12])
def test_an_impossible_wait_occupies_no_slot_before_the_request_arrives(tmp_path: Path, queue_ms: float) -> None:
    log = tmp_path / "a.log"
    log.write_text(line(queue_ms=queue_ms))
    done = CliRunner().invoke(app, ["profile", str(log), "-o", "json"])
    (pool,) = json.loads(done.stdout)["pools"]
    assert pool["mean"] <= 2.0 / 10.0, "of one step"


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    missing, empty, broken = tmp_path / "missing", tmp_path / "empty", tmp_path / "broken.gz"
    damaged, future, impossible = tmp_path / "damaged.gz", tmp_path / "future", tmp_path / "impossible"
    empty.write_text("")
    broken.write_text("not packed")
    packed = bytearray(gzipped(line().encode()))
    packed[10] = 0xFF
    damaged.write_bytes(packed)
    future.write_text(line(at=1e18) + line(at=1e300) + line(at=-1e12))
    impossible.write_text(line(queue_ms=-1e300) + line(work_s=1.79e308) + line(input_tokens=10**400))
    for path, problem in (
        (impossible, "3 lines are no records"),
        (missing, "No such file"),
        (empty, "no request of a client"),
        (broken, "Not a gzipped file"),
        (damaged, "while decompressing data"),
        (future, "3 lines are no records"),
    ):
        done = CliRunner().invoke(app, ["profile", str(path)])
        assert (done.exit_code, problem in done.stderr) == (2, True), done.stderr
