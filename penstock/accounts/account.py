"""The account of a finished request, which meters, evidence, objectives, logs and traces read."""

from __future__ import annotations

from typing import Final

from penstock.accounts.outcome_rules import RULES, Outcome
from penstock.answers.token_counts import MAX_TOKENS, Usage
from penstock.cost.cost_estimate import BYTES_PER_TOKEN, OVERHEAD_BYTES
from penstock.policy.kinds.models import CostUnit
from penstock.pools.placement import WorkEstimate

_OK: Final = Outcome.OK
_TOKEN: Final = CostUnit.TOKEN
"""Module constants, since in Python 3.11 access to an enum member through its class is a function call."""

_NOTHING: Final = Usage(0, 0)

SWITCHING_PROTOCOLS: Final = 101
"""Status of an accepted upgrade to a WebSocket."""


class Account:
    """What is true of one finished request. Times (s) are by the agent's monotonic clock."""

    def __init__(
        self, outcome: Outcome, reason: str, status: int, first_byte_at: float | None, ended_at: float
    ) -> None:
        """Create an account without usage.

        Args:
            reason: why the request was refused or its response ended early, a code of docs/errors.md; empty otherwise.
            status: status of the response; 0 if nothing was sent to the client.
            first_byte_at: when the response began; None if no response began.
        """
        self.outcome = outcome
        self.reason = reason
        self.status = status
        self.first_byte_at = first_byte_at
        self.ended_at = ended_at
        self.charges_tenant = outcome is _OK or RULES[outcome].charges_tenant
        """Whether the usage is the tenant's; otherwise it is overhead of the fleet."""
        self.price_share = 1.0
        """Part (0-1) of the price that the tenant pays; below 1 for a response of the result cache."""
        self.received_bytes = 0
        """Bytes of the request body, or from the client through the tunnel."""
        self.sent_bytes = 0
        self.usage: Usage | None = None
        """The tokens that the request used; None if no response began, and, for models whose unit of cost is not the
        token, without a report."""
        self.is_estimated = False
        """Whether the agent counted a part of `usage`, because the engine did not report it."""
        self.is_input_estimated = False
        """Whether that is true of the prompt tokens, or of those from the cache."""
        self.is_output_estimated = False
        """Whether that is true of the answer tokens."""
        self.measured_usage: Usage | None = None
        """The usage that the engine reported for the whole answer; None without such a report."""

    @property
    def began_answer(self) -> bool:
        """Whether an answer to the client began, which has a price, or a session on a WebSocket."""
        return self.status == SWITCHING_PROTOCOLS or (self.first_byte_at is not None and self.status < 400)

    def use_tokens(
        self, estimate: WorkEstimate, reported: Usage | None, delivered: int, *, is_final: bool, text_bytes: int = 0
    ) -> None:
        """Set the usage of a request whose response began.

        Args:
            reported: the last report of the engine; None without one.
            delivered: records with output that the client received, each of which counts as one token; negative if
                the answer was not streamed.
            is_final: whether `reported` is the usage of the whole answer.
            text_bytes: size of the answer that was not streamed; 0 if it is not known, so that its expected length is
                used.
        """
        is_token = estimate.cost.unit is _TOKEN
        if is_token and not estimate.ask.uses_tokens:
            self.usage = _NOTHING
            return
        is_exact = reported is not None and is_final and reported.answer_is_known
        if reported is not None and is_exact:
            self.measured_usage = reported
            if (reported.prompt_tokens and reported.prompt_is_known) or not is_token:
                self.usage = reported
                return
            # No prompt has zero tokens: Ollama omits their number if the whole prompt was cached.
            delivered = reported.answer_tokens
        if not is_token:
            return
        self.is_estimated, self.is_output_estimated = True, not is_exact
        self.is_input_estimated = reported is None or not (reported.prompt_tokens and reported.prompt_is_known)
        prompt_tokens, cached_tokens, answer_tokens = 0, 0, max(0, delivered)
        if reported is not None:
            prompt_tokens, cached_tokens = reported.prompt_tokens, reported.cached_tokens
            answer_tokens = max(answer_tokens, reported.answer_tokens)
        if delivered < 0 and (reported is None or not reported.answer_is_known):
            answer_tokens = _answer_tokens(estimate, text_bytes)
        if not prompt_tokens:
            prompt_tokens = _tokens(estimate.work.prefill_s, estimate.cost.input_unit_s)
        self.usage = Usage(prompt_tokens, answer_tokens, cached_tokens)

    def use_session_tokens(self, usage: Usage | None, *, is_estimated: bool) -> None:
        """Set the usage of a session on a WebSocket; None if the engine reported and generated nothing.

        Args:
            is_estimated: whether a part of the output is counted.
        """
        self.usage, self.is_output_estimated = usage, is_estimated
        self.is_input_estimated = usage is not None and not usage.prompt_is_known
        self.is_estimated = self.is_output_estimated or self.is_input_estimated


def _answer_tokens(estimate: WorkEstimate, text_bytes: int) -> int:
    """The tokens of an answer that the engine does not report; none of one that generates nothing, such as vectors."""
    expected, ask = _tokens(estimate.work.decode_s, estimate.cost.output_unit_s), estimate.ask
    if not (expected and text_bytes):
        return expected
    counted = min(MAX_TOKENS, max(1, round((text_bytes - OVERHEAD_BYTES) / BYTES_PER_TOKEN)))
    return counted if ask.max_tokens is None else min(counted, round(ask.max_tokens * ask.count))


def _tokens(work_s: float, unit_s: float) -> int:
    """The tokens of an amount of estimated work (s, reference)."""
    return min(MAX_TOKENS, round(work_s / unit_s)) if unit_s > 0.0 else 0
