"""`penstock-lab replay` as a process: a summary for people, JSON for programs, one line for bad input."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.support.scripted_entry import Asked, entry

START = [sys.executable, "-c", "from lab.cli import main; main()", "replay"]

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:46.{tenth}000000,30,4\n" for tenth in range(10)
)


async def replay(*arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *START, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def answer(asked: Asked) -> None:
    asked.stream(4, x_penstock_region="eu-de")


async def test_replays_a_trace_and_prints_a_summary(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text(TRACE)
    out = tmp_path / "results.json"
    async with entry(answer) as near:
        url = f"eu-de=http://127.0.0.1:{near.port}"
        arguments = ["--trace", str(tmp_path / "trace"), "--entry", url, "--key", "k", "--out", str(out)]
        code, said, complained = await replay(*arguments)
    assert (code, complained) == (0, "")
    assert said.startswith("10 requests: 10 ok, 0 refused, 0 failed, 0 cancelled; 0 went to more than one entry\n")
    results = json.loads(out.read_text())
    assert results["requests"]["ok"] == 10
    assert results["by_region"]["eu-de"]["requests"] == 10
    assert len(near.asked) == 10
    assert {asked.headers["authorization"] for asked in near.asked} == {"Bearer k"}


async def test_generates_a_workload_without_a_trace() -> None:
    async with entry(answer) as near:
        url = f"http://127.0.0.1:{near.port}"
        code, said, _ = await replay("--entry", url, "--seconds", "2", "--rate", "2.5", "--hang-up", "0.5")
    assert code == 0
    assert " cancelled" in said
    assert len(near.asked) > 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "absent.csv"], "absent.csv: No such file or directory; give the path of a readable trace"),
        (["--trace", "broken.csv"], "broken.csv, line 2: TIMESTAMP: 'yesterday' is not a time; write it like"),
        (["--geoip", "broken.csv"], "broken.csv: not a sound MaxMind DB"),
        (["--entry", "ftp://x"], "'ftp://x' is not a URL like http://"),
    ],
)
async def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.csv").write_text(TRACE.partition("\n")[0] + "\nyesterday,1,1\n")
    code, out, err = await replay("--entry", "http://127.0.0.1:9", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"penstock-lab replay: {message}")
    assert err.count("\n") == 1
