"""Estimates the cost of a request from its body before it runs, in time on the reference accelerator.

Prompt tokens are estimated from the size of the text in the body and from the media in it. Answer tokens are estimated
from the tenant's recent answers: as a part of the requested limit if recent requests had a similar limit, else as the
mean length. The limit separates long answers from short answers if clients set `max_tokens` to their need, but not if
all clients set the same limit. Estimates are corrected by the usage that engines report (`usage` in OpenAI's
responses).
"""

from __future__ import annotations

from typing import Final, TypeVar

from penstock.answers.token_counts import MAX_TOKENS, Usage
from penstock.cost.request_properties import CostInputs
from penstock.cost.work import Work
from penstock.media.media_parts import MediaParts
from penstock.media.media_tokens import MediaTokens
from penstock.policy.kinds.models import Cost, CostUnit

Key = TypeVar("Key")

BYTES_PER_TOKEN: Final = 4.0
"""Bytes per token of English text, for the tokenizers of GPT-3 and Llama; used until an engine has reported usage."""

OVERHEAD_BYTES: Final = 120
"""Bytes of a request's JSON that are not prompt: braces, field names, the model, roles."""

FULL_WEIGHT_BYTES: Final = 4096
"""Minimum size (bytes) of a prompt that has full weight in the mean of tokens per byte. The weight of a shorter prompt
is proportional to its size, since the tokens that the engine adds dominate its ratio. The weight of a longer prompt is
bounded, so that a few large bodies that are not text do not determine the mean."""

TEMPLATE_TOKENS: Final = 200
"""Maximum number of tokens that an engine adds to a prompt: its chat template and default system prompt."""

ANSWER_TOKENS: Final = 211.0
"""Mean number of tokens of an answer of a chat service (Azure LLM inference trace 2023, conversation); used until an
engine has reported usage."""

SHORT_BYTES: Final = 256
"""Maximum size (bytes) of a body from which the least tokens of a prompt are learned: mostly those of the template."""

TEXT_BYTES_PER_SECOND: Final = 15.0
"""Characters of English in a second of speech: about 150 words a minute."""

BYTES_PER_ELEMENT: Final = 4.0
"""Bytes of a tensor element in a request that states no shape: a 32-bit number in binary, or a short one in JSON."""

MEMORY_REQUESTS: Final = 50
"""Approximate number of requests that determine a mean."""

LIKE_ENOUGH: Final = 2
"""Minimum number of answers to requests with a similar limit for their mean to be used."""

NEAREST_LIMITS: Final = (0, -1, 1, -2, 2)
"""Offsets of the size classes that are searched for similar limits, in steps of half a doubling. Requests with half or
twice the limit are similar enough; requests with the largest limits, which cost most, are too rare for two in each
class."""

LEARN_EVERY_S: Final = 0.02
"""Minimum time (s) between two answers of one model to one tenant that are learned from, so that the means of a tenant
cover at least a second at any request rate."""

MAX_FOLLOWED: Final = 4096
"""Maximum number of means of each kind: by model, by (tenant, model), and by limit; the least recently updated mean is
evicted first. Also the maximum number of models in `linked_images`."""

DEFAULT_PIXELS: Final = 1024 * 1024
DEFAULT_STEPS: Final = 30
"""Used, like DEFAULT_PIXELS, if a request does not state the value; both are close to the defaults of Stable Diffusion
XL in Hugging Face's diffusers."""


_TOKEN: Final = CostUnit.TOKEN
"""In Python 3.11, to read a member off its class is a function call."""


class CostEstimator:
    """Recent lengths of prompts and answers, from which the cost of a request is estimated."""

    def __init__(self) -> None:
        """Create an estimator without observations."""
        self._tokens_per_byte: dict[str, _Mean] = {}
        self._least_tokens: dict[str, float] = {}
        """Fewest tokens of a short prompt by model, which no prompt is estimated below."""
        self._media_tokens = MediaTokens()
        self.linked_images: set[str] = set()
        """Models for which a prompt had more tokens than its body can contain as text, so that it linked images."""
        self._answer_tokens: dict[tuple[str, str], _Mean] = {}
        self._used_of_limit: dict[tuple[str, str, int], _Mean] = {}
        """Used part (0-1) of the limit, by (tenant, model, size class of the limit)."""

    def tokens_per_byte(self, model: str) -> float:
        """Approximate number of tokens per byte of a prompt."""
        ratio = self._tokens_per_byte.get(model)
        return ratio.value if ratio is not None else 1.0 / BYTES_PER_TOKEN

    def prompt_tokens(self, model: str, body_bytes: int) -> float:
        """Expected tokens of the prompt in a body of this size."""
        ratio = self._tokens_per_byte.get(model)
        tokens = (body_bytes - OVERHEAD_BYTES) * (ratio.value if ratio is not None else 1.0 / BYTES_PER_TOKEN)
        least = self._least_tokens.get(model, 1.0)
        return tokens if least <= tokens <= MAX_TOKENS else min(MAX_TOKENS, max(least, tokens))

    def tokens_in(self, model: str, ask: CostInputs) -> float:
        """Expected tokens of the prompt of a request, its media included."""
        if ask.media is not None:
            return self._tokens_with_media(model, ask.body_bytes, ask.media)
        return self.prompt_tokens(model, ask.body_bytes)

    def answer_tokens(self, tenant: str, model: str, max_tokens: int | None) -> float:
        """Expected number of tokens of an answer of the model to this tenant."""
        if max_tokens is None:
            mean = self._answer_tokens.get((tenant, model))
            return mean.value if mean is not None else ANSWER_TOKENS
        magnitude = _magnitude(max_tokens)
        for step in NEAREST_LIMITS:
            used = self._used_of_limit.get((tenant, model, magnitude + step))
            if used is not None and used.count >= LIKE_ENOUGH:
                likely = used.value * max_tokens
                break
        else:
            mean = self._answer_tokens.get((tenant, model))
            likely = mean.value if mean is not None else ANSWER_TOKENS
        most = max_tokens if max_tokens > 1 else 1
        return (likely if likely > 1.0 else 1.0) if likely <= most else most

    def estimate(self, cost: Cost, tenant: str, model: str, ask: CostInputs) -> Work:
        """The estimated cost of a request."""
        if cost.unit is _TOKEN:
            answer_s = 0.0
            if ask.answers:
                answer_s = cost.output_unit_s * ask.count * self.answer_tokens(tenant, model, ask.max_tokens)
            return Work(cost.input_unit_s * self.tokens_in(model, ask), answer_s)
        return Work(0.0, cost.output_unit_s * _units(cost.unit, ask))

    def _note_short_prompt(self, model: str, tokens: float) -> None:
        least = self._least_tokens.get(model)
        if tokens < (least or MAX_TOKENS) and (least or len(self._least_tokens) < MAX_FOLLOWED):
            self._least_tokens[model] = tokens

    def _note_linked_images(self, model: str) -> None:
        if len(self.linked_images) < MAX_FOLLOWED:
            self.linked_images.add(model)

    def _tokens_with_media(self, model: str, body_bytes: int, media: MediaParts) -> float:
        text_tokens = self.prompt_tokens(model, body_bytes - media.encoded_bytes)
        return min(float(MAX_TOKENS), text_tokens + self._media_tokens.tokens(model, media))

    def is_due(self, tenant: str, model: str, now: float) -> bool:
        """Whether to learn from a request of this tenant that ends now (s): at most one each LEARN_EVERY_S."""
        mean = self._answer_tokens.get((tenant, model))
        return mean is None or now >= mean.taken_at + LEARN_EVERY_S

    def observe(self, tenant: str, model: str, ask: CostInputs, usage: Usage, now: float) -> None:
        """Learn from the usage of a finished request. `now` is monotonic, in seconds."""
        if usage.prompt_tokens > 0 and ask.media is not None:
            text_tokens = self.prompt_tokens(model, ask.body_bytes - ask.media.encoded_bytes)
            self._media_tokens.observe(model, ask.media, usage.prompt_tokens - text_tokens)
        elif usage.prompt_tokens > ask.body_bytes + TEMPLATE_TOKENS:
            self._note_linked_images(model)
        elif usage.prompt_tokens > 0:
            prompt_bytes = ask.body_bytes - OVERHEAD_BYTES
            if prompt_bytes > 0:
                weight = min(1.0, prompt_bytes / FULL_WEIGHT_BYTES)
                _follow(self._tokens_per_byte, model, usage.prompt_tokens / prompt_bytes, now, weight)
            if ask.body_bytes <= SHORT_BYTES:
                self._note_short_prompt(model, float(usage.prompt_tokens))
        if usage.answer_tokens > 0 and ask.answers:
            answer_tokens = usage.answer_tokens / max(1, ask.count)
            _follow(self._answer_tokens, (tenant, model), answer_tokens, now)
            most = ask.max_tokens
            if most is not None and most > 0:
                _follow(self._used_of_limit, (tenant, model, _magnitude(most)), min(1.0, answer_tokens / most), now)


def actual_work(cost: Cost, usage: Usage) -> Work:
    """The actual work of a finished request, without the prefill of cached tokens."""
    uncached = max(1, usage.prompt_tokens - usage.cached_tokens)
    return Work(cost.input_unit_s * uncached, cost.output_unit_s * usage.answer_tokens)


def _units(unit: CostUnit, ask: CostInputs) -> float:
    if unit is CostUnit.MEGAPIXEL_STEP:
        return (ask.pixels or DEFAULT_PIXELS) / 1e6 * (ask.steps or DEFAULT_STEPS) * ask.count
    if unit is CostUnit.AUDIO_SECOND:
        if ask.audio_s is not None:
            return ask.audio_s
        return max(1.0, (ask.text_bytes if ask.text_bytes is not None else ask.body_bytes) / TEXT_BYTES_PER_SECOND)
    if unit is CostUnit.TENSOR_ELEMENT:
        return float(ask.elements) if ask.elements is not None else max(1.0, ask.body_bytes / BYTES_PER_ELEMENT)
    return float(ask.count)


def _magnitude(tokens: int) -> int:
    """The size class of a limit, two to each doubling. Limits of one class are treated as equal."""
    tokens = tokens if tokens > 2 else 2
    bits = tokens.bit_length()
    return 2 * bits + (tokens >> (bits - 2) & 1)


class _Mean:
    """An arithmetic mean at first, an exponentially weighted one after MEMORY_REQUESTS observations."""

    def __init__(self) -> None:
        self.taken_at = 0.0
        self.count = 0.0
        """Sum of the weights of the observations."""
        self.value = 0.0


def _follow(means: dict[Key, _Mean], key: Key, value: float, now: float, weight: float = 1.0) -> None:
    """Add a value to the mean of `key`, which becomes the most recently updated."""
    mean = means.pop(key, None) or _Mean()
    mean.count += weight
    mean.taken_at = now
    mean.value += (value - mean.value) * weight / min(mean.count, MEMORY_REQUESTS)
    means[key] = mean
    if len(means) > MAX_FOLLOWED:
        del means[next(iter(means))]
