"""Writes the records of the ledger: a start when a request is sent to a target, and what it used at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from penstock.accounts.account import Account
from penstock.cost.gpu_time import gpu_time_s
from penstock.fleet.report import LedgerReport
from penstock.ledger.capacity_meter import GpuTime
from penstock.ledger.ledger_record import LedgerRecord, RecordKind
from penstock.ledger.prices import PriceList, cost_units
from penstock.meters.objective_tally import Judgement
from penstock.policy.gpu_price import STEP_S, gpu_price
from penstock.policy.policy import SECONDS_PER_HOUR, Policy
from penstock.pools.burst import NOT_USED
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.ledger.held_files import HeldFiles, HeldRecords
from regional_agent.ledger.spool import Spool
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt, LocalAttempt

DIGEST_CHARACTERS: Final = 12
"""Characters of a policy's digest in records."""

_REQUEST: Final = int(RecordKind.REQUEST)
_SERVED: Final = int(RecordKind.SERVED)
_LOST_ATTEMPT: Final = int(RecordKind.LOST_ATTEMPT)
_NOT_COUNTED: Final[Judgement] = ("", False)
_CAPACITY: Final = int(RecordKind.CAPACITY)
_COPY: Final = int(RecordKind.COPY)
_START: Final = int(RecordKind.START)

log = structlog.get_logger()


class RequestLedger:
    """The ledger of one agent. It is off while the policy has no usage store."""

    def __init__(
        self,
        agent: AgentInstance,
        folder: Path,
        max_bytes: int,
        *,
        refuses_when_full: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Create a ledger that is off.

        Args:
            folder: of the spool.
            max_bytes: maximum size of the spool.
            refuses_when_full: whether requests are refused while the spool has no room for their records.
        """
        self._region = agent.region
        self._agent = agent.name
        self.spool = Spool(folder, agent, max_bytes, self._open_starts)
        self._is_on = False
        self._refuses_when_full = refuses_when_full
        self._clock = clock
        self._wall_clock = wall_clock
        self._now_ms = int(wall_clock() * 1000.0)
        """Unix time (ms) of the last tick, which costs less than the time of each request."""
        self._encode = msgspec.msgpack.Encoder().encode
        self._policy: Policy | None = None
        self._prices: PriceList | None = None
        self._digest = ""
        self._gpu_s_prices: dict[str, float] = {}
        """Prices of a GPU second by model, as far as they were needed since the last change."""
        self._gpu_prices_until = inf
        """Unix time (s) until which `_gpu_s_prices` are in force."""
        self.open_requests: Callable[[], Iterable[RequestContext]] = _none
        """Returns the requests in progress."""

    @property
    def is_on(self) -> bool:
        """Whether the policy has a usage store."""
        return self._is_on

    @property
    def refuses(self) -> bool:
        """Whether requests are refused because their records could not be kept."""
        return self._refuses_when_full and self._is_on and (self.spool.is_full or not self.spool.is_open)

    def use(self, policy: Policy) -> None:
        """Use the prices of a newly accepted policy, and begin or end the ledger as it says. Blocks for milliseconds.

        A spool that cannot be created is tried again by `tick`. Requests that are in progress at the end of the ledger
        have no record, unless it begins again before they end.
        """
        self._policy = policy
        self._digest = policy.digest()[:DIGEST_CHARACTERS]
        self._follow_gpu_prices(self._wall_clock())
        self._prices = PriceList(policy, self._wall_clock())
        self._is_on = bool(policy.usage_stores)
        if not self._is_on:
            self.spool.close(seals_always=True)
        else:
            self._open()

    def _follow_gpu_prices(self, unix_s: float) -> None:
        self._gpu_s_prices.clear()
        self._gpu_prices_until = (unix_s // STEP_S + 1.0) * STEP_S

    def _gpu_s_price(self, model: str) -> float:
        price = self._gpu_s_prices.get(model)
        if price is None:
            policy = self._policy
            has_region = policy is not None and self._region in policy.regions
            unix_s = self._gpu_prices_until - STEP_S
            per_hour = gpu_price(policy, self._region, model, unix_s) if policy is not None and has_region else 0.0
            price = self._gpu_s_prices[model] = per_hour / SECONDS_PER_HOUR
        return price

    def _open(self) -> None:
        try:
            self.spool.open()
            self.spool.problem = ""
        except OSError as error:
            problem = f"{error.strerror}: {error.filename}"
            if self.spool.problem != problem:
                log.error("the spool of the ledger cannot be created; records are lost", problem=problem)
            self.spool.problem = problem

    def store_url(self) -> str:
        """Return the URL of the store that holds the records of the agent's region; empty if there is none."""
        store = None if self._policy is None else self._policy.usage_store(self._region)
        return "" if store is None else store.url

    def report(self) -> LedgerReport | None:
        """Return what is not in the store yet; None while the ledger is off."""
        if not self._is_on:
            return None
        use = self.spool.use
        return LedgerReport(use.sealed, use.oldest_at, self.spool.lost_records, use.last_put)

    def status(self) -> dict[str, Any]:
        """Return the state of the ledger for the status page."""
        url = self.store_url()
        use, problem = self.spool.use, self.spool.problem
        if self._is_on and not url:
            problem = problem or f"no usage store of the policy covers {self._region}: records stay in the spool"
        return {
            "on": self._is_on,
            "store": url or None,
            "spool_bytes": use.total_bytes,
            "waiting_segments": use.sealed,
            "oldest_segment_at": use.oldest_at,
            "lost_records": self.spool.lost_records,
            "problem": problem or None,
        }

    def tick(self) -> None:
        """Follow the clock, the price lists and the age of the file. Called ten times a second."""
        now, unix_s = self._clock(), self._wall_clock()
        self._now_ms = int(unix_s * 1000.0)
        if self._policy is not None and self._prices is not None and not self._prices.is_in_force(unix_s):
            self._prices = PriceList(self._policy, unix_s)
        if not self._gpu_prices_until - STEP_S <= unix_s < self._gpu_prices_until:
            self._follow_gpu_prices(unix_s)
        if self._is_on and not self.spool.is_open:
            self._open()
        self.spool.tick(now)

    def close(self) -> None:
        """Seal the spool; blocks until the disk has all records."""
        self._is_on = False
        self.spool.close()

    def hold(self) -> HeldRecords:
        """Return where the records of a job's requests wait for the results of the requests to be in the store."""
        return HeldRecords(HeldFiles(self.spool))

    def started(self, context: RequestContext) -> None:
        """Record that a request is sent to its first target."""
        if not self._is_on:
            return
        context.is_in_ledger = True
        self.spool.append(self._start(context))

    def ended(
        self, context: RequestContext, attempt: Attempt | None, account: Account, judgement: Judgement | None = None
    ) -> None:
        """Record a finished request; of a forwarded request, its GPU time at an endpoint of this agent.

        Args:
            judgement: how the service objective of the model counts the request; None if none does.
        """
        if not self._is_on:
            return
        context.is_in_ledger = False
        now, route_context, estimate = account.ended_at, context.route_context, context.estimate
        region, gpu_class, gpu_s, egress_bytes, price, burst = "", "", 0.0, 0, 0.0, NOT_USED
        route = context.request.route
        if attempt is not None:
            region = attempt.region
            if isinstance(attempt, LocalAttempt):
                gpu_class = attempt.endpoint.spec.accelerator
                if attempt.burst is not None:
                    burst = attempt.burst.used(now)
                elif context.occupies_slot:
                    gpu_s = _gpu_s(context, attempt, now)
            else:
                egress_bytes = account.sent_bytes
        name = estimate.adapter or context.model
        charges = account.charges_tenant
        objective, is_within = _NOT_COUNTED if judgement is None else judgement
        input_tokens = cached_tokens = output_tokens = first_byte_ms = total_ms = 0
        if route_context is None:
            total_ms = int((now - context.received_at) * 1000.0) + 1
            if account.first_byte_at is not None:
                first_byte_ms = int((account.first_byte_at - context.received_at) * 1000.0) + 1
            usage = account.usage
            if usage is not None:
                input_tokens, cached_tokens = usage.prompt_tokens, usage.cached_tokens
                output_tokens = usage.answer_tokens
            if charges and account.began_answer and self._prices is not None:
                rate = self._prices.of(name, context.priority)
                if rate is not None:
                    units = cost_units(estimate.cost, estimate.work.decode_s) if rate.unit else 0.0
                    price = rate.amount(input_tokens, cached_tokens, output_tokens, units) * account.price_share
        record = self._encode(
            # In the order of the fields of LedgerRecord.
            (
                _REQUEST if route_context is None else _SERVED,
                self._now_ms,
                context.request_id,
                context.facts.tenant,
                context.principal.key,
                name,
                "" if route is None else route.name,
                self._region if route_context is None else route_context.origin,
                self._agent,
                region,
                gpu_class,
                # `value` of an enum is a function call in Python 3.11.
                account.outcome._value_,
                account.status,
                input_tokens,
                cached_tokens,
                output_tokens,
                gpu_s,
                price,
                gpu_s * self._gpu_s_price(context.model) if gpu_s else 0.0,
                egress_bytes,
                account.is_estimated,
                not charges,
                self._digest,
                0.0,
                0.0,
                0.0,
                first_byte_ms,
                total_ms,
                objective,
                is_within,
                *burst,
                account.is_input_estimated,
                account.is_output_estimated,
            )
        )
        if context.held_records is not None and charges:
            context.held_records.hold(context.request_id, record)
        else:
            self.spool.append(record)

    def lost(self, context: RequestContext, attempt: LocalAttempt, now: float) -> None:
        """Record the GPU time of an attempt that does not serve its request, at `now` (by the clock, s)."""
        if not self._is_on:
            return
        if attempt.burst is not None:
            record = LedgerRecord(
                *self._common(context, _LOST_ATTEMPT),
                self._region,
                attempt.endpoint.spec.accelerator,
                is_overhead=True,
                policy_digest=self._digest,
            )
            record.burst_s, record.burst_cost = attempt.burst.used(now)
            self.spool.append(self._encode(record))
            return
        gpu_s = _gpu_s(context, attempt, now)
        start = self._common(context, _LOST_ATTEMPT)
        rest = (self._region, attempt.endpoint.spec.accelerator, "", 0, 0, 0, 0, gpu_s, 0.0)
        gpu_cost = gpu_s * self._gpu_s_price(attempt.estimate.model)
        self.spool.append(self._encode((*start, *rest, gpu_cost, 0, False, True, self._digest)))

    def copied(self, context: RequestContext, attempt: LocalAttempt, account: Account | None, now: float) -> None:
        """Record the GPU time of a copy of a request, which no tenant has.

        Args:
            account: of the copy; None if the attempt does not serve it.
            now: by the clock, in seconds.
        """
        if not self._is_on:
            return
        gpu_s = _gpu_s(context, attempt, now)
        kind, at_ms, request_id, _, _, *common = self._common(context, _COPY)
        outcome, status, tokens, is_estimated = "", 0, (0, 0, 0), False
        if account is not None:
            outcome, status, usage = account.outcome._value_, account.status, account.usage
            is_estimated = account.is_estimated
            if usage is not None:
                tokens = usage.prompt_tokens, usage.cached_tokens, usage.answer_tokens
        served = (self._region, attempt.endpoint.spec.accelerator, outcome, status, *tokens, gpu_s, 0.0)
        rest = (gpu_s * self._gpu_s_price(attempt.estimate.model), 0, is_estimated, True, self._digest)
        self.spool.append(self._encode((kind, at_ms, request_id, "", "", *common, *served, *rest)))

    def capacity(self, times: Iterable[GpuTime]) -> None:
        """Record the GPU time that the region's endpoints had."""
        if not self._is_on:
            return
        for each in times:
            cost = (each.ready_gpu_s + each.unready_gpu_s) * self._gpu_s_price(each.model)
            record = LedgerRecord(
                _CAPACITY,
                each.at_ms,
                "",
                "",
                "",
                each.model,
                "",
                self._region,
                self._agent,
                self._region,
                each.gpu_class,
                policy_digest=self._digest,
                ready_gpu_s=each.ready_gpu_s,
                unready_gpu_s=each.unready_gpu_s,
                capacity_cost=cost,
            )
            self.spool.append(self._encode(record))

    def _start(self, context: RequestContext) -> bytes:
        return self._encode(self._common(context, _START))

    def _common(self, context: RequestContext, kind: int) -> tuple[int, int, str, str, str, str, str, str, str]:
        route, route_context = context.request.route, context.route_context
        return (
            kind,
            self._now_ms,
            context.request_id,
            context.facts.tenant,
            context.principal.key,
            context.estimate.adapter or context.model,
            "" if route is None else route.name,
            self._region if route_context is None else route_context.origin,
            self._agent,
        )

    def _open_starts(self) -> list[bytes]:
        return [self._start(context) for context in self.open_requests() if context.is_in_ledger]


def _gpu_s(context: RequestContext, attempt: LocalAttempt, now: float) -> float:
    # Not by the newest policy, which may lack the model.
    model = context.policy.models.get(attempt.estimate.model)
    return gpu_time_s(model, now - attempt.since, attempt.mean_streams())


def _none() -> Iterable[RequestContext]:
    return ()
