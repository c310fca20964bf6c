"""The budgets that limit the requests of one sender, and what one request reserves of them.

A request reserves from all of its budgets or from none. A reservation is settled once, by what the request used.
"""

from __future__ import annotations

from typing import Final

from penstock.cost.cost_estimate import ANSWER_TOKENS
from penstock.policy.kinds.budgets import Budget
from penstock.policy.kinds.tenants import Tenant
from penstock.tenancy.amounts import Amounts
from penstock.tenancy.budget_lease import BudgetKey
from penstock.tenancy.budget_meter import BOTH, COUNTS, GPU, MONETARY, ONE, OUTPUT, BudgetMeter

FIRST_TOKENS: Final = 8.0 * ANSWER_TOKENS
"""Length (tokens) for which an answer reserves output while nothing is known of the sender's answers."""

NEW_WEIGHT: Final = 1.0 / 8.0
"""Weight of the newest answer in the mean that replaces it."""

AHEAD: Final = 2.0
"""Length for which an answer that is longer than expected reserves output, in lengths that it has reached."""

NO_AMOUNTS: Final = Amounts(0.0)
"""The amounts of a request that gives back everything."""


class SenderBudgets:
    """The meters of a tenant and of one of its keys."""

    def __init__(self, tenant: Tenant, key_budgets: tuple[Budget, ...], limits: dict[BudgetKey, Budget]) -> None:
        """Name the budgets; the agent sets their meters."""
        self.tenant = tenant
        self.key_budgets = key_budgets
        # Those of which the need is known from the head of a request come first.
        self.limits = sorted(limits.items(), key=lambda item: COUNTS[item[0].unit] != ONE)
        """The budgets by name."""
        counts = [COUNTS[key.unit] for key in limits]
        self._early = counts.count(ONE)
        self.needs_estimate = self._early < len(counts)
        """Whether the tokens, the GPU time or the cost of requests are limited."""
        self.needs_gpu = GPU in counts
        self.needs_money = MONETARY in counts
        self.usual_tokens = FIRST_TOKENS
        """Length (tokens) for which answers reserve output: at first that of long ones, later the mean of recent."""
        self.meters: list[BudgetMeter] = []
        """The meters of `limits`, in the same order."""
        self.generation = -1
        """The generation of the agent's meters in which `meters` were found; later, some may have been forgotten."""
        self.header_cache: object = None
        """What the writer of response headers keeps."""

    def reserve(self, amounts: Amounts, now: float, held: BudgetReservation | None = None) -> Reserved:
        """Reserve what a request needs from all budgets; or return the first budget that lacks it, and reserve nothing.

        Args:
            held: the reservation by the head of the request, which becomes the result; None if there is none.
        """
        first = 0 if held is None else self._early
        return self._reserve(amounts, now, first, len(self.meters), held)

    def reserve_early(self, now: float) -> Reserved:
        """Reserve what is known from the head of a request: one request, and one place."""
        return self._reserve(Amounts(), now, 0, self._early, None)

    def _reserve(self, amounts: Amounts, now: float, first: int, end: int, held: BudgetReservation | None) -> Reserved:
        meters = self.meters
        for index in range(first, end):
            meter = meters[index]
            amount = meter.amount_of(amounts)
            if meter.lacks(amount, now):
                meter.refuse(amount, now)
                return meter
        if end > self._early and amounts.most_money > amounts.money:
            # Requests that run together may all need more than their estimates, which no later request could repay.
            left = min([meter.unspent for meter in meters[first:end] if meter.counts == MONETARY])
            if left > amounts.money:
                amounts.money = left if left < amounts.most_money else amounts.most_money
        if end > self._early and amounts.most_output_tokens > amounts.output_tokens:
            self._expect_usual(amounts, meters[first:end])
        for index in range(first, end):
            meter = meters[index]
            meter.take(meter.amount_of(amounts), now)
        if held is None:
            return BudgetReservation(self, amounts, end)
        held.extend(amounts, end)
        return held

    def _expect_usual(self, amounts: Amounts, meters: list[BudgetMeter]) -> None:
        """Reserve output for an answer of the usual length, or what is left, if that is more than the estimate."""
        usual, most, output = self.usual_tokens, amounts.most_output_tokens, amounts.output_tokens
        factor = (usual if usual < most else most) / output
        for meter in meters:
            if meter.counts in (OUTPUT, BOTH, GPU):
                grows = amounts.gpu_s if meter.counts == GPU else output
                left = 1.0 + (meter.unspent - meter.amount_of(amounts)) / grows if grows else factor
                factor = left if left < factor else factor
        if factor > 1.0:
            amounts.output_tokens = output * factor
            amounts.gpu_s *= factor

    def note_answer(self, tokens: float) -> None:
        """Learn from the length of an answer. Short ones are no sign that the next ones are, too."""
        tokens = tokens if tokens > ANSWER_TOKENS else ANSWER_TOKENS
        self.usual_tokens += (tokens - self.usual_tokens) * NEW_WEIGHT


class BudgetReservation:
    """What one request reserved."""

    def __init__(self, budgets: SenderBudgets, amounts: Amounts, count: int) -> None:
        """Hold `amounts` of the first `count` meters, which were taken."""
        self.budgets = budgets
        self._meters = budgets.meters
        self._amounts = amounts
        self._count = count
        self._is_settled = False

    def extend(self, amounts: Amounts, count: int) -> None:
        """Hold `amounts` of the first `count` meters, of which the further ones were taken."""
        self._amounts, self._count, self._meters = amounts, count, self.budgets.meters

    @property
    def is_settled(self) -> bool:
        """Whether the reservation holds nothing any more."""
        return self._is_settled

    @property
    def amounts(self) -> Amounts:
        """What the request reserved."""
        return self._amounts

    def settle(self, actual: Amounts, now: float, *, is_session: bool = False) -> None:
        """Replace the reservation by what the request used. A further call does nothing.

        Args:
            is_session: whether the output is that of a session, whose length is that of no answer.
        """
        if self._is_settled:
            return
        self._is_settled = True
        if actual.output_tokens and not is_session:
            self.budgets.note_answer(actual.output_tokens)
        reserved, meters = self._amounts, self._meters
        for index in range(self._count):
            meter = meters[index]
            meter.settle(meter.amount_of(reserved), meter.amount_of(actual), now)

    def answer_grew(self, output_tokens: float, *, has_arrived: bool) -> None:
        """Reserve output for twice the length that an answer has reached, once that is more than was reserved: the
        longer an answer is already, the longer is its rest (lengths are about lognormal).

        Args:
            output_tokens: the length of the answer.
            has_arrived: whether so much has arrived, so that the next answers may be as long; otherwise it is the
                length by the time, which an engine that hangs has, too.
        """
        amounts = self._amounts
        if output_tokens > amounts.output_tokens and not self._is_settled:
            if has_arrived and output_tokens > self.budgets.usual_tokens:
                self.budgets.note_answer(output_tokens)
            most, ahead = amounts.most_output_tokens, output_tokens * AHEAD
            self.outgrown(0.0, ahead if ahead < most else output_tokens if output_tokens > most else most)

    def outgrown(self, input_tokens: float, output_tokens: float) -> None:
        """Reserve what has been used, where it is more than was reserved, so that later requests are refused.

        Args:
            input_tokens: 0 for those of the estimate.
        """
        amounts, meters = self._amounts, self._meters[: self._count]
        is_more = output_tokens > amounts.output_tokens or input_tokens > amounts.input_tokens
        if self._is_settled or not is_more:
            return
        before = [meter.amount_of(amounts) for meter in meters]
        if output_tokens > amounts.output_tokens:
            if amounts.output_tokens > 0.0:
                amounts.gpu_s *= output_tokens / amounts.output_tokens
            amounts.output_tokens = output_tokens
        if input_tokens > amounts.input_tokens:
            amounts.input_tokens = input_tokens
        if amounts.price is not None:
            money = amounts.price.amount(amounts.input_tokens, 0.0, amounts.output_tokens)
            amounts.money = money if money > amounts.money else amounts.money
        for meter, amount in zip(meters, before, strict=True):
            meter.extend(meter.amount_of(amounts) - amount)

    def give_back(self, now: float) -> None:
        """Give everything back, since the request did not start. A further call does nothing."""
        self.settle(NO_AMOUNTS, now)


Reserved = BudgetReservation | BudgetMeter
"""A reservation; or the meter of the budget that lacks what a request needs."""
