"""Runs the suite repeatedly, in random order, with and without CPU load, and prints the failures of each test.

`make test-stress` runs `python -m tests.support.stress --rounds 4 -- [pytest arguments]`. Exits with 1 if any test
failed.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.paths import ROOT

HOG = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"
"""Program that keeps a core busy until the parent process ends."""


@contextmanager
def cpu_hogs(count: int) -> Iterator[None]:
    """Run `count` processes that each keep a core busy."""
    hogs = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(count)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def run_once(arguments: Sequence[str], seed: int) -> tuple[int, list[str]]:
    """Run pytest in the order of a seed. Returns the number of tests and the names of failed tests."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
        environment = {"PENSTOCK_TEST_EXAMPLES": "1", **os.environ, "PENSTOCK_TEST_ORDER": str(seed)}
        finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if not report.exists():
            raise SystemExit(f"pytest wrote no report:\n{finished.stdout[-2000:]}{finished.stderr[-2000:]}")
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    for case in failed:
        problem = case.find("failure")
        text = (problem if problem is not None else case.find("error")).get("message", "")  # type: ignore[union-attr]
        print(f"    {_name(case)}: {' '.join(text.split())[:200]}", flush=True)
    return len(cases), [_name(case) for case in failed]


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}::{case.get('name')}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 if any test failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.stress", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=4, help="runs of the suite, every second with CPU load (default 4)"
    )
    parser.add_argument("--seed", type=int, default=None, help="seed of the order of the first run; random by default")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    given = parser.parse_args(arguments)
    first = given.seed if given.seed is not None else random.randrange(1_000_000)
    cores = len(os.sched_getaffinity(0))
    failures: Counter[str] = Counter()
    for number in range(given.rounds):
        hogs = cores if number % 2 else 0
        with cpu_hogs(hogs):
            count, failed = run_once(given.pytest, first + number)
        failures.update(failed)
        print(
            f"run {number + 1}: {count} tests, {len(failed)} failed, {hogs} CPU hogs, order {first + number}",
            flush=True,
        )
    for name, times in failures.most_common():
        print(f"{times}/{given.rounds} {name}")
    print(f"{given.rounds} runs, {len(failures)} tests failed at least once")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
