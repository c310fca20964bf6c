"""One agent's accounts of the endpoints of a pool: requests, reserved work, and speeds learned from completions.

The agent and the simulator keep these accounts with the same code. Every number that is added for a request is
subtracted when the request ends, so the accounts of an idle endpoint are zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container
from typing import Final, Generic, NamedTuple, TypeVar

from penstock.fleet.expected_wait import mean_with, pool_service_s
from penstock.health.outlier_ejection import EjectionRules, room_to_eject
from penstock.policy.kinds.models import Model
from penstock.pools.model_uses import ModelUses
from penstock.pools.speed_learning import SpeedLearner, speeds
from penstock.routing.endpoint_selection import Candidates, EndpointView

DEFAULT_SERVICE_S: Final = Model("").expected_service_s
"""Service time (s) assumed for a model that policy does not name."""


class Load(NamedTuple):
    """Requests and reserved work on one endpoint."""

    requests: int
    prefill_us: int
    """Reserved for prefill that has not ended, in microseconds."""
    decode_us: int
    """Reserved for decode, in microseconds."""


NO_LOAD: Final = Load(0, 0, 0)


class PoolTotals(ABC):
    """The totals of a pool that its endpoints read and update."""

    def __init__(self, service_s: float, rules: EjectionRules) -> None:
        """Create the totals of an empty pool.

        Args:
            service_s: mean service time (s) before any completion.
            rules: rules of outlier detection, which limit the number of ejected endpoints of the pool.
        """
        self.rules = rules
        self.size = 0
        """Endpoints of the pool."""
        self.ejected = 0
        """Endpoints that outlier detection has ejected, those on probation included."""
        self.panics = False
        """Whether the pool ignores ejections, because too few endpoints remain (Envoy's panic mode)."""
        self.in_flight = 0
        """Requests on the endpoints that may take requests, from all agents of the region."""
        self.service_s = service_s
        """Mean time (s) a request holds its slot."""
        self._is_measured = False
        """Whether a request of a ready endpoint has completed, so that `service_s` is measured."""

    def has_room_to_eject(self, itself: int = 0) -> bool:
        """Whether outlier detection may eject an endpoint of this pool; `itself` is 1 if that counts as ejected now."""
        return room_to_eject(self.ejected - itself, self.size, self.rules)

    @property
    def knows_service(self) -> bool:
        """Whether `service_s` is measured or stated by the policy; otherwise it is the default of all policies."""
        return self._is_measured or self.service_s != DEFAULT_SERVICE_S

    @abstractmethod
    def update_readiness(self) -> None:
        """Update which endpoints may take requests. Called after the health of an endpoint has changed."""

    @abstractmethod
    def recount(self) -> None:
        """Update the totals. Called after a change on one of the endpoints."""


class GroupAccount(PoolTotals):
    """The totals of a capacity group of several models. Its endpoints are in the pool of each of these models.

    Outlier detection counts the endpoints of pools, so a group neither limits nor overrides ejections.
    """

    def __init__(self, models: tuple[str, ...]) -> None:
        """Create an empty group.

        Args:
            models: the models that each of its endpoints serves, sorted.
        """
        super().__init__(DEFAULT_SERVICE_S, EjectionRules())
        self.models = models
        self.endpoints: list[EndpointAccount] = []
        self.ready = 0
        """Endpoints that may take a request."""
        self.slots = 0
        """Requests that the ready endpoints run at once, of all models together."""

    def has_room_to_eject(self, itself: int = 0) -> bool:
        """Always true, since groups do not limit ejections."""
        return True

    def update_readiness(self) -> None:
        """As `PoolTotals.update_readiness`."""
        self.recount()

    def recount(self) -> None:
        """As `PoolTotals.recount`."""
        ready = [endpoint.view for endpoint in self.endpoints if endpoint.view.ready and not endpoint.view.draining]
        self.ready = len(ready)
        self.slots = sum([view.slots for view in ready])
        self.in_flight = sum([view.in_flight for view in ready])


class EndpointAccount:
    """One endpoint's account at one agent. Endpoint selection reads its `view`."""

    def __init__(self, view: EndpointView, accelerator: str) -> None:
        """Create an account without requests.

        Args:
            accelerator: as the endpoints file names it; sets the speed assumed before completions.
        """
        self.name = view.name
        self.view = view
        self.remote_load = NO_LOAD
        """The load that the region's other agents report, faded with its age."""
        self.learner = SpeedLearner(accelerator)
        """The endpoint's speed, learned from completions."""
        self.service_s: float | None = None
        """Recent mean time (s) a request holds its slot; None before the first completion."""
        self.completions = 0
        self.releases = 0
        """Requests of this agent that have ended."""
        self.pools: tuple[PoolTotals, ...] = ()
        """The pools whose totals include this endpoint; the last is its capacity group, if it serves several models."""
        self.uses: ModelUses | None = None
        """The last use of each of its models; None if nothing depends on it."""

    @property
    def local_load(self) -> Load:
        """The load of this agent: the total in the view less that of the other agents."""
        view, remote = self.view, self.remote_load
        return Load(
            view.in_flight - remote.requests, view.prefill_us - remote.prefill_us, view.decode_us - remote.decode_us
        )

    def take(self, prefill_us: int = 0, decode_us: int = 0) -> None:
        """Count one more request of this agent, with its work at the endpoint's speed (microseconds)."""
        self._add(1, prefill_us, decode_us)

    def prefilled(self, prefill_us: int) -> None:
        """Release the prefill (microseconds) of one request."""
        self._add(0, -prefill_us, 0)

    def give_back(self, prefill_us: int = 0, decode_us: int = 0) -> None:
        """Count one request fewer, and release its remaining reservations (microseconds)."""
        self._add(-1, -prefill_us, -decode_us)
        self.releases += 1

    def set_remote_load(self, remote: Load) -> None:
        """Replace the load of the other agents."""
        before, self.remote_load = self.remote_load, remote
        self._add(
            remote.requests - before.requests,
            remote.prefill_us - before.prefill_us,
            remote.decode_us - before.decode_us,
        )

    def completed(self, service_s: float) -> None:
        """Count a request that ran to its end and held its slot for `service_s` seconds."""
        prior_s = self.service_s
        if prior_s is None:
            prior_s = self.pools[0].service_s if self.pools else DEFAULT_SERVICE_S
        self.service_s = mean_with(prior_s, self.completions, service_s)
        self.completions += 1
        self.view.completions = self.completions

    def set_slots(self, slots: int, queue: int) -> None:
        """Set the number of slots and the number of requests that may wait in the engine (`queue`)."""
        view = self.view
        if view.slots != slots or view.limit != slots + queue:
            view.slots, view.limit = slots, slots + queue
            view.update_score()
            for pool in self.pools:
                pool.recount()

    def _add(self, requests: int, prefill_us: int, decode_us: int) -> None:
        view = self.view
        view.in_flight += requests
        view.prefill_us += prefill_us
        view.decode_us += decode_us
        view.update_score()
        if requests and view.ready and not view.draining:
            for pool in self.pools:
                pool.in_flight += requests


Member = TypeVar("Member", bound=EndpointAccount)


class PoolAccount(PoolTotals, Generic[Member]):
    """The accounts of the endpoints that serve one model, and their totals, which are kept up to date."""

    def __init__(self, prior_s: float = DEFAULT_SERVICE_S, rules: EjectionRules | None = None) -> None:
        """Create an empty pool.

        Args:
            prior_s: mean service time (s) before any completion.
            rules: rules of outlier detection; None for the defaults.
        """
        super().__init__(prior_s, rules or EjectionRules())
        self.endpoints: list[Member] = []
        self.views: list[EndpointView] = []
        """The views of `endpoints`, in the same order."""
        self.positions: dict[str, int] = {}
        """Index in `endpoints` by endpoint name."""
        self.candidates = Candidates(self.views)
        """The views, and those in the agent's zone."""
        self.shares_endpoints = False
        """Whether some endpoints serve other models too."""
        self.prior_s = prior_s
        self.ready = 0
        """Endpoints that may take a request."""
        self.slots = 0
        """Requests that the ready endpoints run at once."""

    @property
    def has_room(self) -> bool:
        """Whether some endpoint may take one more request."""
        return any(view.takes_more for view in self.views)

    def load_without(self, names: Container[str]) -> tuple[int, int, float]:
        """Return slots, requests and mean service time (s) of the endpoints that may take a request, without those of
        these names."""
        ready = [each for each in self.endpoints if each.view.ready and not each.view.draining]
        able = [each for each in ready if each.name not in names]
        mean_s = self.service_s
        times = [(each.view.slots, mean_s if each.service_s is None else each.service_s) for each in able]
        in_flight = sum([each.view.in_flight for each in able])
        return sum([slots for slots, _ in times]), in_flight, pool_service_s(times, mean_s)

    def set_endpoints(self, endpoints: list[Member], near: frozenset[int] = frozenset()) -> None:
        """Replace the members. The caller calls `recount` afterwards.

        Args:
            near: indexes of the endpoints in the agent's zone; empty if all or none are.
        """
        self.endpoints = endpoints
        self.size = len(endpoints)
        self.views = [endpoint.view for endpoint in endpoints]
        self.candidates = Candidates(self.views, near)
        self.positions = {endpoint.name: index for index, endpoint in enumerate(endpoints)}

    def update_speeds(self) -> None:
        """Apply the speeds and service times learned from completions. Called a few times a second."""
        learned = speeds(endpoint.learner for endpoint in self.endpoints)
        for endpoint, speed in zip(self.endpoints, learned, strict=True):
            endpoint.view.speed = speed
            endpoint.view.service_s = endpoint.service_s if endpoint.service_s is not None else self.service_s
            endpoint.view.update_score()

    def update_readiness(self) -> None:
        """Update the totals; this class has no outlier detection."""
        self.recount()

    def recount(self) -> None:
        """As `PoolTotals.recount`."""
        ready = [endpoint for endpoint in self.endpoints if endpoint.view.ready and not endpoint.view.draining]
        self.ready = len(ready)
        self.slots = sum([endpoint.view.slots for endpoint in ready])
        self.in_flight = sum([endpoint.view.in_flight for endpoint in ready])
        known = [(endpoint.view.slots, endpoint.service_s) for endpoint in ready if endpoint.service_s is not None]
        self._is_measured = bool(known)
        self.service_s = pool_service_s(known, self.prior_s)
