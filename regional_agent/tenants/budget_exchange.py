"""Exchanges of budgets with the leader: about each second, sooner when an amount is nearly used.

An agent leaves its request open at the leader, which answers as soon as it has news, such as that another agent needs
what this one holds; an agent that has used more meanwhile reports it after a second. No request of a client waits for
an exchange, but those that would be refused because the agent has no lease yet, or while other agents have free places.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
import structlog

from penstock.tenancy.agent_leases import AgentLeases, LeaseHolder
from penstock.tenancy.budget_lease import MeteredBudgets
from penstock.wire import budget_exchange
from penstock.wire.budget_exchange import ExchangeAnswer, ExchangeRequest, open_answer
from penstock.wire.peer_keys import BadSignature, Purpose
from penstock.wire.signed_report import content_digest
from regional_agent.background_tasks import cancel, keep_running, wait_for_event
from regional_agent.upstream.address import Address
from regional_agent.upstream.leader_link import Answer, LeaderLink, Message, NotDelivered

INTERVAL_S = 1.0
"""Time (s) between two exchanges of an agent with active budgets."""

APART_S = 0.1
"""Minimum time (s) between the beginnings of two exchanges: the answer to a request that was open for longer is
confirmed at once, since what this agent gives up is available to others only then."""

TIMEOUT_S = 1.0
"""Timeout (s) of an exchange, besides the time for which the leader may delay the answer."""

log = structlog.get_logger()


class BudgetExchange:
    """Exchanges the counts of an agent's budgets for leases.

    Args:
        link: the way to the leader.
        registered: returns the number of registered agents of a region, or of the fleet ("").
        clock: monotonic clock (s).
    """

    def __init__(
        self,
        link: LeaderLink,
        sender: LeaseHolder,
        registered: Callable[[str], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self.registered = registered
        self._clock = clock
        self._wanted = asyncio.Event()
        self.leases = AgentLeases(sender, self, clock())
        """The state of the exchanges, for the counters."""
        self._meters: MeteredBudgets | None = None
        self._is_answered = True
        self._task: asyncio.Task[None] | None = None
        self._left: asyncio.Future[Answer] | None = None
        """The newest request that was replaced while the leader delayed its answer."""

    def wake(self) -> None:
        """Exchange as soon as APART_S permits."""
        self._wanted.set()

    def has_leader(self) -> bool:
        """Whether a leader is known."""
        return self._link.leader is not None

    def start(self, meters: MeteredBudgets) -> None:
        """Start to exchange the counts of these counters."""
        self._meters = meters
        self._task = keep_running("exchange of budgets", self._keep_exchanging)

    async def stop(self) -> None:
        """Stop exchanging."""
        if self._task is not None:
            await cancel([self._task])
        if self._left is not None:
            self._left.cancel()

    async def _keep_exchanging(self) -> None:
        while True:
            self._wanted.clear()
            next_at = self._clock() + APART_S
            has_waited = await self._exchange()
            apart_s = max(0.0, next_at - self._clock())
            await wait_for_event(self._wanted, at_least_s=apart_s, at_most_s=apart_s if has_waited else INTERVAL_S)

    async def _exchange(self) -> bool:
        """Exchange once. Returns whether the leader could delay the answer: then the next request follows at once."""
        target, meters = self._link.leader, self._meters
        if target is None or meters is None:
            return False
        request = self.leases.request(meters.uses(self._clock()), self._clock())
        try:
            answer = await self._ask(target, request)
        except (NotDelivered, BadSignature) as failure:
            if self._is_answered:
                log.warning("budgets not exchanged", control_plane=str(target), reason=str(failure))
            self._is_answered = False
            return False
        if answer is None:
            return True
        if not self._is_answered:
            log.info("budgets are exchanged again", control_plane=str(target))
        self._is_answered = True
        uses = self.leases.accept(answer)
        if uses is not None:
            meters.apply(list(answer.leases), self._clock())
            meters.answered(uses)
        return request.wait_s > 0.0

    async def _ask(self, target: Address, request: ExchangeRequest) -> ExchangeAnswer | None:
        """Return the answer to a request; None if an agent's counter wanted the next exchange before.

        Raises:
            NotDelivered, BadSignature: the leader did not answer.
        """
        body = msgspec.msgpack.encode(request)
        message = Message(budget_exchange.PATH, Purpose.BUDGET_USES, body)
        sending = asyncio.ensure_future(self._link.send(target, message, TIMEOUT_S + request.wait_s))
        try:
            if request.wait_s:
                wanted = asyncio.ensure_future(self._wanted.wait())
                try:
                    await asyncio.wait((sending, wanted), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    wanted.cancel()
                if not sending.done():
                    self._leave(sending)
                    return None
            answer = await sending
        finally:
            if sending is not self._left:
                sending.cancel()
        return open_answer(answer.body, content_digest(body), answer.peer_keys)

    def _leave(self, sending: asyncio.Future[Answer]) -> None:
        """Let the leader end a request that the next one replaces, so that its connection stays usable."""
        if self._left is not None:
            self._left.cancel()
        self._left = sending
        # An error is no news: the next request tells.
        sending.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
