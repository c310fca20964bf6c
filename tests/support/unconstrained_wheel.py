"""`python -m tests.support.unconstrained_wheel WHEEL VENV`: check the wheel with the newest dependencies.

The project's environments have the versions of constraints.txt; an installation of the wheel has the newest ones that
its bounds permit. Every module is imported, the commands that compute print JSON and nothing else, and a region of
`penstock quickstart` serves a request.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import msgspec

from adapters.garbage_collection import main_command
from control_plane.evaluation.evaluation_jobs import LiveFleet, WhatIfJob
from control_plane.evaluation.evaluation_process import LENGTH_BYTES, Reply
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from tests.support.engines import running_engines
from tests.support.paths import PLANET
from tests.support.quickstarts import chat, key_in, running

COMMANDS = (
    ("policy", "lint", PLANET),
    ("policy", "verify", PLANET),
    ("policy", "diff", PLANET, PLANET),
    ("policy", "simulate", PLANET, PLANET),
    ("policy", "simulate", PLANET, PLANET, "--lost", "eu-es"),
    ("explain", "--policy", PLANET, "--origin", "eu-de", "--model", "llama-3.1-8b", "--tenant", "acme"),
)

WITH_EXTRAS = (
    "adapters.object_store.bucket_store",
    "control_plane.usage.compaction",
    "control_plane.usage.idle_query",
    "control_plane.usage.segment_query",
    "control_plane.usage.usage_query",
    "regional_agent.ledger.segment_parquet",
)
"""The modules that need the extra `usage`, which no other module imports before a usage store is used."""

IMPORT_ALL = f"""
import importlib, pkgutil
for package in ("penstock", "adapters", "control_plane", "regional_agent"):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if module.name not in {WITH_EXTRAS!r}:
            importlib.import_module(module.name)
"""


def main() -> None:
    """Install the wheel into an empty environment and check it; raises where a check fails."""
    wheel, environment = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
    venv.create(environment, with_pip=True, clear=True)
    python = environment / "bin" / "python"
    pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run([*pip, "install", f"{wheel.resolve()}[quickstart]"], check=True)
    # -P: the checkout must not shadow what is installed.
    _run(python, "-P", "-c", IMPORT_ALL)
    for program in ("penstock", "penstock-agent"):
        _run(environment / "bin" / program, "--version")
    for command in COMMANDS:
        json.loads(_run(environment / "bin" / "penstock", *command, "-o", "json"))
    _evaluate(python)
    _serve(environment)
    print(f"{wheel.name}: good with the newest versions of its dependencies")


def _evaluate(python: Path) -> None:
    """Have an evaluation process answer one what-if."""
    policy = compile_bundle(read_folder(PLANET))
    job = msgspec.msgpack.encode(WhatIfJob(policy, b'{"lost": ["eu-es"]}', LiveFleet(0.0)))
    _, *arguments = main_command("control_plane.evaluation.evaluation_process")
    answered = subprocess.run(
        [python, *arguments], input=len(job).to_bytes(LENGTH_BYTES, "big") + job, stdout=subprocess.PIPE, check=True
    ).stdout
    length = int.from_bytes(answered[:LENGTH_BYTES], "big")
    reply = msgspec.msgpack.decode(answered[LENGTH_BYTES : LENGTH_BYTES + length], type=Reply)
    if reply.refusal is not None or len(answered) != LENGTH_BYTES + length:
        raise SystemExit(f"the evaluation process wrote {answered[:200]!r}")


def _serve(environment: Path) -> None:
    """Have a region of `penstock quickstart` answer a chat. The engine is one of the lab, from the checkout."""
    with tempfile.TemporaryDirectory() as folder, running_engines(Path(folder), {"name": "gpu-1"}) as engines:
        options = ("--engine", engines.urls["gpu-1"], "--dir", str(Path(folder) / "region"))
        with running("quickstart", *options, program=str(environment / "bin" / "penstock")) as shown:
            answer = chat(shown, key_in(shown))
            if answer.status_code != 200:
                raise SystemExit(f"penstock quickstart: {answer.status_code} {answer.text}")


def _run(*command: object) -> str:
    """Return the standard output of a command."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0 or done.stderr:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
