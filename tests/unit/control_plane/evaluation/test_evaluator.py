"""Evaluations run in separate processes, and use neither the CPU time nor the memory of a control plane."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from control_plane.evaluation import evaluation_jobs
from control_plane.evaluation.evaluation_jobs import LiveFleet, Refused, Validation, ValidationJob, WhatIfJob, run_job
from control_plane.evaluation.evaluation_process import MAX_MEMORY_BYTES
from control_plane.evaluation.evaluator import MAX_EVALUATIONS, Busy, EvaluationFailed, Evaluator
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from control_plane.status.query_responses import WhatIfResponse
from penstock.fleet.snapshot import Demand
from penstock.what_if.demand_outcomes import Capacity
from tests.support.bundles import large_bundle
from tests.support.paths import PLANET
from tests.support.wait import until

FILES = read_folder(PLANET)
POLICY = compile_bundle(FILES)
SMALL = ValidationJob(msgspec.json.encode(FILES), is_tar=False, current=POLICY)
LARGE = ValidationJob(msgspec.json.encode(large_bundle()), is_tar=False, current=None)


def what_if(files: dict[str, str] | None, lost: list[str]) -> WhatIfJob:
    return WhatIfJob(POLICY, msgspec.json.encode({"files": files, "lost": lost}), LiveFleet(0.0))


@asynccontextmanager
async def evaluator_of(timeout_s: float = 60.0) -> AsyncIterator[Evaluator]:
    evaluator = Evaluator(timeout_s=timeout_s)
    try:
        yield evaluator
    finally:
        await evaluator.close()


async def test_policies_are_unchanged_by_the_transfer_to_the_process() -> None:
    async with evaluator_of() as evaluator:
        validated = await evaluator.evaluate("a", SMALL)
        assert msgspec.json.decode(validated.response, type=Validation) == Validation(True, POLICY.digest(), (), ())
        job = what_if(FILES, ["eu-de"])
        compared = msgspec.json.decode((await evaluator.evaluate("a", job)).response, type=WhatIfResponse)
        assert compared == run_job(job)
        (process,) = evaluator._processes
        refused = await evaluator.evaluate("a", what_if(None, ["eu-d"]))
        assert refused.refusal is not None
        assert "did you mean eu-de?" in refused.refusal.detail
        assert evaluator._processes == [process], "a process is used again"


def test_the_demand_is_that_which_regions_report_and_not_spread_over_all_models() -> None:
    (model, *_), regions = POLICY.models, frozenset(POLICY.regions)
    reported = (Demand("eu-de", model, "+".join(sorted(regions)), regions, 4.0),)
    fleet = LiveFleet(0.0, (Capacity("eu-de", model, 100, 1.0), Capacity("eu-es", model, 100, 1.0)), reported)
    answer = run_job(WhatIfJob(POLICY, msgspec.json.encode({"lost": ["eu-es"]}), fleet))
    assert isinstance(answer, WhatIfResponse)
    assert (answer.before.served_per_s, answer.before.refused_per_s) == (pytest.approx(4.0), {})
    assert answer.demand.startswith("4.0 requests per second as regions report")


async def test_a_slow_evaluation_is_aborted_and_its_process_killed() -> None:
    async with evaluator_of() as evaluator:
        await evaluator.evaluate("a", SMALL)
        (process,) = evaluator._processes
        # Only this process evaluates, so that a kill stops the evaluation.
        process.send_signal(signal.SIGSTOP)
        evaluator._timeout_s = 2.0
        with pytest.raises(EvaluationFailed, match="more than 2 s"):
            await evaluator.evaluate("a", LARGE)
        assert process.returncode == -signal.SIGKILL
        assert not evaluator._processes


async def test_concurrent_evaluations_are_limited_by_caller_and_in_total() -> None:
    async with evaluator_of() as evaluator:
        callers = [f"caller-{number}" for number in range(MAX_EVALUATIONS)]
        running = [asyncio.create_task(evaluator.evaluate(caller, LARGE)) for caller in callers]
        await until(lambda: len(evaluator._processes) == MAX_EVALUATIONS)
        with pytest.raises(Busy, match="caller-0 has a running evaluation"):
            await evaluator.evaluate(callers[0], SMALL)
        with pytest.raises(Busy, match="evaluations are running"):
            await evaluator.evaluate("another", SMALL)
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        assert not evaluator._processes, "the process of a cancelled evaluation is killed"
        assert (await evaluator.evaluate("another", SMALL)).response


async def test_a_crashed_process_fails_its_evaluation_alone() -> None:
    async with evaluator_of() as evaluator:
        running = asyncio.create_task(evaluator.evaluate("a", LARGE))
        await until(lambda: bool(evaluator._processes))
        os.kill(evaluator._processes[0].pid, signal.SIGKILL)
        with pytest.raises(EvaluationFailed):
            await running
        assert (await evaluator.evaluate("a", SMALL)).response


async def test_the_process_is_limited_and_does_not_see_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ADMIN_TOKEN_FILE", "secret")
    async with evaluator_of() as evaluator:
        assert (await evaluator.evaluate("a", SMALL)).response
        proc = Path("/proc") / str(evaluator._processes[0].pid)
        limits = (proc / "limits").read_text()
        assert any(
            line.startswith("Max address space") and str(MAX_MEMORY_BYTES) in line for line in limits.split("\n")
        )
        assert b"PENSTOCK_" not in (proc / "environ").read_bytes()


def test_a_policy_too_large_for_generated_demand_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_jobs, "MAX_GENERATED_ROWS", 100)
    refusal = run_job(what_if(None, ["eu-de"]))
    assert isinstance(refusal, Refused)
    assert "give it" in refusal.detail


def test_the_errors_of_a_bundle_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_jobs, "MAX_ERRORS", 2)
    files = FILES | {f"{number}.yaml": "kind: Nothing\n" for number in range(3)}
    validated = run_job(ValidationJob(msgspec.json.encode(files), is_tar=False, current=None))
    compared = run_job(what_if(files, []))
    assert isinstance(validated, Validation)
    assert isinstance(compared, Refused)
    assert (len(validated.errors), len(compared.errors)) == (2, 2)
    assert "3 error(s)" in compared.detail
