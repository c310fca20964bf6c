"""The open loop: requests are sent when due, however slow responses are, and latency is measured from the due time."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from lab.replay.client import Patience
from lab.replay.entry import Entry
from lab.replay.outcome import Outcome, OutcomeKind, TryResult
from lab.replay.replay_results import summarise
from lab.replay.replay_workload import PlannedRequest
from lab.replay.replayer import Replayer
from lab.traces.trace import TraceRequest
from tests.support.on_uvloop import on_uvloop
from tests.support.scripted_entry import Asked, entry
from tests.support.wait import PATIENCE_S, until

PATIENT = Patience(connect_s=PATIENCE_S, first_byte_s=PATIENCE_S, whole_s=2 * PATIENCE_S)
"""Of clients on a machine that may stall for longer than clients wait by default."""

ENDS = {(OutcomeKind.OK, ""), (OutcomeKind.FAILED, "unanswered_at_end")}


def steady(count: int, rate_per_s: float) -> list[PlannedRequest]:
    return [
        PlannedRequest(
            f"r-{n}", n / rate_per_s, "site", "198.18.1.1", "t", "", "m", TraceRequest(n / rate_per_s, 10, 2)
        )
        for n in range(count)
    ]


async def run(
    workload: list[PlannedRequest], entries: list[Entry], drain_s: float = 20.0, patience: Patience = PATIENT
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    await Replayer(workload, {"site": entries}, patience, outcomes.append).run(drain_s)
    return sorted(outcomes, key=lambda outcome: outcome.scheduled_s)


async def answer(asked: Asked) -> None:
    asked.stream(2, x_penstock_region="a")


@on_uvloop
async def test_a_stall_counts_for_every_request_that_was_due() -> None:
    # From request 50 on, responses wait for the 60th request, due 0.59 s later: a closed loop sends only one.
    stall_s = 0.59
    over = asyncio.Event()

    async def stall_once(asked: Asked) -> None:
        if len(near.asked) >= 110:
            over.set()
        if int(asked.headers["x-request-id"].removeprefix("r-")) >= 50:
            await over.wait()
        asked.stream(2, x_penstock_region="a")

    async with entry(stall_once) as near, asyncio.timeout(PATIENCE_S):
        outcomes = await run(steady(200, 100.0), [near.at("a")], drain_s=PATIENCE_S)
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.OK] * 200
    ended_s = outcomes[109].scheduled_s
    assert all(outcome.e2e_s >= ended_s - outcome.scheduled_s - 0.001 for outcome in outcomes[50:110])
    results = summarise(outcomes, 1.0)
    assert results.latency.ttft_p99_ms is not None
    assert results.latency.ttft_p99_ms >= 0.8 * stall_s * 1000


@on_uvloop
async def test_latency_counts_from_the_due_time_if_the_replayer_is_late() -> None:
    outcomes: list[Outcome] = []
    async with entry(answer) as near:
        replayer = Replayer(steady(50, 100.0), {"site": [near.at("a")]}, PATIENT, outcomes.append)
        await replayer.run(PATIENCE_S, began_s=monotonic() - 1.0)
    assert len(outcomes) == 50
    assert all(outcome.e2e_s >= outcome.lag_s >= 0.5 for outcome in outcomes)
    lag_p99_ms = summarise(outcomes, 1.0).lag_p99_ms
    assert lag_p99_ms is not None
    assert lag_p99_ms >= 500


@on_uvloop
async def test_requests_do_not_wait_for_other_responses() -> None:
    async def never(asked: Asked) -> None:
        await asyncio.Event().wait()

    outcomes: list[Outcome] = []
    async with entry(never) as near:
        replayer = Replayer(steady(150, 150.0), {"site": [near.at("a")]}, PATIENT, outcomes.append)
        replaying = asyncio.create_task(replayer.run(2 * PATIENCE_S))
        await until(lambda: len(near.asked) == 150)
        replaying.cancel()
        await asyncio.wait([replaying])
    assert [(outcome.kind, outcome.code) for outcome in outcomes] == [(OutcomeKind.FAILED, "unanswered_at_end")] * 150
    assert all(outcome.tries[0].result is TryResult.SILENT for outcome in outcomes)


@on_uvloop
async def test_every_request_has_an_outcome_even_if_no_caller_waits() -> None:
    async with entry(answer) as near:
        outcomes = await run(steady(20, 10_000.0), [near.at("a")], drain_s=0.0)
    assert sorted(outcome.id for outcome in outcomes) == sorted(outcome.id for outcome in steady(20, 1.0))
    assert {outcome.code for outcome in outcomes} <= {"", "unanswered_at_end"}


@on_uvloop
async def test_clients_leave_an_unready_entry_and_return() -> None:
    outcomes: list[Outcome] = []
    async with entry(answer) as near, entry(answer) as far:
        entries = {"site": [near.at("near"), far.at("far")]}
        replaying = asyncio.create_task(Replayer(steady(6000, 100.0), entries, PATIENT, outcomes.append).run(20.0))
        await until(lambda: len(near.asked) >= 30)
        assert far.asked == []
        near.ready = False
        await until(lambda: len(far.asked) >= 1)
        # Requests in flight still reach the near entry; the test requires that no others follow.
        asked = (0, 0)

        def only_far_is_asked() -> bool:
            nonlocal asked
            if len(near.asked) != asked[0]:
                asked = (len(near.asked), len(far.asked))
            return len(far.asked) >= asked[1] + 30

        await until(only_far_is_asked)
        near.ready = True
        await until(lambda: len(near.asked) >= asked[0] + 30)
        replaying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await replaying
    assert near.probes >= 4
    assert len(outcomes) >= 90
    assert [outcome for outcome in outcomes if (outcome.kind, outcome.code) not in ENDS] == []


@on_uvloop
async def test_times_may_count_from_a_given_moment() -> None:
    async with entry(answer) as near:
        outcomes: list[Outcome] = []
        replayer = Replayer(steady(2, 100.0), {"site": [near.at("a")]}, PATIENT, outcomes.append)
        began_s = monotonic() + 0.3
        await replayer.run(10.0, began_s)
        assert replayer.sent == 2
        assert replayer.in_flight == 0
        assert monotonic() - began_s >= 0.01
    assert all(0 <= outcome.started_s < PATIENCE_S for outcome in outcomes)
