"""The leader's part of the exchange of budgets: verifies agents' counts, and answers with leases.

Only the leader answers, for its own fencing epoch: what another control plane answered would grant amounts twice. The
state is in memory; a new leader begins with the saved totals of money and the first exchange of each agent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec
import structlog

from adapters.store.config_store import StoreError
from control_plane.tenants.budget_metrics import BudgetMetrics
from control_plane.tenants.money_checkpoint import MoneyCheckpoint
from penstock.policy.kinds.budgets import Budget
from penstock.tenancy.budget_lease import BudgetKey
from penstock.tenancy.fleet_budgets import FleetBudgets, StaleExchange
from penstock.wire.budget_exchange import ExchangeAnswer, ExchangeRequest, requests, seal_answer
from penstock.wire.identity import ProcessRole, SpiffeId
from penstock.wire.peer_keys import BadSignature
from penstock.wire.signed_report import ReportHead

MAX_EXCHANGE_BYTES = 1024 * 1024
"""Maximum size of a request, for MAX_USES budgets."""

TICK_S = 0.5
"""Interval (s) at which leases end, and idle budgets are forgotten."""

_log = structlog.get_logger(__name__)


class ExchangeRefused(Exception):
    """A request was rejected; nothing was charged or granted."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        """HTTP status of the response."""


class BudgetLeader:
    """Divides budgets while this control plane leads.

    Args:
        epoch: returns the fencing epoch while this control plane leads.
        agents: returns the registered agents: names in the fleet (`region/name`), with their regions.
        limits: returns the budget with a key and a reported tier (`BudgetUse.tier`); None if there is none.
        checkpoint: keeps the totals of money.
        metrics: counts leases, and shows overshoot.
        wall_clock: Unix time (s).
    """

    def __init__(
        self,
        epoch: Callable[[], int | None],
        agents: Callable[[], dict[str, str]],
        limits: Callable[[BudgetKey, str], Budget | None],
        checkpoint: MoneyCheckpoint,
        metrics: BudgetMetrics,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._epoch = epoch
        self._agents = agents
        self._limits = limits
        self._checkpoint = checkpoint
        self._metrics = metrics
        self._wall_clock = wall_clock
        self.fleet: FleetBudgets | None = None
        """The budgets of this leadership; None while another control plane leads."""
        self._waiting: dict[str, asyncio.Event] = {}
        """Set to answer the delayed request of an agent."""

    async def exchange(self, head: ReportHead, body: bytes) -> bytes:
        """Return the sealed answer to a request: MessagePack of `ExchangeRequest`.

        Args:
            head: the authenticated head.

        Raises:
            ExchangeRefused: the content is invalid, or not what the agent signed; the request is not the agent's
                newest; or this control plane does not lead.
        """
        request = _decoded(head, body)
        fleet = self._leading()
        sender = request.sender
        try:
            fleet.receive(request, time.monotonic(), self._wall_clock())
            # The agent has replaced its delayed request, which ends as an old one.
            self._wake({sender})
            answer = self._answer(fleet, request)
            if answer.is_empty and request.wait_s and request.leader == fleet.epoch:
                answer = await self._answer_later(fleet, request)
        except StaleExchange as error:
            raise ExchangeRefused(409, str(error)) from None
        if self._leading() is not fleet:
            raise ExchangeRefused(503, f"the leadership changed before {sender} was answered")
        return seal_answer(answer, head.digest, head.peer_keys)

    async def tick(self) -> None:
        """Begin or end the division of budgets with the leadership; end leases; save totals of money."""
        epoch = self._epoch()
        if epoch is None:
            self.close()
            return
        if self.fleet is None or self.fleet.epoch != epoch:
            self.fleet = None
            try:
                totals = await self._checkpoint.load()
            except StoreError as error:
                _log.warning("budgets are not divided: the totals of money cannot be read", reason=str(error))
                return
            self.fleet = FleetBudgets(epoch, self._limits, time.monotonic(), totals)
        fleet = self.fleet
        fleet.set_agents(self._agents(), time.monotonic())
        fleet.tick(time.monotonic(), self._wall_clock())
        self._wake_all_of(fleet)
        self._metrics.show(fleet)
        await self._checkpoint.save(fleet, epoch)

    def close(self) -> None:
        """End the division of budgets: delayed requests are refused at once, and follow the next leader."""
        if self.fleet is not None:
            self.fleet = None
            self._metrics.clear()
            self._wake(self._waiting)

    def _leading(self) -> FleetBudgets:
        epoch = self._epoch()
        if epoch is None:
            raise ExchangeRefused(421, "this control plane does not lead")
        if self.fleet is None or self.fleet.epoch != epoch:
            raise ExchangeRefused(503, "the leader has just been elected; send the next exchange")
        return self.fleet

    def _answer(self, fleet: FleetBudgets, request: ExchangeRequest) -> ExchangeAnswer:
        answer = fleet.answer(request.sender, request.number, time.monotonic(), self._wall_clock())
        self._wake_all_of(fleet)
        return answer

    async def _answer_later(self, fleet: FleetBudgets, request: ExchangeRequest) -> ExchangeAnswer:
        waiting = self._waiting[request.sender] = asyncio.Event()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(request.wait_s):
                    await waiting.wait()
        finally:
            if self._waiting.get(request.sender) is waiting:
                del self._waiting[request.sender]
        return self._answer(fleet, request)

    def _wake_all_of(self, fleet: FleetBudgets) -> None:
        woken, fleet.woken = fleet.woken, set()
        self._wake(woken)

    def _wake(self, agents: set[str] | dict[str, asyncio.Event]) -> None:
        for agent in agents:
            if (waiting := self._waiting.get(agent)) is not None:
                waiting.set()


def _decoded(head: ReportHead, body: bytes) -> ExchangeRequest:
    try:
        head.verify(body)
    except BadSignature as error:
        raise ExchangeRefused(401, str(error)) from None
    try:
        request = requests.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ExchangeRefused(400, f"not an exchange of budgets: {error}") from None
    signer = head.sender
    if signer != SpiffeId(signer.trust_domain, ProcessRole.AGENT, request.agent, request.region):
        raise ExchangeRefused(403, f"{signer} may not report for agent {request.agent} of region {request.region}")
    return request
