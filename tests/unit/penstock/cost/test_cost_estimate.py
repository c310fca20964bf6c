"""The cost of a request: estimated from its body, corrected by the usage that engines report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.answers.token_counts import MAX_TOKENS, Usage
from penstock.cost.cost_estimate import MAX_FOLLOWED, CostEstimator, _magnitude, actual_work
from penstock.cost.request_properties import CostInputs
from penstock.policy.kinds.models import Cost, CostUnit

ANSWER_TOKENS, LEARN_EVERY_S, LIKE_ENOUGH, OVERHEAD_BYTES = 211.0, 0.02, 2, 120
"""As documented, and not imported: a test fails if a tuned constant changes."""

CHAT = Cost(CostUnit.TOKEN, 0.001, 0.01)


def chat(prompt_bytes: int, most: int | None = None, **fields: object) -> CostInputs:
    return CostInputs(prompt_bytes + OVERHEAD_BYTES, max_tokens=most, **fields)  # type: ignore[arg-type]


def test_a_chat_costs_its_prompt_and_a_likely_answer() -> None:
    work = CostEstimator().estimate(CHAT, "t", "m", chat(4000))
    assert work.prefill_s == pytest.approx(1.0)
    assert work.decode_s == pytest.approx(0.01 * ANSWER_TOKENS)


def test_the_clients_limit_bounds_the_answer_and_n_multiplies_it() -> None:
    estimate = CostEstimator().estimate
    assert estimate(CHAT, "t", "m", chat(4, most=10)).decode_s == pytest.approx(0.1)
    assert estimate(CHAT, "t", "m", chat(4, most=10, count=3)).decode_s == pytest.approx(0.3)
    assert estimate(CHAT, "t", "m", chat(4, answers=False)).decode_s == 0.0


def test_usage_corrects_both_guesses_each_tenant_for_itself() -> None:
    expectations = CostEstimator()
    for _ in range(10):
        expectations.observe("terse", "m", chat(3000), Usage(1000, 20), 0.0)
        expectations.observe("wordy", "m", chat(3000), Usage(1000, 800), 0.0)
    assert expectations.prompt_tokens("m", 6000 + OVERHEAD_BYTES) == pytest.approx(2000)
    assert expectations.answer_tokens("terse", "m", None) == pytest.approx(20)
    assert expectations.answer_tokens("wordy", "m", None) == pytest.approx(800)
    assert expectations.answer_tokens("new", "m", None) == ANSWER_TOKENS
    assert expectations.prompt_tokens("other", 4000 + OVERHEAD_BYTES) == 1000


def test_short_prompts_hardly_change_the_estimate_for_long_ones() -> None:
    expectations = CostEstimator()
    for n in range(1000):
        if n % 2:
            expectations.observe("long", "m", chat(4000), Usage(1000, 20), 0.0)
        else:
            expectations.observe("short", "m", chat(3), Usage(30, 20), 0.0)
    assert expectations.prompt_tokens("m", 4000 + OVERHEAD_BYTES) == pytest.approx(1000, rel=0.05)


def test_no_prompt_has_fewer_tokens_than_the_template_of_its_model() -> None:
    """A short prompt whose client leaves before the usage is reported is not free."""
    expectations = CostEstimator()
    for body_bytes, tokens in ((62, 41), (90, 38), (200, 60), (2000, 5), (62, 500)):
        expectations.observe("t", "m", CostInputs(body_bytes), Usage(tokens, 20), 0.0)
    assert expectations.prompt_tokens("m", 62) == 38
    assert expectations.estimate(CHAT, "t", "m", CostInputs(62)).prefill_s == pytest.approx(0.038)
    assert expectations.prompt_tokens("other", 62) == 1
    assert expectations.prompt_tokens("m", 1 << 40) == MAX_TOKENS


def test_a_prompt_of_four_kilobytes_has_the_whole_weight() -> None:
    expectations = CostEstimator()
    for size_bytes, tokens in ((4096, 2048), (8192, 8192), (2048, 512)):
        expectations.observe("t", "m", chat(size_bytes), Usage(tokens, 20), 0.0)
    # Half a token a byte, one, and a quarter at half the weight.
    assert expectations.tokens_per_byte("m") == pytest.approx((0.5 + 1.0 + 0.5 * 0.25) / 2.5)


def test_a_mean_is_of_the_last_fifty_requests_or_so() -> None:
    expectations = CostEstimator()
    for answer_tokens in [100] * 49 + [200] * 2:
        expectations.observe("t", "m", chat(4000), Usage(1000, answer_tokens), 0.0)
    first = 100.0 + 100.0 / 50
    assert expectations.answer_tokens("t", "m", None) == pytest.approx(first + (200.0 - first) / 50)


@pytest.mark.parametrize(("tokens", "links"), [(1200, False), (1201, True)])
def test_more_tokens_than_bytes_and_a_template_are_of_linked_images(tokens: int, links: bool) -> None:
    expectations = CostEstimator()
    expectations.observe("t", "m", CostInputs(1000), Usage(tokens, 20), 0.0)
    assert ("m" in expectations.linked_images) is links
    assert (expectations.tokens_per_byte("m") == 0.25) is links, "nothing is learned of text from images"


def test_a_tensor_without_a_shape_has_four_bytes_an_element() -> None:
    cost = Cost(CostUnit.TENSOR_ELEMENT, 0.0, 0.001)
    assert CostEstimator().estimate(cost, "t", "m", CostInputs(4000)).decode_s == pytest.approx(1.0)
    assert CostEstimator().estimate(cost, "t", "m", CostInputs(4000, elements=7)).decode_s == pytest.approx(0.007)


def test_prompts_of_any_length_are_learned_from() -> None:
    expectations = CostEstimator()
    for _ in range(10):
        expectations.observe("t", "m", chat(60), Usage(30, 20), 0.0)
    assert expectations.prompt_tokens("m", 600 + OVERHEAD_BYTES) == pytest.approx(300)


def test_a_limit_that_predicts_the_length_is_used_and_another_is_not() -> None:
    expectations = CostEstimator()
    for _ in range(LIKE_ENOUGH):
        for limit, answer in ((32, 30), (1000, 900)):
            expectations.observe("exact", "m", chat(3000, limit), Usage(1000, answer), 0.0)
            expectations.observe("always", "m", chat(3000, 4096), Usage(1000, answer), 0.0)
    assert expectations.answer_tokens("exact", "m", 1000) == pytest.approx(900)
    assert expectations.answer_tokens("exact", "m", 900) == pytest.approx(810), "the same part of a like limit"
    assert expectations.answer_tokens("exact", "m", 32) == pytest.approx(30)
    assert expectations.answer_tokens("exact", "m", 300) == pytest.approx(300), "none like it: the mean, and the limit"
    assert expectations.answer_tokens("exact", "m", None) == pytest.approx(465)
    assert expectations.answer_tokens("always", "m", 4096) == pytest.approx(465)


def test_few_answers_to_a_like_limit_are_not_believed_yet() -> None:
    expectations = CostEstimator()
    for _ in range(10):
        expectations.observe("t", "m", chat(3000), Usage(1000, 100), 0.0)
    for _ in range(LIKE_ENOUGH - 1):
        expectations.observe("t", "m", chat(3000, 2000), Usage(1000, 1900), 0.0)
    assert expectations.answer_tokens("t", "m", 2000) < 1000
    expectations.observe("t", "m", chat(3000, 2000), Usage(1000, 1900), 0.0)
    assert expectations.answer_tokens("t", "m", 2000) == pytest.approx(1900)


def test_a_new_limit_is_estimated_from_limits_within_a_factor_of_two() -> None:
    expectations = CostEstimator()
    for _ in range(LIKE_ENOUGH):
        for limit in (40, 420):
            expectations.observe("exact", "m", chat(3000, limit), Usage(1000, limit), 0.0)
    assert expectations.answer_tokens("exact", "m", 800) == pytest.approx(800)
    assert expectations.answer_tokens("exact", "m", 250) == pytest.approx(250)
    assert expectations.answer_tokens("exact", "m", 4000) == pytest.approx(230)


@given(st.integers(1, MAX_TOKENS), st.integers(1, MAX_TOKENS))
def test_no_answer_is_expected_to_pass_its_limit_and_like_limits_are_within_a_factor_of_one_and_a_half(
    limit: int, observed: int
) -> None:
    expectations = CostEstimator()
    for _ in range(LIKE_ENOUGH):
        expectations.observe("t", "m", chat(3000, observed), Usage(1000, observed), 0.0)
    assert 1 <= expectations.answer_tokens("t", "m", limit) <= limit
    if _magnitude(limit) == _magnitude(observed):
        assert max(limit, observed) <= max(2, 1.5 * min(limit, observed))


def test_what_is_followed_is_bounded() -> None:
    expectations = CostEstimator()
    for n in range(MAX_FOLLOWED + 50):
        expectations.observe(f"t{n}", "m", chat(4000, 100), Usage(1000, 20), 0.0)
        expectations.observe("t", f"m{n}", CostInputs(62), Usage(40, 0), 0.0)
    assert len(expectations._least_tokens) == MAX_FOLLOWED
    assert len(expectations._answer_tokens) == len(expectations._used_of_limit) == MAX_FOLLOWED
    assert expectations.answer_tokens("t0", "m", None) == ANSWER_TOKENS


def test_images_cost_pixels_times_steps() -> None:
    cost = Cost(CostUnit.MEGAPIXEL_STEP, 0.0, 0.1)
    work = CostEstimator().estimate(cost, "t", "m", CostInputs(100, pixels=2_000_000, steps=20, count=2))
    assert (work.prefill_s, work.decode_s) == (0.0, pytest.approx(8.0))
    usual = CostEstimator().estimate(cost, "t", "m", CostInputs(100))
    assert usual.decode_s == pytest.approx(0.1 * 1.048576 * 30), "1024 x 1024 pixels in 30 steps"


def test_speech_costs_its_length_and_plain_requests_cost_one_each() -> None:
    speech = CostEstimator().estimate(Cost(CostUnit.AUDIO_SECOND, 0.0, 0.2), "t", "m", CostInputs(999, text_bytes=150))
    assert speech.decode_s == pytest.approx(2.0)
    assert CostEstimator().estimate(Cost(CostUnit.REQUEST, 0.0, 3.0), "t", "m", CostInputs(10**6)).decode_s == 3.0


def test_what_was_worked_leaves_out_what_the_cache_spared() -> None:
    assert actual_work(CHAT, Usage(1000, 50, cached_tokens=600)).prefill_s == pytest.approx(0.4)


def test_answers_are_wanted_by_tenant_and_not_more_of_them_than_a_mean_needs() -> None:
    expectations = CostEstimator()
    assert expectations.is_due("busy", "m", 5.0)
    expectations.observe("busy", "m", chat(3000), Usage(1000, 20), 5.0)
    assert not expectations.is_due("busy", "m", 5.01)
    assert expectations.is_due("quiet", "m", 5.01), "a client with few requests is not starved"
    assert expectations.is_due("busy", "m", 5.0 + LEARN_EVERY_S)
