"""Which endpoints are refused although they report the expected revision of a model again.

An endpoint whose reports alternate is a liar, or several engines behind one address. Accepted with each good report, it
would serve the wrong revision most of the time: the next report comes after seconds.
"""

from __future__ import annotations

from collections.abc import Container
from math import inf
from typing import Final

HOLD_S: Final = 60.0
"""Time (s) for which an endpoint has to report the expected revision alone after it reported another one meanwhile."""


class RevisionHistory:
    """What the endpoints of an agent reported about the models whose revision decides."""

    def __init__(self) -> None:
        self._accepted: dict[tuple[str, str], str] = {}
        """The expected revision by which an endpoint was last accepted for a model."""
        self._wavered: dict[tuple[str, str], tuple[str, float]] = {}
        """The expected revision that an endpoint ceased to report, and since when it reports it again (s); inf while it
        reports another one."""

    def is_held(self, endpoint: str, model: str, expected: str, now: float, *, differs: bool) -> bool:
        """Record a report at `now` (s); returns whether the endpoint is refused although the report does not differ.

        An endpoint that never reported what policy expects now is accepted with its first good report, so that neither
        a change of policy nor the replacement of engines waits.

        Args:
            expected: pattern of the revision that policy expects.
            differs: whether the endpoint reports another revision.
        """
        key = endpoint, model
        wavered, since = self._wavered.get(key, ("", -inf))
        if differs:
            if expected in (wavered, self._accepted.pop(key, "")):
                self._wavered[key] = expected, inf
            return False
        if wavered == expected and now - since < HOLD_S:
            if since == inf:
                self._wavered[key] = expected, now
            return True
        self._wavered.pop(key, None)
        self._accepted[key] = expected
        return False

    def is_due(self, now: float) -> bool:
        """Whether the time of an endpoint is over at `now` (s), so that it is judged again. True once for each."""
        due = [key for key, (_, since) in self._wavered.items() if now - since >= HOLD_S]
        for key in due:
            del self._wavered[key]
        return bool(due)

    def keep(self, endpoints: Container[str]) -> None:
        """Forget all other endpoints."""
        for known in (self._accepted, self._wavered):
            for key in [key for key in known if key[0] not in endpoints]:
                del known[key]
