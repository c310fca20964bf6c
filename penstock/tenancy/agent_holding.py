"""What one agent uses and holds of a budget, as the leader knows it."""

from __future__ import annotations


class AgentHolding:
    """The account of one agent in a budget."""

    __slots__ = (
        "announced_rate",
        "asked_at",
        "demand",
        "epoch",
        "granted",
        "held",
        "is_silent",
        "recalled",
        "reported_rate",
        "request",
        "share",
        "unspent",
        "used",
        "wanted",
        "wanted_at",
    )

    def __init__(self, epoch: int, now: float) -> None:
        self.epoch = epoch
        self.asked_at = now
        """Time (s) of the last report of a new request, permitted or refused."""
        self.used = 0.0
        self.unspent = 0.0
        self.granted = 0.0
        """Amount in the newest answer, of which the agent has not reported whether it arrived; for an agent without a
        leader: the amount that it may have used since."""
        self.held = 0.0
        """Amount that the agent may use: what is leased; of concurrent requests, up to its rate if that is more."""
        self.demand = 0.0
        self.request = 1.0
        self.share = 0.0
        self.announced_rate = 0.0
        """Rate of the newest lease, or the part of a silent agent."""
        self.reported_rate = 0.0
        """Rate of the lease that the agent had with its last report: in force until a newer one arrives."""
        self.wanted = 0
        """Requests that wait at the agent for a place."""
        self.wanted_at = 0.0
        """Time (s) since which some wait."""
        self.recalled = 0.0
        """Places that the newest answer asked back for other agents."""
        self.is_silent = False
        """Whether the lease has ended, while the agent is registered: it continues at its rate."""

    @property
    def rate_in_force(self) -> float:
        """Largest rate at which the agent may continue without a leader."""
        return self.announced_rate if self.announced_rate > self.reported_rate else self.reported_rate

    @property
    def leased(self) -> float:
        """Amount that the agent may use while it has a leader: `unspent`, unless it is negative, and `granted`."""
        return self.granted + self.unspent if self.unspent > 0.0 else self.granted
