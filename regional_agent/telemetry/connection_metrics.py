"""The Prometheus metrics of connections: from clients, and to engines, peer agents and control planes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry

from regional_agent.http.connection_counts import ConnectionCounts
from regional_agent.telemetry.metric_primitives import counter_family, gauge_family
from regional_agent.upstream.upstream_pool import UpstreamPool


class ConnectionMetrics:
    """Connections, read from their owners at a scrape.

    Args:
        registry: where the metrics are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.pools: Mapping[str, UpstreamPool] = {}
        """The connection pools by their kind of target."""
        self.listeners: Mapping[str, ConnectionCounts] = {}
        """The counts of the listeners, by name."""
        registry.register(
            gauge_family(
                "penstock_agent_upstream_connections",
                "Connections to servers, by the kind of target and their state: idle ones wait for a request, and"
                " requests wait for those that are connecting.",
                ("pool", "state"),
                self._open_and_idle,
            )
        )
        self._count(
            registry, "upstream_connections_opened", "Connections that were opened.", lambda pool: pool.counts.opened
        )
        self._count(
            registry,
            "upstream_connections_failed",
            "Connections that could not be opened.",
            lambda pool: pool.counts.failed,
        )
        self._count(
            registry,
            "upstream_connections_reused",
            "Requests that were sent on a connection that was idle.",
            lambda pool: pool.counts.reused,
        )
        registry.register(
            gauge_family(
                "penstock_agent_client_connections",
                "Open connections of a listener, without those in the TLS handshake.",
                ("listener",),
                lambda: [((name,), counts.connections) for name, counts in self.listeners.items()],
            )
        )
        registry.register(
            counter_family(
                "penstock_agent_client_connections_accepted",
                "Connections that a listener accepted.",
                ("listener",),
                lambda: [((name,), counts.accepted) for name, counts in self.listeners.items()],
            )
        )
        registry.register(
            counter_family(
                "penstock_agent_client_connections_refused",
                "Connections that a listener closed above its limits, by limit: total, address, prefix, connection_rate"
                " or request_rate.",
                ("listener", "limit"),
                lambda: [
                    ((name, limit), count)
                    for name, counts in self.listeners.items()
                    for limit, count in counts.refused.items()
                ],
            )
        )

    def _open_and_idle(self) -> Iterator[tuple[tuple[str, ...], float]]:
        for name, pool in self.pools.items():
            idle = pool.idle
            yield (name, "idle"), idle
            yield (name, "connecting"), pool.counts.connecting
            yield (name, "active"), max(0, pool.counts.opened - pool.counts.closed - idle)

    def _count(
        self, registry: CollectorRegistry, name: str, help_text: str, read: Callable[[UpstreamPool], int]
    ) -> None:
        registry.register(
            counter_family(
                f"penstock_agent_{name}",
                help_text,
                ("pool",),
                lambda: [((pool,), read(connections)) for pool, connections in self.pools.items()],
            )
        )
