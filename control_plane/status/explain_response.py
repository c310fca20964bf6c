"""What POST /v1/explain answers."""

from __future__ import annotations

import msgspec

from penstock.policy.provenance import Provenance
from penstock.routing.explain import Explanation


class Explained(msgspec.Struct, frozen=True):
    """An explanation, and by whose knowledge it is one."""

    explanation: Explanation
    seen_by: str
    """Name of the control plane. Agents may know better of waits, credits and endpoints: ask one at its /explain."""
    leading: bool
    """Whether it leads. With the store away it is one that led last, where agents still report."""
    at: float
    """Unix time (s)."""
    provenance: Provenance | None
    """The commit that the policy is from; None where it is from a folder."""
