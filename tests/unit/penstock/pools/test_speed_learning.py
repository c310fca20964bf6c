"""Speeds start at priors, follow completions, and are comparable across engines and models."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from penstock.cost.work import Work
from penstock.pools.speed_learning import OnlineRegression, SpeedLearner, microseconds, prior, speeds

CALIBRATED_AFTER, FADED_S, FRESH_S = 4, 180.0, 30.0
"""As documented, and not imported: a test fails if a tuned constant changes."""


def taught(accelerator: str, slowness: float, completions: int = 50, at: float = 0.0) -> SpeedLearner:
    learner, rng = SpeedLearner(accelerator), Random(1)
    for _ in range(completions):
        prefill_s, decode_s, streams = rng.uniform(0.01, 0.4), rng.uniform(0.5, 4.0), rng.uniform(1, 16)
        learner.saw_first_byte(prefill_s, 0.02 + prefill_s * slowness, at)
        learner.saw_end(decode_s, decode_s * slowness * (1 + 0.05 * streams), streams, at)
    return learner


def test_a_line_is_its_prior_then_what_was_seen() -> None:
    line = OnlineRegression(1.0, 0.5)
    assert line.at(4) == 3.0
    rng = Random(2)
    for _ in range(300):
        x = rng.uniform(0, 10)
        line.see(x, 2.0 + 0.1 * x, 0.0)
    assert line.at_zero == pytest.approx(2.0, abs=0.05)
    assert line.slope == pytest.approx(0.1, abs=0.01)


def test_the_prior_counts_as_two_observations_and_old_ones_fade() -> None:
    line = OnlineRegression(0.0, 1.0)
    line.see(1.0, 4.0, 0.0)
    # Each observation takes a fiftieth from the weight of all earlier ones.
    first = 1.0 + 3.0 / (2.0 * 0.98 + 1.0)
    assert line.at(1.0) == pytest.approx(first)
    line.see(1.0, 4.0, 0.0)
    weight = (2.0 * 0.98 + 1.0) * 0.98 + 1.0
    assert line.at(1.0) == pytest.approx(first + (4.0 - first) / weight)


def test_all_earlier_observations_count_as_one_after_a_long_silence() -> None:
    line = OnlineRegression(0.0, 1.0)
    for _ in range(50):
        line.see(1.0, 1.0, 0.0)
    line.see(1.0, 2.0, 10.0 * FADED_S)
    assert line.at(1.0) == pytest.approx(1.5)


def test_a_line_keeps_its_slope_where_x_does_not_vary() -> None:
    line = OnlineRegression(0.0, 2.0)
    for _ in range(100):
        line.see(1.0, 5.0, 0.0)
    assert line.at(1.0) == pytest.approx(5.0, abs=0.3)
    assert line.slope == pytest.approx(2.0, rel=0.2)


def test_a_line_never_falls_and_one_surprise_does_not_turn_it_over() -> None:
    line = OnlineRegression(1.0, 1.0)
    for x in range(20):
        line.see(x, 20.0 - x, 0.0)
    assert line.slope == pytest.approx(0.05), "a twentieth of the prior"
    steady = OnlineRegression(1.0, 0.0)
    for _ in range(50):
        steady.see(1.0, 1.0, 0.0)
    steady.see(1.0, 1e6, 0.0)
    assert steady.at(1.0) < 1.2


def test_an_endpoint_is_learned_from_what_it_finishes() -> None:
    speed = taught("h100", slowness=3.0).learned
    assert speed is not None
    assert speed.start_s == pytest.approx(0.02, abs=0.02)
    assert speed.prefill == pytest.approx(3.0, rel=0.15)
    assert speed.decode + 8 * speed.crowding == pytest.approx(3.0 * 1.4, rel=0.15)


def test_priors_follow_data_sheets() -> None:
    h100, l40s = prior("H100"), prior("l40s")
    assert h100 is not None
    assert l40s is not None
    assert (h100.prefill, h100.decode) == (1.0, 1.0)
    assert 2 < l40s.prefill < 4 < 3.8 * l40s.decode
    assert prior("unheard-of") is None


def test_without_samples_there_is_no_estimate() -> None:
    assert speeds([SpeedLearner(""), SpeedLearner("unheard-of")]) == [None, None]


def test_priors_are_corrected_by_what_siblings_show() -> None:
    first, second = speeds([taught("h100", slowness=2.0), SpeedLearner("l40s")])
    assert first is not None
    assert second is not None
    assert second.prefill == pytest.approx(2.0 * 989.5 / 362, rel=0.2)


def test_one_without_a_prior_goes_by_the_mean_until_it_has_finished_enough() -> None:
    unknown = taught("", slowness=9.0, completions=CALIBRATED_AFTER - 1)
    fast, slow, unsure = speeds([taught("h100", 1.0), taught("h100", 3.0), unknown])
    assert fast is not None
    assert slow is not None
    assert unsure is not None
    assert unsure.prefill == pytest.approx((fast.prefill + slow.prefill) / 2)


@pytest.mark.parametrize("slowness", [0.01, 1.0, 100.0])
def test_who_was_seen_often_looks_as_fast_as_who_was_seen_seldom_however_wrong_the_costs_are(slowness: float) -> None:
    often, seldom = speeds([taught("h100", slowness, 200), taught("h100", slowness, CALIBRATED_AFTER)])
    assert often is not None
    assert seldom is not None
    assert often.decode + 8 * often.crowding == pytest.approx(slowness * 1.4, rel=0.2)
    assert seldom.decode + 8 * seldom.crowding == pytest.approx(often.decode + 8 * often.crowding, rel=0.3)


def test_no_time_at_all_teaches_nothing_absurd() -> None:
    learner = SpeedLearner("h100")
    for _ in range(CALIBRATED_AFTER):
        learner.saw_end(1.0, 0.0, 1.0, 0.0)
    assert learner.learned is not None
    assert learner.learned.decode > 0.0


@pytest.mark.parametrize("accelerator", ["h100", "unheard-of"])
def test_one_that_was_slow_is_believed_well_again_once_only_its_siblings_are_seen(accelerator: str) -> None:
    def slow_beside(siblings_at: float) -> float:
        siblings = [taught(accelerator, 1.0, at=siblings_at) for _ in range(3)]
        learned = speeds([taught(accelerator, 8.0, at=0.0), *siblings])
        assert learned[0] is not None
        assert learned[1] is not None
        known = siblings[0].learned
        assert known is not None
        assert (learned[1].prefill, learned[1].decode) == (known.prefill, known.decode)
        return learned[0].decode / learned[1].decode

    fresh, fading, faded = slow_beside(FRESH_S), slow_beside((FRESH_S + FADED_S) / 2), slow_beside(FADED_S)
    assert fresh == slow_beside(0.0) > 7.0
    assert fresh > fading > 3.0
    assert faded == pytest.approx(1.0, abs=0.1)


def test_what_is_seen_after_a_long_silence_counts_more_than_what_was_seen_before() -> None:
    line = OnlineRegression(1.0, 0.0)
    for second in range(60):
        line.see(1.0, 8.0, second)
    was = line.at(1.0)
    for second in range(3):
        line.see(1.0, 1.0, 60.0 + FADED_S + second)
    assert was == pytest.approx(8.0, abs=0.5)
    assert line.at(1.0) < 2.5


def test_reservations_are_whole_microseconds_at_the_endpoints_speed() -> None:
    speed = prior("a100")
    assert speed is not None
    prefill_us, decode_us = microseconds(Work(0.1, 2.0), speed, streams=1, spared_s=0.06)
    assert prefill_us == int(0.04 * speed.prefill * 1e6)
    assert decode_us == int(2.0 * (speed.decode + speed.crowding) * 1e6)
    assert microseconds(Work(0.1, 2.0), None, 1, spared_s=5.0) == (0, 2_000_000)


@pytest.mark.parametrize("asks", [SpeedLearner.is_due, SpeedLearner.is_first_byte_due])
def test_a_learner_samples_no_more_responses_than_it_needs(asks: Callable[[SpeedLearner, float], bool]) -> None:
    learner = SpeedLearner("h100")
    wanted = [now for now in range(1000) if asks(learner, now / 1000)]
    assert len(wanted) == 50, "of a thousand in a second, evenly"
    assert asks(learner, 10.0), "and every one of those that come one by one"
    assert asks(learner, 10.1)
