"""Sets the gauges from the agent's current state just before a scrape, and removes series of removed objects."""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import inf

from penstock.health.outlier_ejection import EjectionState
from penstock.pools.slowdown import slowdowns
from regional_agent.ledger.request_ledger import RequestLedger
from regional_agent.shared_load.shared_load import SharedLoad
from regional_agent.telemetry.agent_metrics import AgentMetrics
from regional_agent.telemetry.agent_state import AgentState


class StateMetrics:
    """Exports the agent's state as gauges."""

    def __init__(
        self, metrics: AgentMetrics, state: AgentState, shared_load: SharedLoad, ledger: RequestLedger | None = None
    ) -> None:
        """Create an exporter of `state`; the gauges are set by `update`."""
        self._metrics = metrics
        self._state = state
        self._shared_load = shared_load
        self._ledger = ledger
        self._exported_endpoints: set[str] = set()
        self._exported_peers: set[str] = set()

    def update(self, in_flight: Mapping[str, int]) -> None:
        """Set every gauge to the current state.

        Args:
            in_flight: requests in progress in this agent, by model.
        """
        plan = self._state.config.plan
        self._metrics.set_config(plan.epoch if plan else 0, plan.generation if plan else 0, self._state.config.age_s())
        view = self._shared_load
        self._metrics.set_shared_load(view.up, view.age_s() if view.shared else inf)
        self._metrics.set_rejected_files(self._state.file_problems())
        self._metrics.set_directories(self._state.endpoints.sources.discovery.ages_s())
        for model in self._state.endpoints.pools:
            self._metrics.set_in_flight(model, in_flight.get(model, 0), self._state.queue.waiting_here(model))
        self._metrics.set_objectives(self._state.tally.objectives)
        if self._ledger is not None:
            self._metrics.ledger.update(self._ledger)
        if self._state.budgets is not None:
            self._metrics.budgets.update(self._state.budgets, time.monotonic())
        self._update_endpoints()
        self._update_peers()

    def _update_endpoints(self) -> None:
        # An endpoint whose address changed is listed twice until requests to the old address end. The new address is
        # listed first, so the order is reversed to keep the new address.
        every = {endpoint.name: endpoint for endpoint in reversed(list(self._state.endpoints.every()))}
        places = self._metrics.endpoints.places
        places.update(self._state.endpoints.every())
        endpoints = {name: endpoint for name, endpoint in every.items() if name in places.named}
        for gone in self._exported_endpoints - endpoints.keys():
            self._metrics.endpoints.remove(gone)
        for name, endpoint in endpoints.items():
            self._metrics.endpoints.set_load(name, endpoint.view.in_flight, endpoint.view.ready, endpoint.view.draining)
            self._metrics.endpoints.set_ejection(
                name,
                endpoint.view.weight,
                ejected=endpoint.ejection.is_ejected,
                suspect=endpoint.ejection.state is EjectionState.SUSPECT,
            )
            self._metrics.endpoints.set_speed(name, endpoint.view.slots, endpoint.learner.learned)
            values = {signal: reading.value for signal, reading in endpoint.readings.items()}
            heard_at = max((reading.received_at for reading in endpoint.readings.values()), default=-inf)
            self._metrics.endpoints.set_signals(name, values, endpoint.now() - heard_at)
            if (events := endpoint.kv_events) is None:
                self._metrics.endpoints.remove_kv_events(name)
            else:
                self._metrics.endpoints.set_kv_events(
                    name,
                    current=events.current,
                    blocks=len(events.log.blocks),
                    batches=events.log.batches,
                    gaps=events.log.gaps,
                )
        siblings = slowdowns((each, (each.models, each.spec.accelerator)) for each in every.values())
        self._metrics.endpoints.set_slowdowns({name: siblings[name] for name in endpoints if name in siblings})
        gpus = {name: endpoint.reported.gpus for name, endpoint in endpoints.items()}
        self._metrics.endpoints.set_gpus({name: state for name, state in gpus.items() if state is not None})
        reported = {name: endpoint.reported.skews for name, endpoint in endpoints.items()}
        skews = {name: {skew.against for skew in found.values()} for name, found in reported.items() if found}
        self._metrics.endpoints.set_skews(skews)
        self._exported_endpoints = set(endpoints)

    def _update_peers(self) -> None:
        regions = self._state.peers.regions
        for gone in self._exported_peers - regions.keys():
            self._metrics.remove_peer(gone)
        for name, peer in regions.items():
            self._metrics.set_peer(name, peer.health.state, peer.rtt_s)
        self._exported_peers = set(regions)
