"""The amounts that budgets limit, of one request."""

from __future__ import annotations

from typing import Final

from penstock.ledger.prices import Rate

ROUNDING: Final = 2e-6
"""Amount by which sums of fractions and of rounded leases (`fleet_budgets.QUANTUM`) may differ from what they stand
for: ten requests of a tenth use a budget of one, not nine."""


class Amounts:
    """What a request needs by its estimate, or used."""

    def __init__(self, requests: float = 1.0) -> None:
        """Be the amounts of a request without tokens, GPU time and cost; 0 `requests` for one that did not start."""
        self.requests = requests
        self.input_tokens = 0.0
        """Tokens of the prompt, those of a cache included."""
        self.cached_tokens = 0.0
        self.output_tokens = 0.0
        self.most_output_tokens = 0.0
        """Output that the request permits, inf without a limit; 0 if it has none, or if `output_tokens` is known."""
        self.gpu_s = 0.0
        self.money = 0.0
        self.most_money = 0.0
        """What the request costs at most, of which it reserves what is left; 0 if `money` is known."""
        self.price: Rate | None = None
        """Price of the tokens of the request, if a budget of money limits it."""
