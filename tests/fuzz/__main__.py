"""Runs the fuzz targets: `python -m tests.fuzz [TARGET ...] --seconds 60`, or one input: `... TARGET --input FILE`.

A target is a module of this folder. Its docstring states the property, `check(data)` raises if the property does not
hold, and `WORDS` are strings that mutations insert. atheris (libFuzzer) makes the inputs, guided by coverage, from the
seeds in `corpus/<target>/` and from the inputs of earlier runs in `out/fuzz/corpus/<target>/`.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from tests.support.paths import ROOT

FOLDER = Path(__file__).parent
SEEDS = FOLDER / "corpus"
OUT = ROOT / "out" / "fuzz"

PRODUCT = ["penstock", "adapters", "control_plane", "regional_agent"]
"""Packages whose coverage guides the mutations."""

MAX_INPUT_BYTES = 8192

MAX_INPUT_S = 5
"""Longest time (s) for one input; a longer one is a finding."""

MAX_MEMORY_MB = 1024
"""Largest memory of a target's process; more is a finding."""

INPUT = "PENSTOCK_FUZZ_TARGET"
"""Names the target in the environment of the process that fuzzes."""


class Run(NamedTuple):
    """The result of one run."""

    executions: int
    per_s: int
    edges: int
    """Branches of the product's code that the inputs reached."""
    new_inputs: int
    peak_mb: int
    finding: Path | None
    """The input that violates the property, or None."""
    status: int


def targets() -> list[str]:
    """The names of all targets."""
    return sorted(file.stem for file in FOLDER.glob("*.py") if not file.stem.startswith("_"))


def seeds(target: str) -> list[Path]:
    """The committed inputs of a target."""
    return sorted((SEEDS / target).iterdir())


def check_of(target: str) -> Callable[[bytes], None]:
    """The function that checks the property of a target."""
    check: Callable[[bytes], None] = import_module(f"tests.fuzz.{target}").check
    return check


def fuzz(target: str, seconds: int) -> Run:
    """Fuzz one target in a process of its own. The log is written to `out/fuzz/<target>.log`."""
    found = OUT / target
    new = OUT / "corpus" / target
    for folder in (found, new):
        folder.mkdir(parents=True, exist_ok=True)
    words = OUT / f"{target}.dict"
    words.write_text("".join(_dictionary(getattr(import_module(f"tests.fuzz.{target}"), "WORDS", ()))))
    command = [
        *(sys.executable, "-m", "tests.fuzz", str(new), str(SEEDS / target)),
        *(f"-max_total_time={seconds}", f"-timeout={MAX_INPUT_S}", f"-rss_limit_mb={MAX_MEMORY_MB}"),
        *(f"-max_len={MAX_INPUT_BYTES}", f"-dict={words}", f"-artifact_prefix={found}/", "-print_final_stats=1"),
    ]
    with (OUT / f"{target}.log").open("wb") as log:
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | {INPUT: target}, stdout=log, stderr=subprocess.STDOUT, check=False
        )
    text = (OUT / f"{target}.log").read_text(errors="replace")
    edges = [int(count) for count in re.findall(r"cov: (\d+)", text)]
    finding = re.search(r"Test unit written to (\S+)", text)
    return Run(
        _stat(text, "number_of_executed_units"),
        _stat(text, "average_exec_per_sec"),
        max(edges, default=0),
        _stat(text, "new_units_added"),
        _stat(text, "peak_rss_mb"),
        Path(finding[1]) if finding else None,
        done.returncode,
    )


def _stat(text: str, name: str) -> int:
    found = re.search(rf"stat::{name}:\s+(\d+)", text)
    return int(found[1]) if found else 0


def _dictionary(words: Sequence[bytes]) -> Iterator[str]:
    """Lines of libFuzzer's dictionary format."""
    for word in words:
        escaped = "".join(f"\\x{byte:02x}" for byte in word)
        yield f'"{escaped}"\n'


def _fuzz_here(target: str) -> None:
    """Fuzz in this process with libFuzzer's arguments; does not return."""
    import atheris
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with atheris.instrument_imports(include=PRODUCT):
        check = check_of(target)
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


def main() -> int:
    """The command line; returns the exit status: 1 after a finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz what reads input from outside.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(targets())}; default: all")
    parser.add_argument("--seconds", type=int, default=60, help="time for each target, in seconds; 60")
    parser.add_argument("--input", type=Path, help="check this file only, without fuzzing")
    options = parser.parse_args()
    unknown = set(options.targets) - set(targets())
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(targets())}")
    if options.input is not None:
        for target in options.targets:
            check_of(target)(options.input.read_bytes())
            print(f"{target}: the property holds")
        return 0
    failed = False
    for target in options.targets or targets():
        run = fuzz(target, options.seconds)
        numbers = f"{run.executions:>10,} executions {run.per_s:>6,}/s {run.edges:>5} edges {run.peak_mb:>4} MB"
        print(f"{target:<15}{numbers}  {'held' if run.status == 0 else 'FINDING'}", flush=True)
        if run.status != 0:
            failed = True
            where = run.finding.relative_to(ROOT) if run.finding is not None else None
            print(f"  see {(OUT / target).relative_to(ROOT)}.log")
            if where is not None:
                print(f"  reproduce: make fuzz TARGET={target} INPUT={where}", flush=True)
    return int(failed)


if __name__ == "__main__":
    if INPUT in os.environ:
        _fuzz_here(os.environ[INPUT])
    sys.exit(main())
