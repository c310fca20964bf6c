"""Which endpoints have metric series of their own: a bounded number; all others share the label `other`."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.meters.endpoint_traffic import EndpointTraffic
from regional_agent.endpoints.endpoint import Endpoint

MAX_ENDPOINT_SERIES = 100
"""Default number of endpoints with series of their own."""


class EndpointSeries:
    """The endpoints with series of their own.

    An endpoint keeps its series while it exists, because a counter that moves to another label appears as a restart.
    Series that become free go to the endpoints with the most completed requests.
    """

    def __init__(self, max_endpoints: int = MAX_ENDPOINT_SERIES) -> None:
        """`max_endpoints` is the number of endpoints with series of their own."""
        self._max_endpoints = max_endpoints
        self.named: dict[str, EndpointTraffic] = {}
        """Traffic by endpoint name, of the endpoints with series of their own."""
        self.other = EndpointTraffic()
        """Traffic of all other endpoints."""
        self.without_series = 0
        """Number of the other endpoints."""

    def update(self, endpoints: Iterable[Endpoint]) -> None:
        """Assign the series to the endpoints that exist now.

        Args:
            endpoints: every endpoint; an address that is being replaced is listed beside its successor of the same
                name, and both share the series.
        """
        existing = list(endpoints)
        names = {endpoint.name for endpoint in existing}
        for gone in self.named.keys() - names:
            del self.named[gone]
        waiting = sorted(
            (endpoint for endpoint in existing if endpoint.name not in self.named),
            key=lambda endpoint: (-endpoint.completions, endpoint.name),
        )
        for endpoint in waiting:
            if len(self.named) >= self._max_endpoints:
                break
            self.named.setdefault(endpoint.name, EndpointTraffic())
        for endpoint in existing:
            series = self.named.get(endpoint.name, self.other)
            if endpoint.traffic is series:
                continue
            if endpoint.traffic is not self.other:
                series.add(endpoint.traffic)
            endpoint.traffic = series
        self.without_series = len(names) - len(self.named)
