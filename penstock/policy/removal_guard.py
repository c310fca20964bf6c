"""Documents that a change of policy removes, and which of them it may remove only if the bundle accepts that.

A file that was lost or cut off is often a valid bundle with fewer documents, or with a shorter last document. Without a
residency rule or a part of one, requests may run where they must not; without tenants, regions, models or routes,
requests are refused; without prices or usage stores, they are free or not recorded; without job stores, files and
batches cannot be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set

import msgspec

from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.policy import Policy

MAX_REMOVED_SHARE = 0.25
"""Share (0-1) of the tenants, and of the regions, models and routes, that a change may remove without an
AcceptedRemoval."""

MIN_REMOVED = 2
"""Number of removed documents of such a kind that need an AcceptedRemoval: the only tenant may be renamed. One is
enough where none of the kind is left."""

MAX_NAMED = 10
"""Maximum number of names in a message."""


REMEDY = (
    "restore the files, or list the names in a document of kind AcceptedRemoval (give a rule that stays another name)"
)

_SHORTER_RULE = "restrictions of ResidencyRule"


class Removal(msgspec.Struct, frozen=True):
    """Documents of one kind that a change removes, and for which it needs an AcceptedRemoval."""

    kind: str
    """Kind of the documents, such as `ResidencyRule`, or the parts that documents of this name lose."""
    names: tuple[str, ...]

    def __str__(self) -> str:
        named = ", ".join(self.names[:MAX_NAMED])
        more = f" and {len(self.names) - MAX_NAMED} more" if len(self.names) > MAX_NAMED else ""
        return f"{self.kind} {named}{more}"


_NAMES: Mapping[str, Callable[[Policy], Set[str]]] = {
    "ResidencyRule": lambda policy: {rule.name for rule in policy.residency},
    "DataClass": lambda policy: policy.data_classes,
    "Tenant": lambda policy: policy.tenants.keys(),
    "Tier": lambda policy: (policy.tiers or {}).keys(),
    "Prices": lambda policy: {prices.name for prices in policy.prices or ()},
    "UsageStore": lambda policy: {store.name for store in policy.usage_stores or ()},
    "JobStore": lambda policy: {store.name for store in policy.job_stores or ()},
    "Region": lambda policy: policy.regions.keys(),
    "Model": lambda policy: policy.models.keys(),
    "Route": lambda policy: {route.name for route in policy.routes if route.source},
}

_EACH = frozenset({"ResidencyRule", "DataClass", "Tier", "Prices", "UsageStore", "JobStore"})
"""Kinds of which every removal needs an AcceptedRemoval; of the others, only the removal of many documents. Tenants
that the API created with a tier are refused without it."""


def unaccepted_removals(
    before: Policy, after: Policy, accepted: Mapping[str, Collection[str]] | None = None
) -> tuple[Removal, ...]:
    """Return the removals that need an AcceptedRemoval which the bundle does not have; empty if the change may be
    rolled out.

    Args:
        before: the policy in force.
        after: the policy that replaces it.
        accepted: names that the bundle's documents of kind AcceptedRemoval list, by kind.
    """
    found = []
    for kind, names in _NAMES.items():
        known, left = names(before), names(after)
        removed = sorted(known - left - set((accepted or {}).get(kind, ())))
        is_many = len(removed) >= MIN_REMOVED and len(removed) > MAX_REMOVED_SHARE * len(known)
        if removed and (kind in _EACH or is_many or not left):
            found.append(Removal(kind, tuple(removed)))
    rules = {rule.name: rule for rule in after.residency}
    shorter = [rule.name for rule in before.residency if rule.name in rules and _is_cut(rule, rules[rule.name], after)]
    if shorter:
        found.append(Removal(_SHORTER_RULE, tuple(sorted(shorter))))
    return tuple(found)


def _is_cut(before: ResidencyRule, after: ResidencyRule, policy: Policy) -> bool:
    """Whether a rule under `policy` restricts less because it lost entries, as the end of a file that is cut off.

    Entries for tenants, data classes and regions that the policy no longer has are no loss.
    """
    lists = (
        (before.tenants & policy.tenants.keys(), after.tenants),
        (before.data_classes & {tenant.data_class for tenant in policy.senders.values()}, after.data_classes),
        (before.client_countries | before.client_subdivisions, after.client_countries | after.client_subdivisions),
    )
    # A list that is gone matches every request.
    matches_fewer = any(left and known - left for known, left in lists)
    allows_all = before.allow is not None and after.allow is None
    return matches_fewer or allows_all or bool(before.deny & policy.regions.keys() - after.deny)
