"""Ejection of single adapters at one endpoint: a broken adapter must not take away the base model and other adapters.

Errors that the engine reports for requests of an adapter count against the adapter alone, by the rules of endpoints.
What concerns the server counts against the endpoint: connections, credentials, a lack of progress. So do the errors of
an adapter while MANY others are ejected there, since the engine is the likely cause then.
"""

from __future__ import annotations

from random import Random
from typing import Final

from penstock.health.outlier_ejection import (
    ENGINE_ERRORS,
    AttemptOutcome,
    Ejection,
    EjectionRules,
    EndedAttempt,
    at_time,
    request_ended,
)

COUNTED: Final = ENGINE_ERRORS | {AttemptOutcome.BROKEN_OFF}
"""Failures that count against an adapter."""

MANY: Final = 2
"""Number of ejected adapters of an endpoint from which the errors of further ones count against the endpoint."""

MAX_ADAPTERS: Final = 64
"""Maximum number of adapters with remembered failures; the one that was added first is forgotten."""


class AdapterEjections:
    """The adapters of one endpoint that have failed."""

    __slots__ = ("_by_name",)

    def __init__(self) -> None:
        self._by_name: dict[str, Ejection] = {}

    def __contains__(self, name: str) -> bool:
        """Whether failures of an adapter are remembered."""
        return name in self._by_name

    def charges(self, name: str, outcome: AttemptOutcome, now: float) -> bool:
        """Whether an outcome of a request for an adapter counts against the adapter and not against the endpoint."""
        if outcome not in COUNTED:
            return False
        return len([other for other in self._by_name if other != name and self.is_out(other, now)]) < MANY

    def ended(
        self, name: str, ended: EndedAttempt, now: float, rules: EjectionRules, rng: Random, *, may_eject: bool
    ) -> bool:
        """Apply the outcome of a request for an adapter; returns whether it ejects the adapter.

        Args:
            may_eject: whether enough other endpoints have the adapter, see `room_to_eject`.
        """
        before = self._by_name.get(name)
        if before is None:
            if ended.outcome not in COUNTED:
                return False
            while len(self._by_name) >= MAX_ADAPTERS:
                del self._by_name[next(iter(self._by_name))]
            before = Ejection()
        before = at_time(before, now)
        after = self._by_name[name] = request_ended(before, ended, now, rules, rng, may_eject=may_eject)
        if not after.is_ejected and not after.failing and not after.ejections:
            del self._by_name[name]
        return not after.accepts_requests and before.accepts_requests

    def is_out(self, name: str, now: float) -> bool:
        """Whether an adapter is ejected at `now` (s)."""
        ejection = self._by_name.get(name)
        return ejection is not None and not at_time(ejection, now).accepts_requests

    def out(self, now: float) -> list[str]:
        """Return the ejected adapters."""
        return sorted(name for name in self._by_name if self.is_out(name, now))
