"""Runs mutmut on the functions of the decision core, on all mutants or on a random sample, and counts the survivors."""

from __future__ import annotations

import json
import subprocess
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.support.paths import ROOT

MUTANTS = ROOT / "mutants"
"""The copy of the tree in which mutmut works."""

SURVIVED = 0
"""Exit code that mutmut records for a mutant that no test noticed."""

UNTESTED = 33
"""Exit code that mutmut records for a mutant in a function that no test calls."""

TIMED_OUT = (-24, 24, 36, 152, 255)
"""Exit codes that mutmut records for a mutant whose tests exceeded its limit of time: an endless loop, or a busy
machine."""

MAX_FAST_S = 0.5
"""Duration (s) below which a test is fast."""


@dataclass
class Score:
    """The results of one package."""

    mutants: int = 0
    survivors: list[str] = field(default_factory=list)
    timed_out: list[str] = field(default_factory=list)

    @property
    def killed_share(self) -> float:
        """Share of mutants that a test noticed, those that timed out included."""
        return 1.0 - len(self.survivors) / self.mutants if self.mutants else 1.0


def results() -> dict[str, int | None]:
    """Exit code by mutant; None for one that did not run. mutmut keeps the mutants of modules that were removed."""
    found: dict[str, int | None] = {}
    for file in MUTANTS.glob("penstock/**/*.meta"):
        if (ROOT / file.relative_to(MUTANTS)).with_suffix("").is_file():
            found |= json.loads(file.read_text())["exit_code_by_key"]
    return found


def generate(mutmut: Path) -> list[str]:
    """Generate the mutants; returns their names, sorted."""
    # A pattern that no mutant matches: mutmut generates, and runs nothing.
    subprocess.run([mutmut, "run", "--max-children", "1", "none"], cwd=ROOT, capture_output=True, check=False)
    return sorted(results())


def run(mutmut: Path, packages: list[str], sample: int, seed: int, workers: int) -> dict[str, Score]:
    """Run mutants of the packages.

    Args:
        packages: packages of penstock, such as `routing`.
        sample: number of mutants for each package; 0 for all.
        workers: processes at a time.
    """
    scores: dict[str, Score] = defaultdict(Score)
    names = generate(mutmut)
    if not names:
        raise SystemExit("mutmut generated no mutants: run `mutmut run` by hand to see why")
    chosen: list[str] = []
    for package in packages:
        of_package = [name for name in names if name.startswith(f"penstock.{package}.")]
        if not of_package:
            raise SystemExit(f"package {package!r} has no mutants: name a folder of penstock/ that is mutated")
        chosen += Random(seed).sample(of_package, min(sample or len(of_package), len(of_package)))
    leave_out_slow_tests()
    subprocess.run([mutmut, "run", "--max-children", str(workers), *chosen], cwd=ROOT, check=False)
    found = results()
    missing = sum(found[name] is None for name in chosen)
    if missing:
        raise SystemExit(f"{missing} of {len(chosen)} mutants did not run: the output of mutmut above says why")
    for name in chosen:
        score = scores[name.split(".")[1]]
        score.mutants += 1
        if found[name] in (SURVIVED, UNTESTED):
            score.survivors.append(name)
        elif found[name] in TIMED_OUT:
            score.timed_out.append(name)
    return scores


def leave_out_slow_tests() -> None:
    """Let mutmut run the fast tests only, where a function has some: rules are to have fast tests, and a mutant that
    survives them would run for minutes."""
    file = MUTANTS / "mutmut-stats.json"
    statistics = json.loads(file.read_text())
    fast = _fast(statistics)
    tests_of = statistics["tests_by_mangled_function_name"]
    for function, tests in tests_of.items():
        tests_of[function] = sorted(fast.intersection(tests)) or tests
    file.write_text(json.dumps(statistics))


def difference(mutmut: Path, name: str) -> str:
    """Return what a mutant changes."""
    shown = subprocess.run([mutmut, "show", name], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return "\n".join(line for line in shown.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---"))


def fast_tests_by_module() -> dict[str, set[str]]:
    """Ids of the fast tests that call a function of a module, by module."""
    statistics = json.loads((MUTANTS / "mutmut-stats.json").read_text())
    fast = _fast(statistics)
    found: dict[str, set[str]] = defaultdict(set)
    for function, tests in statistics["tests_by_mangled_function_name"].items():
        found[function.split(".x", 1)[0]].update(fast.intersection(tests))
    return found


def _fast(statistics: dict[str, Any]) -> set[str]:
    return {test for test, duration_s in statistics["duration_by_test"].items() if duration_s < MAX_FAST_S}


def summary(scores: dict[str, Score]) -> str:
    """Return a line for each package, and one for all."""
    total = Counter[str]()
    lines = []
    for package, score in sorted(scores.items()):
        of_these = f", {len(score.timed_out)} by the limit of time" if score.timed_out else ""
        lines.append(f"{package:<12} {score.mutants:>6} mutants  {score.killed_share:.0%} killed{of_these}")
        total["mutants"] += score.mutants
        total["survivors"] += len(score.survivors)
    if total["mutants"]:
        killed = 1.0 - total["survivors"] / total["mutants"]
        lines.append(f"{'all':<12} {total['mutants']:>6} mutants  {killed:.0%} killed")
    return "\n".join(lines)
