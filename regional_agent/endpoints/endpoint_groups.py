"""The capacity groups of the region: a partition of its endpoints by the models that they serve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.fleet.capacity_groups import coupled_models, group_reports
from penstock.fleet.report import GroupReport
from penstock.pools.pool_accounting import GroupAccount
from penstock.routing.spill_credits import GroupLoad
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.endpoints.endpoint_pool import EndpointPool


class EndpointGroups:
    """The capacity groups of several models. An endpoint that serves one model belongs to a pool, but to no group."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, ...], GroupAccount] = {}
        self._coupled: dict[str, tuple[str, ...]] = {}

    def fill(self, endpoints: Iterable[Endpoint]) -> None:
        """Divide endpoints into groups, and add each group to the pools of its endpoints. `recount` must follow."""
        groups: dict[tuple[str, ...], GroupAccount] = {}
        for endpoint in endpoints:
            if len(endpoint.models) > 1:
                models = tuple(sorted(endpoint.models))
                group = groups.setdefault(models, GroupAccount(models))
                group.endpoints.append(endpoint)
                endpoint.pools = (*endpoint.pools, group)
        self._groups, self._coupled = groups, coupled_models(groups)

    def recount(self) -> None:
        """Update the totals of all groups."""
        for group in self._groups.values():
            group.recount()

    def coupled(self, model: str) -> tuple[str, ...]:
        """Return `model` and all models whose free slots depend on its load; empty if it shares no endpoint."""
        return self._coupled.get(model, ())

    def loads(self, models: Iterable[str], pools: Mapping[str, EndpointPool]) -> list[GroupLoad]:
        """Return the load of every capacity group of these models, groups of a single model included.

        Args:
            models: models as returned by `coupled`.
            pools: every pool, by model.
        """
        known = set(models)
        shared = [group for group in self._groups.values() if known.issuperset(group.models)]
        loads = [GroupLoad(group.models, group.in_flight, group.slots) for group in shared]
        for model in sorted(known):
            pool, parts = pools[model], [group for group in shared if model in group.models]
            loads.append(
                GroupLoad(
                    (model,),
                    pool.in_flight - sum(group.in_flight for group in parts),
                    pool.slots - sum(group.slots for group in parts),
                )
            )
        return loads

    def report(self) -> tuple[GroupReport, ...]:
        """Return the groups for the report of the agent."""
        return group_reports(
            GroupReport(group.models, len(group.endpoints), group.ready, group.slots, group.in_flight)
            for group in self._groups.values()
        )
