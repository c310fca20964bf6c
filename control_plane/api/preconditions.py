"""ETags that are store revisions: what is shown can be changed if it is still what was shown (RFC 9110, 13.1)."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Header

from control_plane.api.problems import Problem

IfMatch = Annotated[
    str | None,
    Header(
        max_length=1024, description="ETag of what you saw, or `*` for whatever is there. Required where it exists."
    ),
]
IfNoneMatch = Annotated[
    str | None, Header(max_length=1024, description="ETag of what you have: 304 if it is still so.")
]

_TAGS = re.compile(r'(?:W/)?"[\x21\x23-\x7e]*"')


def etag(revision: int | str) -> str:
    """The strong tag of what the store holds at a revision, or of content by its digest."""
    return f'"{revision}"'


def must_match(if_match: str | None, current: int | str | None) -> None:
    """Let a change go on only if it is of what the caller saw.

    Args:
        if_match: the request's header.
        current: revision or digest of what is there; None where nothing is.

    Raises:
        Problem: 428 without the header, 412 where it names something else.
    """
    if current is None:
        if if_match is not None:
            raise Problem(412, "there is nothing (any more) that If-Match could name: look again")
        return
    headers = {"etag": etag(current)}
    if if_match is None:
        raise Problem(428, "send If-Match with the ETag of what you saw, or `*` to change whatever is there", headers)
    # Strong comparison: a weak tag names nothing that could be changed.
    if if_match.strip() != "*" and etag(current) not in _TAGS.findall(if_match):
        raise Problem(412, "it is not as you saw it: look again, and send the new ETag in If-Match", headers)


def is_known(if_none_match: str | None, current: int | str) -> bool:
    """Whether the caller has this already, so that 304 will do."""
    if if_none_match is None:
        return False
    weak = {tag.removeprefix("W/") for tag in _TAGS.findall(if_none_match)}
    return if_none_match.strip() == "*" or etag(current) in weak
