"""Whether load balancers should send clients to this agent, and why not."""

from __future__ import annotations

from penstock.health.endpoint_health import EndpointState
from regional_agent.config.active_config import ActiveConfig
from regional_agent.endpoints.endpoint_set import EndpointSet


class Readiness:
    """Answers `/readyz`, and whether a new agent may take over a port."""

    def __init__(self, config: ActiveConfig, endpoints: EndpointSet) -> None:
        """Create the readiness of an agent that serves `endpoints` under the policy of `config`."""
        self._config = config
        self._endpoints = endpoints
        self.shutting_down = False
        """Set when the agent begins to shut down."""

    def not_ready_reason(self) -> str | None:
        """Why this agent should receive no clients; None when it is ready. Ignores `shutting_down`."""
        if self._config.policy is None:
            return self._config.no_policy_reason()
        if not any(pool.ready for pool in self._endpoints.pools.values()):
            return "no endpoint is ready"
        return None

    def has_warmed_up(self) -> bool:
        """Whether the agent has a policy and has discovered and probed every endpoint at least once."""
        return (
            self._config.policy is not None
            and self._endpoints.sources.discovery.has_answered()
            and not any(endpoint.health.state is EndpointState.NEW for endpoint in self._endpoints.every())
        )
