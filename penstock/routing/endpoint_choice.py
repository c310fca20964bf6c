"""What the choice of an endpoint comes to: the one chosen, and each as it was seen."""

from __future__ import annotations

import msgspec

from penstock.routing.reasons import Reason, Rejection


class Who(msgspec.Struct, frozen=True):
    """The endpoint chosen, by position in what was given; None where none could take the request."""

    index: int | None
    rejected: tuple[Rejection, ...] = ()
    """Why nobody could, one a candidate; `rejections` says it of the others where one was chosen."""


class Considered(msgspec.Struct, frozen=True):
    """One endpoint as the choice sees it."""

    name: str
    done_s: float | None
    """When it would be done with the request, in seconds from now, and how much later it makes the others there; None
    where it may not have it."""
    in_flight: int
    """Requests on it now."""
    reason: Reason | None = None
    """Why it may not."""
    holds: bool = False
    """It knows the request's conversation or prefix, or has its model loaded, and gets it even if a little later."""
    near: bool = False
    """It is in the agent's zone, and gets the request even if a little later."""
