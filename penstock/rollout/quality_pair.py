"""A pair of answers of two versions of a model, as the quality hook receives it, and the score that it returns."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

import msgspec

MAX_SCORE: Final = 1.0
"""Largest score: the new answer is better. The smallest is its negative."""

_OF_CLIENTS: Final = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})
"""Fields of requests that identify people or sessions and do not change the answer."""


class PairAnswer(msgspec.Struct):
    """The answer of one version."""

    content_type: str
    body: str


class QualityPair(msgspec.Struct):
    """The body of a request to the hook."""

    name: str
    """The model that the client requested."""
    old: str
    new: str
    """The versions."""
    request: Any
    answers: dict[str, PairAnswer]
    """By `old` and `new`."""


class _Verdict(msgspec.Struct):
    score: float


_verdict: Final = msgspec.json.Decoder(_Verdict)


class InvalidScore(Exception):
    """The answer of the hook is no score; the message states why."""


def encode_pair(names: tuple[str, str, str], request: bytes, answers: Mapping[str, PairAnswer]) -> bytes:
    """Return what the hook receives, without what identifies the tenant, its clients and their sessions.

    Args:
        names: the requested model, its old and its new version.
        request: the JSON body of the client's request.
        answers: by `old` and `new`.
    """
    asked = msgspec.json.decode(request)
    if isinstance(asked, dict):
        asked = {name: value for name, value in asked.items() if name not in _OF_CLIENTS}
    return msgspec.json.encode(QualityPair(*names, asked, dict(answers)))


def score_of(body: bytes) -> float:
    """Return the score in an answer of the hook, from -1 to 1.

    Raises:
        InvalidScore: the answer has no such score.
    """
    try:
        score = _verdict.decode(body).score
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidScore(f"the answer of the hook is no score: {error}") from None
    if not isfinite(score) or not -MAX_SCORE <= score <= MAX_SCORE:
        raise InvalidScore("the score is not from -1 to 1")
    return score
