"""Learned slots compared with configured slots, on the virtual clock."""

from functools import cache

import pytest

from lab.simulate.auto_slots import EngineTrial, Lengths, SlowPeriod, chat, long_prompts, short_answers
from penstock.health.concurrency_limit import LimitBounds

BOUNDS = LimitBounds()

LONG = pytest.mark.long

TRIALS = [
    pytest.param(chat, 4, 4, True, id="chat-4"),
    pytest.param(chat, 16, 16, True, id="chat-16"),
    pytest.param(chat, 64, 64, True, id="chat-64", marks=LONG),
    pytest.param(long_prompts, 64, 16, True, id="long-prompts"),
    pytest.param(short_answers, 16, 16, True, id="short-answers", marks=LONG),
    pytest.param(chat, 16, 16, False, id="chat-16-without-signals"),
    pytest.param(long_prompts, 64, 16, False, id="long-prompts-without-signals", marks=LONG),
]
"""Lengths, max_num_seqs, the fewest slots with the highest throughput, and whether the engine has metrics."""


@cache
def hand_set(lengths: Lengths, max_num_seqs: int, slots: int) -> float:
    trial = EngineTrial(lengths, max_num_seqs, slots)
    trial.run(150.0)
    return trial.work_per_s(30.0)


@pytest.mark.parametrize(("lengths", "max_num_seqs", "best", "signals"), TRIALS)
def test_throughput_is_close_to_the_best_hand_set_slots(
    lengths: Lengths, max_num_seqs: int, best: int, signals: bool
) -> None:
    trial = EngineTrial(lengths, max_num_seqs, BOUNDS, signals=signals)
    trial.run(420.0)

    # A trial of a lower limit costs a little throughput, and these minutes have the most trials.
    assert trial.work_per_s(120.0) >= 0.94 * hand_set(lengths, max_num_seqs, best)
    assert trial.limit is not None
    assert trial.limit.settled <= 4 * best


@pytest.mark.parametrize(
    ("lengths", "max_num_seqs", "slots", "load"),
    [(chat, 16, 16, 0.85), pytest.param(long_prompts, 64, 8, 0.7, marks=LONG)],
)
def test_the_slowest_requests_take_no_longer_than_with_hand_set_slots(
    lengths: Lengths, max_num_seqs: int, slots: int, load: float
) -> None:
    full = EngineTrial(lengths, max_num_seqs, slots)
    full.run(150.0)
    requests_per_s = load * sum(done.at_s >= 30.0 for done in full.done) / 120.0
    p99_s = {}
    for learned in (False, True):
        trial = EngineTrial(lengths, max_num_seqs, BOUNDS if learned else slots, requests_per_s=requests_per_s)
        trial.run(500.0)
        p99_s[learned] = trial.p99_s(100.0)

    assert p99_s[True] <= 1.2 * p99_s[False]


def test_the_completions_of_one_agent_of_four_suffice() -> None:
    trial = EngineTrial(chat, 16, BOUNDS, share=0.25)
    trial.run(600.0)

    assert trial.work_per_s(200.0) >= 0.94 * hand_set(chat, 16, 16)


@pytest.mark.parametrize("signals", [True, False])
def test_a_slow_minute_does_not_collapse_the_limit(signals: bool) -> None:
    trial = EngineTrial(chat, 16, BOUNDS, signals=signals, slow=SlowPeriod(200.0, 260.0, 10.0))
    trial.run(400.0)

    before = max(trial.limits(190.0, 200.0))
    assert trial.work_per_s(205.0, 255.0) < 0.2 * trial.work_per_s(100.0, 200.0)
    assert min(trial.limits(200.0, 400.0)) >= before / 2
    assert trial.work_per_s(280.0) >= 0.92 * trial.work_per_s(100.0, 200.0)


def test_the_limit_follows_an_engine_that_grows() -> None:
    trial = EngineTrial(chat, 4, BOUNDS)
    trial.run(200.0)
    assert trial.limit is not None
    assert trial.limit.settled <= 8
    trial.engine.resize(32)
    trial.run(500.0)

    assert trial.limit.settled >= 24


def test_the_limit_follows_an_engine_that_shrinks() -> None:
    trial = EngineTrial(chat, 32, BOUNDS)
    trial.run(150.0)
    assert trial.limit is not None
    assert trial.limit.settled >= 24
    trial.engine.resize(4)
    trial.run(1500.0)

    assert trial.limit.settled <= 10


def test_demand_below_the_limit_leaves_it_alone() -> None:
    trial = EngineTrial(chat, 64, BOUNDS, requests_per_s=0.5)
    trial.run(300.0)

    assert set(trial.limits(0.0)) == {8}
