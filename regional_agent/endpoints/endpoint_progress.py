"""Finds the endpoints of an agent whose requests make no progress, and makes them suspect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import Final

import structlog

from penstock.health.endpoint_health import EndpointState
from penstock.health.progress import ProgressSample, Stall, StallReason, stall_of, stall_while_down
from regional_agent.endpoints.endpoint import Endpoint

MAX_LATE_S: Final = 1.0
"""Maximum time (s) between two checks. After a longer delay of the event loop no endpoint is judged, because the agent
has not yet read the responses that arrived meanwhile."""

_DOWN: Final = EndpointState.DOWN

log = structlog.get_logger()


class ProgressMonitor:
    """Judges the progress of all endpoints, a few times a second."""

    def __init__(
        self,
        members: Callable[[str], Sequence[Endpoint]],
        suspect_after_s: float,
        on_suspect: Callable[[StallReason], None],
        serves_elsewhere: Callable[[str], bool] = lambda model: True,
    ) -> None:
        """Create a monitor.

        Args:
            members: returns the endpoints of a model.
            suspect_after_s: time (s) without progress that makes an endpoint suspect; 0 disables the check.
            on_suspect: called with the evidence when an endpoint becomes suspect.
            serves_elsewhere: returns whether another region serves a model.
        """
        self._serves_elsewhere = serves_elsewhere
        self._members = members
        self._suspect_after_s = suspect_after_s
        self._on_suspect = on_suspect
        self._checked_at = inf

    def check(self, endpoints: Iterable[Endpoint], now: float) -> None:
        """Judge endpoints by the samples of their last ticks; `now` in s."""
        late_s, self._checked_at = now - self._checked_at, now
        if late_s > MAX_LATE_S:
            for endpoint in endpoints:
                endpoint.progress.progressed_at = now
            return
        waiting = [endpoint for endpoint in endpoints if endpoint.sample.waiting_since < inf]
        for endpoint in waiting:
            if (
                endpoint.health.state is _DOWN
                and endpoint.occupation.is_engaged
                and endpoint.ejection.can_become_suspect
            ):
                self._suspect(endpoint, stall_while_down(endpoint.sample, now, self._suspect_after_s))
        overdue = [endpoint for endpoint in waiting if endpoint.sample.overdue_since < inf]
        for endpoint in sorted(overdue, key=lambda endpoint: -endpoint.sample.silent_s(now)):
            if endpoint.ejection.can_become_suspect and not endpoint.is_engaged():
                self._judge(endpoint, now)

    def _judge(self, endpoint: Endpoint, now: float) -> None:
        stall = None
        for model in endpoint.models:
            siblings, elsewhere = self._siblings(endpoint, model), self._serves_elsewhere(model)
            stall = stall_of(endpoint.sample, siblings, now, self._suspect_after_s, serves_elsewhere=elsewhere)
            if stall is None:
                return
        self._suspect(endpoint, stall)

    def _suspect(self, endpoint: Endpoint, stall: Stall | None) -> None:
        if stall is not None and endpoint.make_suspect(stall):
            until_s = endpoint.ejection.until - endpoint.ejection.since
            log.warning("endpoint suspect", endpoint=endpoint.name, why=stall.detail, for_s=round(until_s, 1))
            self._on_suspect(stall.reason)

    def _siblings(self, endpoint: Endpoint, model: str) -> Iterator[ProgressSample]:
        for sibling in self._members(model):
            if sibling is not endpoint and sibling.health.ready and not sibling.ejection.is_ejected:
                yield sibling.sample
