"""The token cost of media is learned from reported usage."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.answers.token_counts import MAX_TOKENS, Usage
from penstock.cost.cost_estimate import OVERHEAD_BYTES, CostEstimator
from penstock.cost.request_properties import CostInputs
from penstock.media.media_parts import MediaParts
from penstock.media.media_tokens import FEATURES, MediaTokens
from penstock.policy.kinds.models import Cost, CostUnit

CALM = MediaParts(images=1, megapixels=0.5, encoded_bytes=200_000)


def images(rng: Random) -> MediaParts:
    count = rng.randint(1, 4)
    return MediaParts(images=count, megapixels=sum(rng.uniform(0.1, 4.0) for _ in range(count)))


@pytest.mark.parametrize(("per_image", "per_megapixel"), [(576.0, 0.0), (0.0, 1275.0), (1601.0, 0.0), (85.0, 650.0)])
def test_images_converge_to_what_the_model_counts(per_image: float, per_megapixel: float) -> None:
    tokens, rng = MediaTokens(), Random(1)
    for _ in range(150):
        media = images(rng)
        tokens.observe("m", media, per_image * media.images + per_megapixel * media.megapixels + rng.gauss(0.0, 30.0))
    for _ in range(20):
        media = images(rng)
        true = per_image * media.images + per_megapixel * media.megapixels
        assert tokens.tokens("m", media) == pytest.approx(true, rel=0.15, abs=60)


def test_audio_and_documents_converge_beside_images() -> None:
    tokens, rng = MediaTokens(), Random(2)
    for _ in range(200):
        media = MediaParts(
            images=rng.randint(0, 2), audio_s=rng.choice([0.0, 10.0, 60.0]), document_bytes=rng.choice([0, 300_000])
        )
        if any(media):
            tokens.observe("m", media, 600 * media.images + 12.5 * media.audio_s + 0.005 * media.document_bytes)
    assert tokens.tokens("m", MediaParts(images=1)) == pytest.approx(600, rel=0.1)
    assert tokens.tokens("m", MediaParts(audio_s=30.0)) == pytest.approx(375, rel=0.1)
    assert tokens.tokens("m", MediaParts(document_bytes=200_000)) == pytest.approx(1000, rel=0.1)
    assert tokens.tokens("other", MediaParts(images=1)) == FEATURES[0].prior


def test_one_wrong_usage_hardly_matters() -> None:
    tokens = MediaTokens()
    for _ in range(100):
        tokens.observe("m", CALM, 1000.0)
    tokens.observe("m", CALM, 1e6)
    tokens.observe("m", CALM, -1e6)
    assert tokens.tokens("m", CALM) == pytest.approx(1000.0, rel=0.1)


media = st.builds(
    MediaParts,
    images=st.integers(0, 256),
    megapixels=st.floats(0.0, 20_000.0),
    unsized_images=st.integers(0, 256),
    audio_s=st.floats(0.0, 1e6),
    document_bytes=st.integers(0, 10**9),
)


@given(st.lists(st.tuples(media, st.floats(-1e7, 1e7)), max_size=30), media)
def test_estimates_are_bounded_for_any_reports_of_engines(
    history: list[tuple[MediaParts, float]], asked: MediaParts
) -> None:
    tokens = MediaTokens()
    for seen, reported in history:
        tokens.observe("m", seen, reported)
    limits = [feature.most for feature in FEATURES]
    largest = (
        limits[0] * asked.images
        + limits[1] * (asked.megapixels + asked.unsized_images)
        + limits[2] * asked.audio_s
        + limits[3] * asked.document_bytes
    )
    assert 0.0 <= tokens.tokens("m", asked) <= largest + 1e-6


def test_an_inline_image_is_not_prompt_text() -> None:
    estimator, cost = CostEstimator(), Cost(CostUnit.TOKEN, 1.0, 1.0)
    image = MediaParts(images=1, megapixels=1.0, encoded_bytes=2_000_000)
    ask = CostInputs(2_000_000 + 400 + OVERHEAD_BYTES, answers=False, media=image)
    assert estimator.estimate(cost, "t", "m", ask).prefill_s == 100 + 250 + 750
    for _ in range(100):
        estimator.observe("t", "m", ask, Usage(100 + 1300, 10), 0.0)
    assert estimator.estimate(cost, "t", "m", ask).prefill_s == pytest.approx(1400, rel=0.02)
    assert estimator.tokens_per_byte("m") == 0.25
    assert not estimator.linked_images
    many = CostInputs(10**9, answers=False, media=MediaParts(images=256, megapixels=16_000.0))
    assert estimator.estimate(cost, "t", "m", many).prefill_s == MAX_TOKENS


def test_more_tokens_than_bytes_are_a_linked_image_and_teach_nothing_about_text() -> None:
    estimator = CostEstimator()
    estimator.observe("t", "text", CostInputs(400), Usage(300, 10), 0.0)
    assert not estimator.linked_images
    estimator.observe("t", "vision", CostInputs(400), Usage(1100, 10), 0.0)
    assert estimator.linked_images == {"vision"}
    assert estimator.tokens_per_byte("vision") == 0.25
