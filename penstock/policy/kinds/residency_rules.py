"""Kinds of policy documents: data residency."""

from __future__ import annotations

from penstock.policy.fields import PolicyStruct


class ResidencyRule(PolicyStruct, frozen=True):
    """Restricts the regions of matching requests. An empty matcher matches all requests; deny overrides allow."""

    name: str
    tenants: frozenset[str] = frozenset()
    data_classes: frozenset[str] = frozenset()
    client_countries: frozenset[str] = frozenset()
    """ISO 3166-1 alpha-2. A rule with locations *governs*: requests from an unknown location are refused."""
    client_subdivisions: frozenset[str] = frozenset()
    """ISO 3166-2, first level, such as "US-CA"; matches in the same way as `client_countries`. It
    also governs: requests from that country are refused if the subdivision is unknown."""
    allow: frozenset[str] | None = None
    """Names of the regions that may process the request; None for no restriction."""
    deny: frozenset[str] = frozenset()
    """Names of the regions that may not process it, regardless of other rules."""
    source: str = ""
    """File and line of the rule."""


class AcceptedLoss(PolicyStruct, frozen=True):
    """A residency class whose loss is accepted if its regions fail. `policy verify` rejects losses that are not
    accepted."""

    name: str
    regions: frozenset[str]
    """All the regions that the class permits."""
    because: str
    """The reason, for operators."""
