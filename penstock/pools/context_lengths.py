"""Which endpoints of a pool a prompt fits into, and which are kept free for longer prompts.

A request needs room for its prompt and its answer. The tokens of a prompt are an estimate, so a request is refused only
where it is surely too long, and prefers endpoints where it fits with a margin; in between, the engine decides.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

from penstock.cost.cost_estimate import OVERHEAD_BYTES, CostEstimator
from penstock.cost.prompt_lengths import TRUNCATION, longest_prompt_bytes
from penstock.cost.request_properties import CostInputs
from penstock.routes.route import CostFields
from penstock.routing.endpoint_selection import EndpointView

MARGIN: Final = 1.2
"""Factor of the estimated prompt tokens with which a request has to fit, to be sent to an endpoint of that length."""

SURE: Final = 0.5
"""Factor of the estimated prompt tokens with which a request is surely too long."""

UNLIMITED: Final = 1 << 62
"""The context length of an endpoint that reports none: it may be any."""

NO_ENDPOINTS: Final[frozenset[str]] = frozenset()


class NeededTokens:
    """The context length that one request needs."""

    def __init__(self, prompt_tokens: float, answer_tokens: int) -> None:
        """Create the need of a request with an estimated prompt and the answer that it asks for, in tokens."""
        self.likely = int(prompt_tokens * MARGIN) + answer_tokens
        """Tokens with a margin for the error of the estimate."""
        self.surely = int(prompt_tokens * SURE) + answer_tokens
        """Tokens that the request has even if the estimate is twice too high, and its prompt may not be shortened."""


def needed_tokens(
    expectations: CostEstimator, model: str, ask: CostInputs, body: bytes | bytearray, cost: CostFields
) -> NeededTokens:
    """Return the tokens that a request needs; an answer without a limit takes what the prompt leaves.

    Args:
        body: the body of the request.
        cost: cost fields of its route.
    """
    longest_bytes = longest_prompt_bytes(body, cost)
    if longest_bytes is None:
        prompt_tokens = expectations.tokens_in(model, ask)
    else:
        prompt_tokens = expectations.prompt_tokens(model, longest_bytes + OVERHEAD_BYTES)
    needed = NeededTokens(prompt_tokens, ask.max_tokens or 0)
    if TRUNCATION in body:
        needed.surely = ask.max_tokens or 0
    return needed


class ContextLengths:
    """The context lengths of a pool of which at least one endpoint reports one."""

    def __init__(self, tokens: Sequence[tuple[str, int]]) -> None:
        """Create the lengths of a pool.

        Args:
            tokens: name and context length of each endpoint; 0 if the endpoint reports none.
        """
        known = [(name, length or UNLIMITED) for name, length in tokens]
        self.lengths = sorted({length for _, length in known})
        """The different lengths, ascending."""
        self.is_mixed = len(self.lengths) > 1
        self.largest = 0 if self.lengths[-1] == UNLIMITED else self.lengths[-1]
        """The largest length; 0 if an endpoint reports none."""
        self._others = [frozenset(name for name, own in known if own != length) for length in self.lengths]
        """For each length, the endpoints that have another one."""

    def may_exceed(self, ask: CostInputs) -> bool:
        """Whether a request may need more than the largest length: a token of text has at least one byte."""
        return self.largest > 0 and (ask.media is not None or ask.body_bytes + (ask.max_tokens or 0) > self.largest)

    def smallest_fitting(self, likely: int) -> int:
        """Return the smallest length that a request fits into; the largest if it fits into none."""
        return next((length for length in self.lengths if length >= likely), self.lengths[-1])

    def too_short(self, likely: int) -> frozenset[str]:
        """Return the endpoints that a request does not fit into; all but the largest if it fits into none."""
        fitting = self.lengths.index(self.smallest_fitting(likely))
        return frozenset.intersection(*self._others[fitting:])

    def excluded(self, likely: int, views: Sequence[EndpointView], tried: Container[str]) -> frozenset[str]:
        """Return the endpoints that a request is not sent to now.

        These are endpoints that are too small, and larger ones than it needs while one that just fits has a free slot.

        Args:
            likely: tokens that the request needs, with a margin.
            views: the endpoints of the pool.
            tried: names of endpoints that cannot serve the request for other reasons.
        """
        if not self.is_mixed:
            return NO_ENDPOINTS
        fitting = self.smallest_fitting(likely)
        first = self.lengths.index(fitting)
        too_small: frozenset[str] | None = None
        for others in self._others[first:]:
            too_small = others if too_small is None else too_small & others
            for view in views:
                name = view.name
                if name not in too_small and name not in tried and view.takes_more and view.in_flight < view.slots:
                    return too_small
        return too_small or NO_ENDPOINTS
