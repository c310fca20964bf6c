"""`make test-mutations`: how many changed rules and constants of the decision core do the tests notice?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.mutation.constants import survivors
from tests.mutation.mutants import difference, run, summary

PACKAGES = [
    "accounts", "admission", "answers", "dns", "health", "jobs", "ledger",
    "planning", "policy", "rollout", "routing", "scaling", "tenancy",
]  # fmt: skip
"""The packages that `[tool.mutmut]` in pyproject.toml mutates."""

MIN_KILLED = 0.85
"""Smallest share of mutants that the tests notice."""


def main() -> int:
    """Run the mutants, then the constants; returns 1 if too many mutants survive."""
    parser = argparse.ArgumentParser(prog="make test-mutations", description=__doc__)
    parser.add_argument("packages", nargs="*", default=PACKAGES, metavar="package", help=f"of {', '.join(PACKAGES)}")
    parser.add_argument("--sample", type=int, default=100, help="mutants of each package; 0 for all, which takes hours")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--constants", action="store_true", help="change the tuned constants, too")
    options = parser.parse_args()
    mutmut = Path(sys.executable).parent / "mutmut"
    scores = run(mutmut, options.packages, options.sample, options.seed, options.workers)
    for score in scores.values():
        for ended, names in (("survived", score.survivors), ("timed out", score.timed_out)):
            for name in names:
                print(f"\n{ended}: {name}\n{difference(mutmut, name)}")
    if options.constants:
        for package in options.packages:
            for constant, change, survived in survivors(package):
                if survived:
                    print(f"survived: {constant.file.name}:{constant.line} {constant.name} = {change}", flush=True)
    print(f"\n{summary(scores)}")
    return int(any(score.killed_share < MIN_KILLED for score in scores.values()))


if __name__ == "__main__":
    sys.exit(main())
