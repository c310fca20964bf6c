"""Exchange of budgets between an agent and the leader: the agent's counts, answered by leases.

The request is signed as a report is. The answer is signed together with the digest of the request, so that no process
on the way can forge, exchange or replay an answer.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from penstock.tenancy.budget_lease import MAX_USES, BudgetKey, BudgetLease, BudgetUse
from penstock.wire.peer_keys import BadSignature, PeerKeys, Purpose

PATH: Final = "/v1/budget-leases"

MAX_WAIT_S: Final = 5.0
"""Maximum time (s) for which an answer without news is delayed."""

LEASE_S: Final = 10.0
"""Time (s) from an answered request to the end of the agent's leases; longer than MAX_WAIT_S and the time between two
requests."""

MAX_CHANGES: Final = 2_000
"""Maximum number of budgets that one answer announces; the next answer continues."""

_Name = Annotated[str, Meta(min_length=1, max_length=63)]
_Number = Annotated[int, Meta(ge=0, le=2**62)]


class ExchangeRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an agent uses of budgets."""

    agent: _Name
    region: _Name
    epoch: _Number
    """Epoch of the agent; a restarted agent has a larger one."""
    number: Annotated[int, Meta(ge=1, le=2**62)]
    """Number of the exchange in the epoch; each is larger than the last."""
    answered: _Number = 0
    """Number of the newest exchange whose answer was applied; 0: none."""
    leader: _Number = 0
    """Epoch of the leader that gave the answer; 0: none."""
    uses: Annotated[tuple[BudgetUse, ...], Meta(max_length=MAX_USES)] = ()
    """Counters that have changed or need more since the last request. All, after a change of leader and after the end
    of a lease."""
    wait_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] = 0.0
    """Time (s) for which the leader may delay an answer without news."""

    @property
    def sender(self) -> str:
        """Name of the agent in the fleet."""
        return f"{self.region}/{self.agent}"


class UsedBudget(msgspec.Struct, frozen=True, array_like=True):
    """A budget that agents began to use, or that none uses any more."""

    key: BudgetKey
    is_used: bool


class ExchangeAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Leases for an agent."""

    leader: _Number
    """Epoch of the leader; an agent ignores the answers of earlier ones."""
    number: _Number
    """Number of the exchange."""
    agents: tuple[int, int]
    """Number of agents of the fleet, and of the region."""
    ranks: tuple[int, int]
    """Number of the agent in the order of names, from 0: in the fleet, and in the region."""
    leases: tuple[BudgetLease, ...] = ()
    announced: tuple[UsedBudget, ...] = ()
    """Changes since the newest answer that the agent applied, oldest first."""
    is_complete: bool = False
    """Whether the leader knows the budgets of all agents, and has announced all: what it did not announce is unused."""

    @property
    def is_empty(self) -> bool:
        """Whether the agent learns nothing from the answer."""
        return not self.leases and not self.announced


requests = msgspec.msgpack.Decoder(ExchangeRequest)
_answers = msgspec.msgpack.Decoder(ExchangeAnswer)


def seal_answer(answer: ExchangeAnswer, digest: str, peer_keys: PeerKeys) -> bytes:
    """Returns the body of an answer: the signature, a line feed, and the answer as MessagePack.

    Args:
        digest: Content-Digest of the request.
        peer_keys: of the leader with the agent.
    """
    body = msgspec.msgpack.encode(answer)
    return peer_keys.sign(Purpose.BUDGET_LEASES, digest.encode() + body).encode() + b"\n" + body


def open_answer(body: bytes, digest: str, peer_keys: PeerKeys) -> ExchangeAnswer:
    """Verifies and decodes the answer to the request with a digest.

    Raises:
        BadSignature: the body is not the answer of the peer to the request, or cannot be decoded.
    """
    signature, _, content = body.partition(b"\n")
    peer_keys.check(Purpose.BUDGET_LEASES, digest.encode() + content, signature.decode("latin-1"))
    try:
        return _answers.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadSignature(f"the signed answer cannot be decoded: {error}") from None
