"""Resolves the time limits of a request: a limit of the model precedes the route's, which precedes the agent's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.routes.route import Timeouts

NO_TIMEOUTS: Final = Timeouts()
"""Timeouts without a limit: the next more general limits apply."""


STREAM_FIRST_BYTE_S: Final = 300.0
"""Time (s) until a stream begins, unless a setting, a model or a route limits it."""

WHOLE_SHARE: Final = 0.9
"""Part (0-1) of the limit of a request until a response that is not streamed arrives, unless something else limits it.
At the end of the whole limit the deadline would be the cause, and not the engine."""


class TimeLimits(NamedTuple):
    """The time limits (s) of one request; see `Timeouts`."""

    connect_s: float | None
    """None for the default, which depends on whether the connection uses TLS."""
    first_byte_s: float
    stream_first_byte_s: float
    idle_s: float
    total_s: float

    def first_byte_limit_s(self, *, streaming: bool) -> float:
        """The limit (s) from sending a request to the first byte of its response."""
        return self.stream_first_byte_s if streaming else self.first_byte_s

    def with_tools(self) -> TimeLimits:
        """The limits of a request with tools: a call that the engine holds back may take as long as a first byte."""
        return self._replace(idle_s=max(self.idle_s, self.stream_first_byte_s))


def agent_limits(first_byte_s: float | None, idle_s: float, total_s: float) -> TimeLimits:
    """The limits (s) of an agent, by its settings.

    Args:
        first_byte_s: None for STREAM_FIRST_BYTE_S; for responses that are not streamed, for WHOLE_SHARE of `total_s`.
    """
    if first_byte_s is not None:
        return TimeLimits(None, first_byte_s, first_byte_s, idle_s, total_s)
    return TimeLimits(None, WHOLE_SHARE * total_s, STREAM_FIRST_BYTE_S, idle_s, total_s)


def time_limits(model: Timeouts, route: Timeouts, agent: TimeLimits) -> TimeLimits:
    """Resolve each limit of a request on its own.

    Args:
        model: the limits that the policy sets for the requested model.
        route: the limits of the request's route.
        agent: the limits of the agent that serves the request, used where model and route set none.
    """
    if model == NO_TIMEOUTS and route == NO_TIMEOUTS:
        return agent
    return TimeLimits(
        model.connect_s if model.connect_s is not None else route.connect_s,
        _first_set(model.first_byte_s, route.first_byte_s, agent.first_byte_s),
        _first_set(model.stream_first_byte_s, route.stream_first_byte_s, agent.stream_first_byte_s),
        _first_set(model.idle_s, route.idle_s, agent.idle_s),
        total_limit_s(model, route, agent.total_s),
    )


def total_limit_s(model: Timeouts, route: Timeouts, agent_s: float) -> float:
    """The limit (s) from the receipt of a request to the end of its response, resolved as in `time_limits`."""
    return _first_set(model.total_s, route.total_s, agent_s)


def longest_total_s(limits: Iterable[Timeouts], agent_s: float) -> float:
    """The longest time (s) that a request may take from its receipt to the end of its response.

    Args:
        limits: the limits of all models and routes.
        agent_s: the limit of requests for which neither model nor route sets one.
    """
    return max([agent_s, *(each.total_s for each in limits if each.total_s is not None)])


def _first_set(model_s: float | None, route_s: float | None, agent_s: float) -> float:
    if model_s is not None:
        return model_s
    return route_s if route_s is not None else agent_s
