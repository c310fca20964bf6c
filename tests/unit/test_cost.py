"""What a request will cost: guessed from its body, corrected by what engines say."""

from __future__ import annotations

import pytest

from penstock.cost import ANSWER_TOKENS, LEARN_EVERY_S, MOST_FOLLOWED, OVERHEAD_BYTES, Ask, Expectations, worked
from penstock.policy import Cost, CostUnit
from penstock.usage import Usage

CHAT = Cost(CostUnit.TOKEN, 0.001, 0.01)


def chat(prompt_bytes: int, most: int | None = None, **fields: object) -> Ask:
    return Ask(prompt_bytes + OVERHEAD_BYTES, most_tokens=most, **fields)  # type: ignore[arg-type]


def test_a_chat_costs_its_prompt_and_a_likely_answer() -> None:
    work = Expectations().guess(CHAT, "t", "m", chat(4000))
    assert work.prefill_s == pytest.approx(1.0)
    assert work.decode_s == pytest.approx(0.01 * ANSWER_TOKENS)


def test_the_clients_limit_bounds_the_answer_and_n_multiplies_it() -> None:
    guess = Expectations().guess
    assert guess(CHAT, "t", "m", chat(4, most=10)).decode_s == pytest.approx(0.1)
    assert guess(CHAT, "t", "m", chat(4, most=10, count=3)).decode_s == pytest.approx(0.3)
    assert guess(CHAT, "t", "m", chat(4, answers=False)).decode_s == 0.0


def test_usage_corrects_both_guesses_each_tenant_for_itself() -> None:
    expectations = Expectations()
    for _ in range(10):
        expectations.saw("terse", "m", chat(3000), Usage(1000, 20), 0.0)
        expectations.saw("wordy", "m", chat(3000), Usage(1000, 800), 0.0)
    assert expectations.prompt_tokens("m", 6000 + OVERHEAD_BYTES) == pytest.approx(2000)
    assert expectations.answer_tokens("terse", "m", None) == pytest.approx(20)
    assert expectations.answer_tokens("wordy", "m", None) == pytest.approx(800)
    assert expectations.answer_tokens("new", "m", None) == ANSWER_TOKENS
    assert expectations.prompt_tokens("other", 4000 + OVERHEAD_BYTES) == 1000


def test_what_is_followed_is_bounded() -> None:
    expectations = Expectations()
    for n in range(MOST_FOLLOWED + 50):
        expectations.saw(f"t{n}", "m", chat(4000), Usage(1000, 20), 0.0)
    assert len(expectations._answer_tokens) == MOST_FOLLOWED
    assert expectations.answer_tokens("t0", "m", None) == ANSWER_TOKENS


def test_images_cost_pixels_times_steps() -> None:
    cost = Cost(CostUnit.MEGAPIXEL_STEP, 0.0, 0.1)
    work = Expectations().guess(cost, "t", "m", Ask(100, pixels=2_000_000, steps=20, count=2))
    assert (work.prefill_s, work.decode_s) == (0.0, pytest.approx(8.0))


def test_speech_costs_its_length_and_plain_requests_cost_one_each() -> None:
    speech = Expectations().guess(Cost(CostUnit.AUDIO_SECOND, 0.0, 0.2), "t", "m", Ask(999, text_bytes=150))
    assert speech.decode_s == pytest.approx(2.0)
    assert Expectations().guess(Cost(CostUnit.REQUEST, 0.0, 3.0), "t", "m", Ask(10**6)).decode_s == 3.0


def test_what_was_worked_leaves_out_what_the_cache_spared() -> None:
    assert worked(CHAT, Usage(1000, 50, cached_tokens=600)).prefill_s == pytest.approx(0.4)


def test_answers_are_wanted_by_tenant_and_not_more_of_them_than_a_mean_needs() -> None:
    expectations = Expectations()
    assert expectations.wants("busy", "m", 5.0)
    expectations.saw("busy", "m", chat(3000), Usage(1000, 20), 5.0)
    assert not expectations.wants("busy", "m", 5.01)
    assert expectations.wants("quiet", "m", 5.01), "whoever asks seldom is heard"
    assert expectations.wants("busy", "m", 5.0 + LEARN_EVERY_S)
