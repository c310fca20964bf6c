"""Whatever a library prints, standard output has the results alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.garbage_collection import main_command
from tests.support.paths import PLANET, ROOT

NOISE = "import ctypes, os\nos.write(1, b'native\\n')\nctypes.CDLL(None).printf(b'buffered\\n')\nprint('python')\n"
"""Prints by a system call, into the buffer of the C library, which is written at exit, and by Python."""

CLI = f"""
import sys
import highspy

made = highspy.Highs.__init__
def loud(self):
    exec({NOISE!r})
    made(self)
highspy.Highs.__init__ = loud
from control_plane.cli.main import main
main()
"""


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120
    )


def noise(text: str) -> set[str]:
    return {"native", "buffered", "python"} & set(text.splitlines())


def test_a_child_process_answers_with_its_reply_alone(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        f"{NOISE}def main(output):\n    {NOISE.replace(chr(10), ';')}output.write(b'reply')\n"
    )
    done = run(*main_command("loud"), PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert (done.returncode, done.stdout) == (0, "reply")
    assert noise(done.stderr) == {"native", "buffered", "python"}


def test_json_is_all_that_a_command_prints() -> None:
    done = run(sys.executable, "-c", CLI, "policy", "simulate", str(PLANET), str(PLANET), "-ojson")
    assert json.loads(done.stdout)["before"]["requests_per_s"] == pytest.approx(100.0)
    assert noise(done.stderr) == {"native", "buffered", "python"}


def test_the_error_of_a_command_is_json_alone() -> None:
    done = run(sys.executable, "-c", CLI, "policy", "simulate", str(PLANET), "/nowhere", "-ojson")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["exit_code"] == 2


def test_native_code_cannot_write_between_the_lines_of_a_table() -> None:
    done = run(sys.executable, "-c", CLI, "policy", "simulate", str(PLANET), str(PLANET))
    assert "requests /s" in done.stdout
    assert noise(done.stdout) <= {"python"}


def test_a_closed_standard_output_is_no_error_of_another_kind() -> None:
    script = "from adapters.standard_output import divert_native_output; divert_native_output()"
    done = run("sh", "-c", f"{sys.executable} -c '{script}' >&-")
    assert (done.returncode, done.stderr) == (0, "")
