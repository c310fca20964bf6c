"""One request on one endpoint: its estimated cost, its reservation, and the measurements at its end.

The agent and the simulator reserve, release and measure with the same code.
"""

from __future__ import annotations

from math import inf
from typing import Final, Generic, TypeVar

from penstock.admission.work_counters import TenantCounter
from penstock.answers.token_counts import Usage
from penstock.cost.cost_estimate import actual_work
from penstock.cost.request_properties import CostInputs
from penstock.cost.work import Work
from penstock.health.progress import AwaitedResponse
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.pools.pool_accounting import EndpointAccount
from penstock.pools.speed_learning import MICROSECONDS, microseconds

_TOKEN: Final = CostUnit.TOKEN
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""

Member = TypeVar("Member", bound=EndpointAccount)


class WorkEstimate:
    """The estimated cost of one request, and the cache keys that it shares with earlier requests."""

    def __init__(self, tenant: str, model: str, cost: Cost, ask: CostInputs, work: Work, streaming: bool) -> None:
        """Create an estimate without cache keys.

        Args:
            ask: the properties of the request that determine its cost.
            work: the cost, estimated from `ask`.
            streaming: the response is sent as it is generated.
        """
        self.tenant = tenant
        self.model = model
        self.adapter = ""
        """The adapter of the model that the request names; empty for the model itself."""
        self.cost = cost
        self.ask = ask
        self.streaming = streaming
        self.work = work
        self.prefix: list[int] = []
        """Keys of the leading blocks of the prompt."""
        self.session: int | None = None
        """Key of the conversation; None without a session name."""


class Reservation(Generic[Member]):
    """One request's slot and work on an endpoint, each of which is released exactly once."""

    def __init__(self, endpoint: Member, prefill_us: int = 0, decode_us: int = 0) -> None:
        """Create a reservation of work at the endpoint's speed (microseconds); the reservation counts after `take`."""
        self.endpoint = endpoint
        self.prefill_us = prefill_us
        """The remaining reservation for prefill."""
        self.decode_us = decode_us
        self.released = False

    def take(self) -> None:
        """Count the request on its endpoint. Called once."""
        self.endpoint.take(self.prefill_us, self.decode_us)

    def end_prefill(self) -> bool:
        """Release the reservation for prefill; False if there is none."""
        if not self.prefill_us or self.released:
            return False
        prefill_us, self.prefill_us = self.prefill_us, 0
        self.endpoint.prefilled(prefill_us)
        return True

    def release(self) -> bool:
        """Release the remaining reservation; False if it was released before."""
        if self.released:
            return False
        self.released = True
        self.endpoint.give_back(self.prefill_us, self.decode_us)
        return True


class Placement(Reservation[Member]):
    """A reservation for a chosen endpoint, with the times from which the endpoint's speed is learned."""

    def __init__(self, endpoint: Member, estimate: WorkEstimate, spared_s: float, now: float) -> None:
        """Create the placement of a request.

        Args:
            spared_s: prefill (s, reference) that the endpoint's cache spares.
            now: monotonic, in seconds.
        """
        view = endpoint.view
        speed, streams = view.speed, view.in_flight + 1
        prefill_us, decode_us = microseconds(estimate.work, speed, streams, spared_s)
        super().__init__(endpoint, prefill_us, decode_us)
        prefill_s = (view.prefill_us + prefill_us) / MICROSECONDS
        start_s, ahead_s = 0.0, 0.0
        if speed is not None:
            start_s = speed.start_s
            if prefill_us:
                ahead_s = prefill_s / speed.prefill
        self.estimate = estimate
        self.spared_s = spared_s
        """Prefill (s, reference) that the endpoint's cache spares."""
        self.counter: TenantCounter | None = None
        """Counts the work of the tenant, from the start of the request; None before and after."""
        self.charged_s = 0.0
        """Work (s, reference) for which the tenant is charged while the request runs."""
        self.since = now
        """Time (s) of creation."""
        self.streams = streams
        """Number of requests on the endpoint at creation, this request included."""
        self.queued = streams > view.slots
        """Whether the endpoint had no free slot at creation."""
        self.ahead_s = ahead_s
        """Prefill (s, reference) ahead of the first byte, the request's own included; 0 if the speed is unknown."""
        self.prefill_over_at = now + start_s + prefill_s
        """Time (s) at which the request's prefill is expected to end."""
        self.first_byte_at: float | None = None
        """Time (s) of the first byte of a streamed response."""

    def take(self) -> None:
        """Count the request on its endpoint. Called once."""
        super().take()
        uses = self.endpoint.uses
        if uses is not None:
            uses.begun(self.estimate.model)

    def release(self) -> bool:
        """Release the remaining reservation; False if it was released before."""
        released = super().release()
        uses = self.endpoint.uses
        if released and uses is not None:
            uses.ended(self.estimate.model)
        return released

    def end_charge(self, now: float, service_s: float | None, usage: Usage | None) -> None:
        """Replace the estimate for which the tenant is charged by the work that the request used.

        That is the work of the tokens that the engine reports, or the time on an endpoint that runs one request at a
        time. A request without a complete response used at most the time since it was sent.

        Args:
            now: monotonic, in seconds.
            service_s: service time (s) of a complete response; None for any other outcome.
            usage: the usage that the engine reported for the whole response; None without a report.
        """
        counter, used_s = self.counter, self.charged_s
        if counter is None:
            return
        self.counter = None
        if service_s is None:
            used_s = min(used_s, max(0.0, now - self.since))
        elif self.estimate.cost.unit is _TOKEN:
            if usage is not None:
                work = actual_work(self.estimate.cost, usage)
                used_s = work.prefill_s + work.decode_s
        elif self.endpoint.view.slots == 1:
            used_s = service_s
        shared_since = counter.counters.shared_since
        if self.since < shared_since < now:
            # A tenant that joined meanwhile began at the estimate: the difference for the time before is not its loss.
            used_s = self.charged_s + (used_s - self.charged_s) * (now - shared_since) / (now - self.since)
        counter.end(self.charged_s, used_s)

    def waive_charge(self) -> None:
        """Charge the tenant for nothing: the request was ended for another one."""
        counter, self.counter = self.counter, None
        if counter is not None:
            counter.end(self.charged_s, 0.0)

    def first_byte(self, now: float) -> bool:
        """Record the first byte of the response at `now` (s); returns whether it ends the prefill.

        The first byte of a response that is not streamed arrives at its end and does not indicate the end of prefill.
        """
        if self.first_byte_at is not None or not self.estimate.streaming:
            return False
        self.first_byte_at = now
        return True

    def prefill_is_due(self, now: float) -> bool:
        """Whether the prefill of a response that is not streamed should have ended by `now` (s)."""
        return now >= self.prefill_over_at and not self.estimate.streaming

    def expected_first_byte_s(self) -> float:
        """Expected time (s) to the first byte, which a response that is not streamed sends at its end."""
        expected_s = self.prefill_over_at - self.since
        if not self.estimate.streaming:
            expected_s += self.decode_us / MICROSECONDS
        if self.queued:
            view = self.endpoint.view
            expected_s += view.service_s * self.streams / view.slots
        return expected_s

    def output_by(self, now: float) -> float:
        """Tokens that an answer that is not streamed should have by `now` (s); 0 if the speed is not learned yet."""
        decode_s = self.decode_us / MICROSECONDS
        if self.estimate.streaming or not decode_s or not self.is_text or self.endpoint.learner.learned is None:
            return 0.0
        began_at = self.since + self.expected_first_byte_s() - decode_s
        return (now - began_at) / decode_s * self.estimate.work.decode_s / self.estimate.cost.output_unit_s

    @property
    def uncached_s(self) -> float:
        """Prefill (s, reference) that the endpoint's cache does not spare."""
        return max(0.0, self.estimate.work.prefill_s - self.spared_s)

    @property
    def is_text(self) -> bool:
        """Whether the cost of the request is counted in tokens."""
        return self.estimate.cost.unit is _TOKEN

    def awaited(self) -> AwaitedResponse:
        """The request as one that waits for its first byte."""
        estimate, expected_s = self.estimate, self.expected_first_byte_s()
        ask, longest_s = estimate.ask, 0.0
        if not self.is_text:
            longest_s = 0.0 if estimate.streaming else inf
        elif (ask.offers_tools or not estimate.streaming) and ask.answers:
            longest_s = inf
            if ask.max_tokens is not None:
                most_s = estimate.cost.output_unit_s * ask.max_tokens * ask.count
                whole_s = expected_s + (self.decode_us / MICROSECONDS if estimate.streaming else 0.0)
                longest_s = whole_s * max(1.0, most_s / max(estimate.work.decode_s, 1e-9))
        uncached_s, streams = self.uncached_s, self.streams
        return AwaitedResponse(self.since, expected_s, estimate.streaming, uncached_s, longest_s, streams, self.is_text)

    def mean_streams(self) -> float:
        """Mean of the numbers of requests on the endpoint at creation and now, this request included in both."""
        now = self.endpoint.view.in_flight
        if self.released:
            now += 1
        return (self.streams + now) / 2
