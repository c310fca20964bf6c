"""Conditional requests (RFC 9110, 13.1): ETags are store revisions or content digests."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Header

from control_plane.api.responses import Problem

IfMatch = Annotated[
    str | None,
    Header(
        max_length=1024,
        description="ETag of the state that you read, or `*` for any state. Required if the resource exists.",
    ),
]
IfNoneMatch = Annotated[
    str | None, Header(max_length=1024, description="ETag of the state that you have: 304 if it is unchanged.")
]

_TAGS = re.compile(r'(?:W/)?"[\x21\x23-\x7e]*"')


def etag(revision: int | str) -> str:
    """Return the strong ETag of a store revision or content digest."""
    return f'"{revision}"'


def must_match(if_match: str | None, current: int | str | None) -> None:
    """Check the If-Match header of a change.

    Args:
        if_match: value of the header.
        current: revision or digest of the current state; None if the resource does not exist.

    Raises:
        Problem: 428, the header is missing; 412, the header names another state, or the resource does not exist.
    """
    if current is None:
        if if_match is not None:
            raise Problem(412, "the resource of If-Match does not exist (any more): read it again")
        return
    headers = {"etag": etag(current)}
    if if_match is None:
        raise Problem(428, "send If-Match with the ETag of the state that you read, or `*` for any state", headers)
    # Strong comparison: a weak ETag does not match.
    if if_match.strip() != "*" and etag(current) not in _TAGS.findall(if_match):
        raise Problem(412, "the resource has changed: read it again and send its new ETag in If-Match", headers)


def is_known(if_none_match: str | None, current: int | str) -> bool:
    """Whether the caller has the current state already, so that 304 is the response."""
    if if_none_match is None:
        return False
    weak = {tag.removeprefix("W/") for tag in _TAGS.findall(if_none_match)}
    return if_none_match.strip() == "*" or etag(current) in weak
