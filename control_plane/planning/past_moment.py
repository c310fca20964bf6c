"""The policy, plan and region states of a past moment, as far as they are kept, to explain a logged request by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from control_plane.events.event_log import EventKind, EventLog, FleetEvent
from penstock.health.region_health import RegionState
from penstock.planning.plan import RegionPlan
from penstock.planning.plan_history import PlanHistory
from penstock.routing.region_selection import RegionView

NOT_KEPT = "spill credits, queue waits, failback ramps, fallbacks and endpoints of that moment are not kept"

_SERVES = frozenset({RegionState.HEALTHY, RegionState.DEGRADED, RegionState.RECOVERING})


class PlanThen(msgspec.Struct, frozen=True):
    """An origin's plan of a past moment, or the present one in its place."""

    plan: RegionPlan | None
    note: str
    """Whose plan it is, for operators."""


class KeptPast:
    """Plans and events of the past, as this control plane has them.

    Args:
        history: recent plans.
        log: recent events.
    """

    def __init__(self, history: PlanHistory, log: EventLog) -> None:
        self._history = history
        self._log = log

    def events(self) -> list[FleetEvent]:
        """Return the kept events, oldest first."""
        return self._log.read(self._log.oldest) or []

    def plan(self, origin: str, wanted: int | None, present: RegionPlan | None) -> PlanThen:
        """Return an origin's plan of a past moment; the present one, with a note, if the former is not kept.

        Args:
            wanted: generation of the plan; None for a request without a plan.
            present: the origin's plan of now.
        """
        if wanted is None:
            return PlanThen(present, "the record names no plan, so the plan of now is used")
        newest = next(reversed(self._history.steps.values()), None)
        if newest is not None and present is not None and newest.generation <= wanted <= present.generation:
            return PlanThen(_named(present, wanted), f"plan {wanted} has the shares of the plan of now")
        number = self._history.find(wanted)
        if number is None:
            return PlanThen(present, f"plan {wanted} is not kept, so the plan of now is used")
        return PlanThen(
            _named(self._history.plan(number).slices.get(origin), wanted), f"by plan {wanted} of that moment"
        )


def _named(plan: RegionPlan | None, generation: int) -> RegionPlan | None:
    """Return a plan by the generation that was asked for: only plans whose shares differ from the last are kept."""
    return None if plan is None else msgspec.structs.replace(plan, generation=generation)


def views_then(
    present: Mapping[str, RegionView],
    events: Iterable[FleetEvent],
    at: float,
    planned: Iterable[str],
    server: str | None,
) -> dict[str, RegionView]:
    """Return the view of each region at a past moment: its state by the events, and the models that it has now.

    Args:
        present: the views of now.
        events: the kept events, oldest first.
        at: Unix time (s) of the moment.
        planned: regions to which the plan sent requests for the model.
        server: region that served the request, which therefore could; None if unknown.
    """
    states: dict[str, str] = {}
    for event in events:
        if event.kind is not EventKind.REGION:
            continue
        region = event.data["region"]
        if event.at <= at:
            states[region] = event.data["after"]
        else:
            # The first change after the moment has the state before it.
            states.setdefault(region, event.data["before"])
    ready = {server, *planned}
    found = {}
    for region, view in present.items():
        state = RegionState(states.get(region, view.state))
        if state is RegionState.DRAINING or (region == server and state not in _SERVES):
            # Agents can reach a draining region; only the plan closes the region to them.
            state = RegionState.HEALTHY
        found[region] = RegionView(state, view.ready or region in ready)
    return found
