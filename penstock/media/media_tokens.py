"""Estimates the number of prompt tokens of the media of a request, for each model, from reported usage.

Models differ: a fixed number for each image (LLaVA) or for each tile or patch (Qwen2-VL, Pixtral, OpenAI's models), and
for each second of audio (Qwen2-Audio). The estimate is a non-negative linear model of the number and the area of
images, the seconds of audio and the size of other media: least squares over exponentially forgotten observations, with
a ridge towards a prior, solved by coordinate descent (the problem: Lawson, Hanson, "Solving Least Squares Problems",
1974, chapter 23).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.media.media_parts import MediaParts


class _Feature(NamedTuple):
    """A quantity that the number of tokens depends on."""

    prior: float
    """Tokens of one unit before any usage is reported."""
    most: float
    """Upper bound of the tokens of one unit, because the usage that engines report may be wrong."""
    typical: float
    """Units in a typical request, which determine the weight of the prior."""


FEATURES: Final = (
    _Feature(prior=250.0, most=50_000.0, typical=1.0),
    _Feature(prior=750.0, most=50_000.0, typical=1.0),
    _Feature(prior=25.0, most=2_000.0, typical=10.0),
    _Feature(prior=0.02, most=1.0, typical=50_000.0),
)
"""The features, in the order of `_values`: an image, a megapixel, a second of audio, a byte of other media."""

DEFAULT_MEGAPIXELS: Final = 0.8
"""Area of an image whose size could not be read: about 1024 x 768."""

MEMORY: Final = 100.0
"""Approximate number of observations that are remembered."""

PRIOR_WEIGHT: Final = 0.05
"""Weight of the prior in observations, which does not decay."""

MAX_SURPRISE: Final = 4.0
"""Maximum ratio of an observation to the expectation and vice versa; a more extreme observation is clipped."""

MIN_TOKENS: Final = 100.0
"""Lower bound of the expected tokens, by whose inverse square an observation is weighted."""

SWEEPS: Final = 12
"""Rounds of coordinate descent for each observation; each round begins with the result of the previous round."""

MAX_MODELS: Final = 1024
"""Models that are remembered; the least recently updated one is evicted first."""


class MediaTokens:
    """The tokens of media, by model."""

    def __init__(self) -> None:
        """Create an estimator without observations."""
        self._by_model: dict[str, _ModelCosts] = {}

    def tokens(self, model: str, media: MediaParts) -> float:
        """Return the expected tokens of the media of one request."""
        costs = self._by_model.get(model) or _NEW
        return costs.tokens(_values(media))

    def observe(self, model: str, media: MediaParts, tokens: float) -> None:
        """Update the estimate by a finished request.

        Args:
            tokens: prompt tokens of the request without the tokens of its text; may be negative.
        """
        costs = self._by_model.pop(model, None) or _ModelCosts()
        costs.observe(_values(media), tokens)
        self._by_model[model] = costs
        if len(self._by_model) > MAX_MODELS:
            del self._by_model[next(iter(self._by_model))]


class _ModelCosts:
    """The linear model of one model."""

    __slots__ = ("_products", "_targets", "unit_tokens")

    def __init__(self) -> None:
        self.unit_tokens = [feature.prior for feature in FEATURES]
        """Tokens of one unit of each feature."""
        self._products = [[0.0] * len(FEATURES) for _ in FEATURES]
        self._targets = [0.0] * len(FEATURES)

    def tokens(self, values: tuple[float, ...]) -> float:
        return sum(tokens * value for tokens, value in zip(self.unit_tokens, values, strict=True))

    def observe(self, values: tuple[float, ...], tokens: float) -> None:
        expected = self.tokens(values)
        if expected <= 0.0:
            expected = sum(feature.prior * value for feature, value in zip(FEATURES, values, strict=True))
        tokens = max(expected / MAX_SURPRISE, min(expected * MAX_SURPRISE, tokens))
        weight = 1.0 / max(MIN_TOKENS, expected) ** 2
        keep = 1.0 - 1.0 / MEMORY
        for row, value in enumerate(values):
            products = self._products[row]
            for column, other in enumerate(values):
                products[column] = products[column] * keep + weight * value * other
            self._targets[row] = self._targets[row] * keep + weight * value * tokens
        self._solve()

    def _solve(self) -> None:
        units = self.unit_tokens
        for _ in range(SWEEPS):
            for row, feature in enumerate(FEATURES):
                # The prior's observation: a typical request that consists of this feature alone.
                scale = feature.prior * feature.typical
                ridge = PRIOR_WEIGHT * (feature.typical / max(MIN_TOKENS, scale)) ** 2
                products = self._products[row]
                others = sum(products[column] * units[column] for column in range(len(FEATURES)) if column != row)
                unit = (self._targets[row] - others + ridge * feature.prior) / (products[row] + ridge)
                units[row] = max(0.0, min(feature.most, unit))


_NEW: Final = _ModelCosts()


def _values(media: MediaParts) -> tuple[float, ...]:
    megapixels = media.megapixels + DEFAULT_MEGAPIXELS * media.unsized_images
    return (float(media.images), megapixels, media.audio_s, float(media.document_bytes))
