"""The distances between all regions of a policy as a matrix, computed once per policy version."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from penstock.planning.linear_program.arrays import Floats
from penstock.policy.geography import EARTH_RADIUS_KM, FIBRE_KM_PER_MS, PATH_STRETCH, lifted_ms
from penstock.policy.policy import Policy

MAX_SUBSETS = 200_000
"""Maximum number of cached results of `nearest_first`; the cache is emptied when it is full."""


class Distances:
    """Distances between all regions of a policy, with the results of `Policy.distance_ms` and `Policy.nearest_first`.

    Args:
        policy: the policy version; another version needs other distances.
    """

    def __init__(self, policy: Policy) -> None:
        self.names = tuple(sorted(policy.regions))
        self.index = {name: at for at, name in enumerate(self.names)}
        self.apart_ms = _distances_ms(policy, self.names)
        """Distances by (origin, server), in milliseconds."""
        order = np.argsort(self.apart_ms, axis=1, kind="stable")
        self._order = [[self.names[at] for at in row] for row in order.tolist()]
        self._subsets: dict[tuple[str, frozenset[str]], tuple[str, ...]] = {}

    def deviations_ms(self, policy: Policy, measured_ms: Mapping[tuple[str, str], float]) -> Floats:
        """Deviations (ms) of measured round trips from those of the policy by (origin, server); 0 where none is
        measured, and for an origin whose spillover order decides."""
        found = np.zeros_like(self.apart_ms)
        for (origin, server), ms in measured_ms.items():
            if origin in self.index and server in self.index and origin not in policy.spillover_orders:
                found[self.index[origin], self.index[server]] = ms - policy.round_trip_ms(origin, server)
        return found

    def nearest_first(self, origin: str, regions: frozenset[str]) -> tuple[str, ...]:
        """`regions` by distance from `origin`, then by name."""
        key = (origin, regions)
        found = self._subsets.get(key)
        if found is None:
            if len(self._subsets) >= MAX_SUBSETS:
                self._subsets.clear()
            found = tuple(name for name in self._order[self.index[origin]] if name in regions)
            self._subsets[key] = found
        return found


def _distances_ms(policy: Policy, names: tuple[str, ...]) -> Floats:
    """The haversine of `penstock.policy.geography` over arrays, with measured round trips where they exist."""
    latitude = np.radians([policy.regions[name].latitude_deg for name in names])
    longitude = np.radians([policy.regions[name].longitude_deg for name in names])
    half_chord_sq = (
        np.sin((latitude[None, :] - latitude[:, None]) / 2) ** 2
        + np.cos(latitude[:, None])
        * np.cos(latitude[None, :])
        * np.sin((longitude[None, :] - longitude[:, None]) / 2) ** 2
    )
    km = 2 * EARTH_RADIUS_KM * np.arcsin(np.minimum(1.0, np.sqrt(half_chord_sq)))
    apart_ms: Floats = 1.0 + 2 * km * PATH_STRETCH / FIBRE_KM_PER_MS
    np.fill_diagonal(apart_ms, 0.0)
    index = {name: at for at, name in enumerate(names)}
    for origin, row in policy.rtt_ms.items():
        if origin not in index:
            continue
        known = [(index[server], ms) for server, ms in row.items() if server in index]
        if known:
            columns, measured = zip(*known, strict=True)
            apart_ms[index[origin], list(columns)] = measured
    apart_ms += np.array([policy.bias_ms.get(name, 0.0) for name in names])[None, :]
    for origin, order in policy.spillover_orders.items():
        if origin in index:
            row_ms = apart_ms[index[origin]]
            lifted = lifted_ms(dict(zip(names, row_ms.tolist(), strict=True)), origin, order)
            row_ms[:] = [lifted[name] for name in names]
    return apart_ms
