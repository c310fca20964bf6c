"""What the quality hook receives, and which of its answers are scores."""

from __future__ import annotations

import json

import pytest

from penstock.rollout.quality_pair import InvalidScore, PairAnswer, encode_pair, score_of


def test_the_hook_receives_nothing_that_identifies_clients() -> None:
    request = {"model": "m", "messages": [], "user": "u", "metadata": {"a": "b"}, "safety_identifier": "s"}
    answers = {"old": PairAnswer("application/json", "{}"), "new": PairAnswer("text/event-stream", "data: x")}
    body = encode_pair(("m", "m-1", "m-2"), json.dumps(request | {"prompt_cache_key": "k"}).encode(), answers)
    assert json.loads(body) == {
        "name": "m",
        "old": "m-1",
        "new": "m-2",
        "request": {"model": "m", "messages": []},
        "answers": {
            "old": {"content_type": "application/json", "body": "{}"},
            "new": {"content_type": "text/event-stream", "body": "data: x"},
        },
    }


@pytest.mark.parametrize(("body", "score"), [(b'{"score":1}', 1.0), (b'{"score":-1.0,"why":"x"}', -1.0)])
def test_scores_are_read(body: bytes, score: float) -> None:
    assert score_of(body) == score


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"score":"1"}', b'{"score":1.01}', b'{"score":-2}', b'{"score":1e999}', b"\xff", b"[" * 5000]
)
def test_other_answers_are_no_scores(body: bytes) -> None:
    with pytest.raises(InvalidScore):
        score_of(body)
