"""The readiness of an agent: whether load balancers should send clients to the agent, and the reason if not."""

from __future__ import annotations

from collections.abc import Callable

from penstock.health.endpoint_health import EndpointState
from regional_agent.config.active_config import ActiveConfig
from regional_agent.endpoints.endpoint_set import EndpointSet


class Readiness:
    """Determines the response of `/readyz`, and whether a new agent may take over a port."""

    def __init__(
        self,
        config: ActiveConfig,
        endpoints: EndpointSet,
        other_region_serves: Callable[[], bool],
        other_regions_probed: Callable[[], bool] = lambda: True,
        can_wake: Callable[[], bool] = lambda: False,
    ) -> None:
        """Determine the readiness of an agent that serves `endpoints` under the policy of `config`.

        Args:
            other_region_serves: returns whether requests can be forwarded to another region.
            other_regions_probed: returns whether the states of the other regions are known.
            can_wake: returns whether an endpoint sleeps, or is created, until a request needs its model.
        """
        self._other_regions_probed = other_regions_probed
        self._can_wake = can_wake
        self._config = config
        self._endpoints = endpoints
        self._other_region_serves = other_region_serves
        self.shutting_down = False
        """Set when the agent begins to shut down."""

    def not_ready_reason(self) -> str | None:
        """Return why this agent should receive no clients; None when it is ready. Ignores `shutting_down`.

        An agent without endpoints forwards the requests of its region's clients, and is ready while it can forward. An
        agent whose endpoints are all unready is not ready: a load balancer can send clients directly to another region.
        An agent whose endpoints sleep is ready, since only requests wake them. Burst endpoints make an agent ready only
        while no other region serves.
        """
        if self._config.policy is None:
            return self._config.no_policy_reason()
        if any(pool.ready for pool in self._endpoints.pools.values()) or self._can_wake():
            return None
        elsewhere = self._other_region_serves()
        if not elsewhere and any(pool.ready for pool in self._endpoints.burst_pools.values()):
            return None
        own = any(not endpoint.spec.burst for endpoint in self._endpoints.every())
        if own or not self._endpoints.sources.discovery.has_answered():
            return "no endpoint is ready"
        return None if elsewhere else "there is no endpoint, and no other region serves"

    def weight(self) -> float:
        """Return the part (0-1) of its usual clients that this region should attract: 0 while it is drained, below 1 on
        its failback ramp. Anycast announcements follow it."""
        plan, policy, pools = self._config.plan, self._config.policy, self._endpoints.pools
        if plan is None:
            return 1.0
        closed = {closed.model for closed in plan.closed if closed.region == plan.region}
        # A region without endpoints forwards the requests for any model.
        entered_for = pools.keys() if pools or policy is None else policy.models.keys()
        return 0.0 if closed and closed >= entered_for else plan.ramp

    def has_warmed_up(self) -> bool:
        """Whether the agent has a policy, and has probed every endpoint and other region at least once."""
        return (
            self._config.policy is not None
            and self._endpoints.sources.discovery.has_answered()
            and self._other_regions_probed()
            and not any(endpoint.health.state is EndpointState.NEW for endpoint in self._endpoints.every())
        )
