"""Heads of responses that the agent asks more about before their bodies are for clients."""

from __future__ import annotations

import pytest

from penstock.http.response_head import ResponseHead


@pytest.mark.parametrize(
    ("status", "header", "is_plain"),
    [
        (200, b"content-type", True),
        (299, b"content-type", True),
        (300, b"content-type", False),
        (503, b"content-type", False),
        (200, b"endpoint-load-metrics", False),
        (200, b"x-preemption-notice", False),
        (200, b"x-penstock-refusal", False),
        (200, b"x-penstock-engine-failed", False),
    ],
)
def test_a_head_is_plain_that_succeeds_and_reports_nothing(status: int, header: bytes, is_plain: bool) -> None:
    assert ResponseHead(status, [(header, b"x")], {header: b"x"}).is_plain is is_plain
