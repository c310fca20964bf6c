from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tests.support.paths import ROOT

CONFTEST = """
import os
from pathlib import Path
import pytest

pytest_plugins = ["tests.support.forked_workers"]

@pytest.fixture(scope="session")
def of_the_session():
    yield
    Path(f"ended-{os.getpid()}").touch()
"""

TESTS = """
import os, signal, warnings

def test_passes(of_the_session):
    os.system("echo of a child")

def test_fails(of_the_session):
    os.system("echo captured text")
    warnings.warn("a warning of a test")
    assert 1 == 2
"""

FATAL = """
import os, signal

def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)

def test_after_a_death():
    pass
"""


def test_workers_report_as_if_the_tests_ran_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name, text in {"test_one": TESTS, "test_two": FATAL, "test_three": TESTS}.items():
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-n", "2", "--junitxml=report.xml", "--rootdir=."]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    cases = {
        f"{case.get('classname')}.{case.get('name')}": case.find("failure") is not None
        for case in ElementTree.parse(tmp_path / "report.xml").getroot().iter("testcase")
    }
    # The tests of the other files run, also if the worker that died was to run them.
    assert cases == {
        "test_one.test_passes": False,
        "test_one.test_fails": True,
        "test_three.test_passes": False,
        "test_three.test_fails": True,
        "test_two.test_dies": True,
    }
    assert "code -9" in run.stdout
    assert "tests did not run" in run.stdout
    assert "a warning of a test" in run.stdout
    assert run.stdout.count("captured text\n") == 2
    assert "of a child" not in run.stdout
    assert 1 <= len(list(tmp_path.glob("ended-*"))) <= 2
