"""Fetches the demand signals of the policy while its control plane leads."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import httpx
import msgspec
import structlog

from control_plane.auth.bounded_fetch import SeparateFetches, fetch
from penstock.planning.forecasting.demand_signals import Points, read_points
from penstock.policy.kinds.external_sources import DemandSignal
from penstock.policy.policy import Policy

TICK_S = 1.0
"""Interval (s) at which it is checked which signals are due."""

_log = structlog.get_logger(__name__)


class _Polled(msgspec.Struct):
    """The fetches of one URL."""

    tried_at: float = float("-inf")
    fetched_at: float = float("-inf")
    """Unix times (s) of the last try and of the last success."""
    points: Points = ()
    problem: str = ""


class SignalPoller:
    """Keeps the last valid response of each signal.

    Args:
        policy: returns the policy in force, once it is known.
        leads: whether this control plane leads.
        clock: Unix time (s).
        on_ages: called with the age (s) of each signal; inf before its first response, and none at followers.
    """

    def __init__(
        self,
        policy: Callable[[], Policy | None],
        leads: Callable[[], bool],
        clock: Callable[[], float],
        on_ages: Callable[[Mapping[str, float]], None],
    ) -> None:
        self._policy = policy
        self._leads = leads
        self._clock = clock
        self._on_ages = on_ages
        self._http: httpx.AsyncClient | None = None
        """Created with the first fetch, since most fleets have no signal; follows no redirects."""
        self.fetches = SeparateFetches()
        """Fetches by name and URL of the signal."""
        self._polled: dict[tuple[str, str], _Polled] = {}
        """By name and URL: a signal whose URL changes begins again."""

    def points(self) -> dict[str, Points]:
        """Return the last valid points of each signal of the policy, by name."""
        return {name: polled.points for (name, _), polled in self._polled.items()}

    async def tick(self) -> None:
        """Start to fetch the signals that are due; no effect without leadership."""
        policy = self._policy()
        signals = () if policy is None or not self._leads() else policy.demand_signals or ()
        self._polled = {(each.name, each.url): self._of(each) for each in signals}
        now = self._clock()
        for each in signals:
            polled, source = self._of(each), (each.name, each.url)
            if now - polled.tried_at >= each.refresh_s and not self.fetches.is_running(source):
                self.fetches.start(source, self._fetch(each, polled))
        self._on_ages({each.name: now - self._of(each).fetched_at for each in signals})

    async def close(self) -> None:
        """Cancel all fetches, and close the connections."""
        await self.fetches.close()
        if self._http is not None:
            await self._http.aclose()

    def _of(self, signal: DemandSignal) -> _Polled:
        return self._polled.get((signal.name, signal.url)) or _Polled()

    async def _fetch(self, signal: DemandSignal, polled: _Polled) -> None:
        polled.tried_at = self._clock()
        try:
            self._http = self._http or httpx.AsyncClient()
            status, body = await fetch(self._http, signal.url)
            if status != 200:
                raise ValueError(f"HTTP status {status}")
            polled.points = read_points(body)
        except ValueError as error:
            if polled.problem != str(error):
                _log.warning("demand signal not fetched", signal=signal.name, reason=str(error))
            polled.problem = str(error)
            return
        polled.fetched_at, polled.problem = self._clock(), ""
