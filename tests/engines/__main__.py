"""Runs real engines and real clients behind an agent, and writes what was found to a report.

`python -m tests.engines` runs all; `python -m tests.engines vllm openai/retries` runs the cases of vLLM, and those of
the client `openai` with `retries` in their name. The exit code is 1 if a case failed. An engine or client that cannot
be installed is reported and is no failure.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from adapters.servers.errors import ServerError
from tests.engines import service_cases, vllm_batch_cases, vllm_cases, vllm_model_cases  # noqa: F401 - lists cases
from tests.engines.client_runs import SCRIPTS, client_results
from tests.engines.environments import (
    INFINITY,
    LITSERVE,
    LLAMA_CPP,
    MLSERVER,
    TRITON,
    VLLM,
    CannotInstall,
    Environment,
    install,
)
from tests.engines.region import Region, running_region, within
from tests.engines.report import Report
from tests.engines.suite import CASES, Case, Failed, NotOffered, Result

CASE_TIMEOUT_S = 300.0
IDLE_S = 10.0
"""Time within which the agent counts no request, once a case has ended."""


class Engine(NamedTuple):
    """An engine: its environment, and what puts it behind the agent."""

    environment: Environment
    start: Callable[[Region], Awaitable[None]]


ENGINES = {
    service_cases.MLSERVER: Engine(MLSERVER, service_cases.start_mlserver),
    service_cases.TRITON: Engine(TRITON, service_cases.start_triton),
    service_cases.LITSERVE: Engine(LITSERVE, service_cases.start_litserve),
    service_cases.INFINITY: Engine(INFINITY, service_cases.start_infinity),
    service_cases.LLAMA_CPP: Engine(LLAMA_CPP, service_cases.start_llama_cpp),
    vllm_cases.SUBJECT: Engine(VLLM, vllm_cases.start),
}
"""In the order in which they are started and their cases run."""

Selection = dict[str, list[str]]
"""Parts of the names of the selected cases, by engine and client; an empty list selects all of its cases."""


async def outcome_of(case: Case, region: Region) -> Result:
    """Run one case."""
    began = time.monotonic()

    def result(outcome: str, reason: str = "") -> Result:
        return Result(case.title, outcome, round(time.monotonic() - began, 1), reason)  # type: ignore[arg-type]

    try:
        async with asyncio.timeout(CASE_TIMEOUT_S):
            await case.run(region)
    except NotOffered as reason:
        return result("not offered", str(reason))
    except Failed as failure:
        return result("failed", str(failure))
    except Exception as error:
        return result("failed", f"{type(error).__name__}: {error}")
    if not region.agent.alive:
        return result("failed", "the agent has ended")
    if not await within(IDLE_S, region.idle):
        return result("failed", f"{IDLE_S:g} s after the case, the agent still counts a request")
    return result("passed")


async def put_behind_agent(name: str, region: Region, environments: Path, report: Report) -> bool:
    """Install and start an engine, unless it runs; whether it does."""
    engine = ENGINES[name]
    if engine.environment.name in region.installed:
        return True
    try:
        installed = await asyncio.to_thread(install, engine.environment, environments)
        report.begin(name, installed.versions)
        region.installed[engine.environment.name] = installed
        await engine.start(region)
    except (CannotInstall, ServerError, OSError) as problem:
        report.not_run(name, str(problem))
        region.installed.pop(engine.environment.name, None)
        return False
    return True


async def run_engine(name: str, parts: list[str], region: Region, report: Report) -> None:
    """Run the selected cases of an engine that is behind the agent."""
    for case in CASES:
        if case.subject == name and (not parts or any(part in case.name for part in parts)):
            report.add(name, case.name, await outcome_of(case, region))


async def run_client(name: str, parts: list[str], region: Region, environments: Path, report: Report) -> None:
    """Run the selected cases of a client."""
    distribution, environment = SCRIPTS[name].distribution, SCRIPTS[name].environment
    try:
        installed = await asyncio.to_thread(install, environment, environments)
        region.installed[environment.name] = installed
        report.begin(name, {distribution: installed.versions[distribution]})
        async for case, result in client_results(region, name, parts):
            report.add(name, case, result)
        if not await within(IDLE_S, region.idle):
            raise Failed(f"{IDLE_S:g} s after the last case, the agent still counts a request")
    except CannotInstall as problem:
        report.not_run(name, str(problem))
    except Failed as failure:
        report.add(name, "script", Result("The script of the client runs to its end", "failed", 0.0, str(failure)))


async def run(selection: Selection, environments: Path, report: Report) -> None:
    """Run the selected cases: clients first, since a case of vLLM ends with a restart."""
    with tempfile.TemporaryDirectory(prefix="penstock-engines-") as directory:
        async with running_region(Path(directory)) as region:
            clients = [name for name in SCRIPTS if name in selection]
            needed = {engine for name in clients for engine in SCRIPTS[name].engines}
            for name in ENGINES:
                if name in selection or name in needed:
                    await put_behind_agent(name, region, environments, report)
            for name in clients:
                engine = SCRIPTS[name].engines[0]
                if ENGINES[engine].environment.name not in region.installed:
                    report.not_run(name, f"it needs {engine}, which cannot be run")
                    continue
                await run_client(name, selection[name], region, environments, report)
            for name, engine in ENGINES.items():
                if name in selection and engine.environment.name in region.installed:
                    await run_engine(name, selection[name], region, report)


def selected(names: list[str]) -> Selection:
    """The selection that the arguments state; all without arguments.

    Raises:
        ValueError: no engine or client has a name.
    """
    known = (*ENGINES, *SCRIPTS)
    selection: Selection = {} if names else {name: [] for name in known}
    for name in names:
        subject, _, part = name.partition("/")
        if subject not in known:
            raise ValueError(f"{subject} is neither an engine nor a client; there are {', '.join(known)}")
        parts = selection.setdefault(subject, [])
        if part:
            parts.append(part)
    return selection


def main() -> int:
    """Run the selected cases and write the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="engine or client; NAME/PART for some of its cases")
    parser.add_argument("--environments", type=Path, default=Path("out/engines/environments"), metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path("out/engines/report.json"), metavar="FILE")
    asked = parser.parse_args()
    os.umask(0o077)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        selection = selected(asked.names)
    except ValueError as problem:
        print(problem, file=sys.stderr)
        return 2
    report = Report(asked.out)
    asyncio.run(run(selection, asked.environments.absolute(), report))
    print(report.summary())
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
