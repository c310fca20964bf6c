"""If-Match lets a change pass only for the revision that the caller read; If-None-Match spares a second transfer."""

from __future__ import annotations

import pytest

from control_plane.api.preconditions import etag, is_known, must_match
from control_plane.api.responses import Problem


@pytest.mark.parametrize(
    ("if_match", "current", "status"),
    [
        ('"7"', 7, None),
        (' "7" ', 7, None),
        ('"6", "7"', 7, None),
        ("*", 7, None),
        (None, None, None),
        (None, 7, 428),
        ('"6"', 7, 412),
        ('W/"7"', 7, 412),
        ("7", 7, 412),
        ('"77"', 7, 412),
        ("", 7, 412),
        ('"7"', None, 412),
        ("*", None, 412),
        ('"abc"', "abc", None),
    ],
)
def test_if_match_requires_the_current_revision(
    if_match: str | None, current: int | str | None, status: int | None
) -> None:
    if status is None:
        must_match(if_match, current)
        return
    with pytest.raises(Problem) as refused:
        must_match(if_match, current)
    assert refused.value.status_code == status
    assert (refused.value.headers or {}).get("etag") == (None if current is None else etag(current))


@pytest.mark.parametrize(
    ("if_none_match", "known"),
    [(None, False), ('"7"', True), ('W/"7"', True), ('"6", W/"7"', True), ("*", True), ('"6"', False), ("7", False)],
)
def test_if_none_match_saves_a_second_transfer(if_none_match: str | None, known: bool) -> None:
    assert is_known(if_none_match, 7) is known
