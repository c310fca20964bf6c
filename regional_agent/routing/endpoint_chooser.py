"""Selects and reserves the endpoint of a request, and learns from its outcome."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING, Final

from penstock.health.outlier_ejection import Outcome
from penstock.policy.policy import CostUnit, Model
from penstock.routing.affinity import BLOCK_BYTES, KEEPS_UNDER, MODEL_GAP_S, NOTHING, Held, Holdings, session_key
from penstock.routing.cost_estimate import Expectations, worked
from penstock.routing.endpoint_choice import Considered
from penstock.routing.endpoint_selection import NOTHING_HELD, choose_endpoint, consider
from penstock.routing.reasons import Reason
from penstock.routing.speed_learning import MICROSECONDS, microseconds
from penstock.routing.usage import TAIL_BYTES, Usage, read_usage
from penstock.routing.work import CostInputs
from regional_agent.routing.reservation import Reservation
from regional_agent.routing.work_estimate import WorkEstimate

if TYPE_CHECKING:
    from regional_agent.endpoints.endpoint import Endpoint
    from regional_agent.endpoints.endpoint_pool import EndpointPool
    from regional_agent.endpoints.endpoint_set import EndpointSet
    from regional_agent.shared_load.shared_load import SharedLoad


_TOKEN: Final = CostUnit.TOKEN
"""In Python 3.11, to read a member off its class is a function call."""


class Placement(Reservation):
    """One attempt at a request on an engine of this region: what is reserved for it, and what was ahead of it."""

    __slots__ = (
        "address",
        "ahead_s",
        "estimate",
        "first_byte_at",
        "kind",
        "outcome",
        "prefill_over_at",
        "queued",
        "region",
        "since",
        "streams",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        estimate: WorkEstimate,
        prefill_us: int,
        decode_us: int,
        since: float,
        streams: int,
        ahead_s: float,
        prefill_over_at: float,
    ) -> None:
        """Made by `EndpointChooser.choose`."""
        self.endpoint = endpoint
        self.address = endpoint.address
        self.prefill_us = prefill_us
        self.decode_us = decode_us
        self.released = False
        self.estimate = estimate
        self.since = since
        """When it was reserved, in seconds."""
        self.streams = streams
        """Requests on the endpoint then, itself included."""
        self.queued = streams > endpoint.view.slots
        """The endpoint had no slot free."""
        self.ahead_s = ahead_s
        """Prefill (s, reference) that it waits for, its own included."""
        self.prefill_over_at = prefill_over_at
        """When its prefill should be over, by the agent's clock (s)."""
        self.first_byte_at: float | None = None
        self.outcome: Outcome | None = None
        """What the attempt says of the endpoint, as soon as something does."""
        self.region = ""
        """This one, and `kind` is why: both set by the road."""
        self.kind = ""


class EndpointChooser:
    """What an agent remembers and does to choose well."""

    def __init__(self, endpoints: EndpointSet, shared_load: SharedLoad, rng: Random) -> None:
        """Remembers nothing yet."""
        self.expectations = Expectations()
        self._endpoints = endpoints
        self._shared_load = shared_load
        self._rng = rng
        self._holdings = Holdings()

    def choose(self, estimate: WorkEstimate, tried: Container[str], now: float) -> Placement | Reason:
        """An endpoint of this region with a reservation on it, or why there is none."""
        pool = self._endpoints.pool(estimate.model)
        remembers = pool.shares_endpoints or estimate.session is not None or len(estimate.prefix) > 0
        held, gap_s = NOTHING_HELD, 0.0
        if remembers:
            held, gap_s = self._held(pool, estimate, self._holdings.held(estimate.prefix, estimate.session, now), now)
        who = choose_endpoint(
            pool.views,
            self._rng,
            work=estimate.work,
            tried=tried,
            held=held,
            held_gap_s=gap_s,
            same_zone=pool.near,
            view_age_s=self._shared_load.age_s(),
            service_s=pool.service_s,
        )
        if who.index is None:
            full = any(one.reason is Reason.ENDPOINT_FULL for one in who.rejected)
            return Reason.SATURATED if full else Reason.MODEL_NOT_READY
        endpoint = pool.endpoints[who.index]
        if remembers:
            self._holdings.sent(endpoint.name, estimate.prefix, estimate.session, estimate.model, now)
        return self._reserve(endpoint, estimate, held.get(who.index, 0.0) if held else 0.0, now)

    def consider(self, model: Model, tenant: str, session: str, now: float) -> tuple[Considered, ...]:
        """What `choose` would compare for a request of usual size; nothing is reserved or remembered.

        Args:
            session: the conversation that it names; empty where it names none.
        """
        ask = CostInputs(0)
        work = self.expectations.guess(model.cost, tenant, model.name, ask)
        estimate = WorkEstimate(tenant, model.name, model.cost, ask, work, streaming=False)
        estimate.session = session_key(f"{tenant}/{model.name}", session.encode()) if session else None
        pool = self._endpoints.pool(model.name)
        held, _ = self._held(pool, estimate, self._holdings.held(estimate.prefix, estimate.session, now), now)
        return consider(pool.views, estimate.work, held=held, same_zone=pool.near)

    def first_byte(self, placement: Placement, now: float) -> None:
        """An answer has begun: where it comes as it is made, its prefill is over. A whole one is over at once."""
        if placement.first_byte_at is not None or not placement.estimate.streaming:
            return
        placement.first_byte_at = now
        self._shared_load.prefilled(placement)
        learner = placement.endpoint.learner
        if placement.ahead_s > 0.0 and not placement.queued and learner.wants_first_byte(now):
            learner.saw_first_byte(placement.ahead_s, now - placement.since, now)

    def check_prefill_done(self, placement: Placement, now: float) -> None:
        """Time has passed without an answer: one that comes whole says nothing of when its prefill was over."""
        if now >= placement.prefill_over_at and not placement.estimate.streaming:
            self._shared_load.prefilled(placement)

    def ended(self, placement: Placement, now: float, tail: Iterable[bytes]) -> None:
        """The answer is whole and good: learn how long it was and how long it took.

        Args:
            tail: its last bytes, in parts, where engines say what it took.
        """
        estimate, endpoint = placement.estimate, placement.endpoint
        length_wanted = estimate.cost.unit is _TOKEN and self.expectations.wants(estimate.tenant, estimate.model, now)
        speed_wanted = not placement.queued and endpoint.learner.wants(now)
        if not length_wanted and not speed_wanted:
            return
        usage = read_usage(b"".join(tail)[-TAIL_BYTES:]) if estimate.cost.unit is _TOKEN else None
        if usage is not None and length_wanted:
            self.expectations.saw(estimate.tenant, estimate.model, estimate.ask, usage, now)
        if not speed_wanted:
            return
        begun_at = placement.first_byte_at if estimate.streaming else min(now, placement.prefill_over_at)
        if begun_at is not None:
            streams = (placement.streams + endpoint.view.in_flight) / 2
            endpoint.learner.saw_end(_decode_s(estimate, usage), now - begun_at, streams, now)

    def _held(
        self, pool: EndpointPool, estimate: WorkEstimate, known: Held, now: float
    ) -> tuple[Mapping[int, float], float]:
        """Positions of endpoints that hold something of a request, with the prefill (s) that it spares there."""
        if known is not NOTHING:
            per_block_s = BLOCK_BYTES * self.expectations.tokens_per_byte(estimate.model) * estimate.cost.input_unit_s
            held = {
                at: blocks * per_block_s
                for name, blocks in known.blocks.items()
                if (at := pool.positions.get(name)) is not None and pool.views[at].pressure < KEEPS_UNDER
            }
            return held, known.gap_s
        if not pool.shares_endpoints:
            return NOTHING_HELD, 0.0
        running = self._holdings.running(estimate.model, now)
        at_positions = [at for name in running if (at := pool.positions.get(name)) is not None]
        return {at: 0.0 for at in at_positions if pool.views[at].pressure < KEEPS_UNDER}, MODEL_GAP_S

    def _reserve(self, endpoint: Endpoint, estimate: WorkEstimate, spared_s: float, now: float) -> Placement:
        view = endpoint.view
        speed, streams = view.speed, view.in_flight + 1
        prefill_us, decode_us = microseconds(estimate.work, speed, streams, spared_s)
        until_s = (view.prefill_us + prefill_us) / MICROSECONDS
        start_s, ahead_s = 0.0, 0.0
        if speed is not None:
            start_s, ahead_s = speed.start_s, until_s / speed.prefill if prefill_us else 0.0
        over_at = now + start_s + until_s
        placement = Placement(endpoint, estimate, prefill_us, decode_us, now, streams, ahead_s, over_at)
        return self._shared_load.reserve(placement)


def _decode_s(estimate: WorkEstimate, usage: Usage | None) -> float:
    """The decode (s, reference) that a request turned out to be, or as it was guessed."""
    return worked(estimate.cost, usage).decode_s if usage is not None else estimate.work.decode_s
