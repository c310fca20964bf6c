"""Differences in meaning between two policies, by kind, name and field of their documents."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Any

import msgspec

from penstock.policy.policy import Policy

SHOWN_DIGEST = 12
"""Number of shown characters of a key's digest: enough to distinguish two digests, too few to verify guessed keys."""

_KIND_OF = {
    "regions": "Region",
    "models": "Model",
    "tenants": "Tenant",
    "tiers": "Tier",
    "issuers": "Issuer",
    "prices": "Prices",
    "usage_stores": "UsageStore",
    "job_stores": "JobStore",
    "result_caches": "ResultCache",
    "residency": "ResidencyRule",
    "accepted_losses": "AcceptedLoss",
    "maintenance": "MaintenanceWindow",
    "drills": "Drill",
    "events": "Event",
    "demand_signals": "DemandSignal",
    "rtt_ms": "GeoRouting",
    "entry_maps": "EntryMap",
    "dns_zones": "DnsZone",
    "dns_names": "DnsName",
    "spillover_limits": "SpilloverLimit",
    "versions": "ModelVersions",
    "anonymous_tenant": "AnonymousAccess",
    "cors_origins": "BrowserAccess",
    "time_zones": "TimeZone",
    "routes": "Route",
}
"""Kind of document by field of a policy, for fields whose name does not determine the kind."""

_DERIVED = {"time_zones"}
"""Fields without a document of their own; the changes of their sources are reported instead."""

_NO_MEANING = {"source", "planner"}
"""Fields without an effect: the source location, and the planner that earlier releases wrote."""


class ChangeKind(StrEnum):
    """The kind of a change of a document or of one of its fields."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class Change(msgspec.Struct, frozen=True):
    """One difference between two policies."""

    how: ChangeKind
    kind: str
    """Kind of the document, such as `Region`."""
    name: str
    """Name of the document; empty for kinds of which a bundle has one document."""
    field: str
    """Path of the field within the document, such as `cost.unit` or `rtt_ms.eu-de.us-east`; empty if the whole document
    changed."""
    before: Any
    """Previous value as JSON, with sorted sets; None if there was none, and for whole documents."""
    after: Any

    def __str__(self) -> str:
        place = " ".join(part for part in (self.kind, self.name, self.field) if part)
        if not self.field:
            return f"{place}: {self.how.value}"
        return f"{place}: {_spelled(self.before)} -> {_spelled(self.after)}"


def diff(before: Policy, after: Policy) -> tuple[Change, ...]:
    """Every difference, sorted by kind, name and field; empty if both policies have the same meaning."""
    changes: list[Change] = []
    old, new = _plain(before), _plain(after)
    for field in type(after).__struct_fields__:
        kind = _KIND_OF.get(field) or "".join(word.capitalize() for word in field.split("_"))
        if _holds_documents(getattr(after, field)) or _holds_documents(getattr(before, field)):
            was, now = _by_name(old.get(field, {})), _by_name(new.get(field, {}))
            if field in _DERIVED:
                was, now = ({name: fields[name] for name in was.keys() & now.keys()} for fields in (was, now))
            changes += _documents(kind, was, now)
        else:
            # A kind with one document: a struct has the document's fields, any other value is itself a field.
            is_struct = isinstance(getattr(after, field), msgspec.Struct)
            changes += _fields(kind, "", "" if is_struct else field, old.get(field), new.get(field))
    return tuple(sorted(changes, key=lambda change: (change.kind, change.name, change.field)))


def _plain(policy: Policy) -> dict[str, Any]:
    """The policy as decoded JSON, with sorted sets."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(policy, order="deterministic"))
    return plain


def _holds_documents(value: Any) -> bool:
    """Whether a field of a policy is a collection of named things."""
    items = list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, tuple) else ()
    return any(isinstance(item, msgspec.Struct) for item in items)


def _by_name(documents: Any) -> dict[str, Any]:
    if isinstance(documents, list):
        return {document["name"]: document for document in documents}
    return dict(documents)


def _documents(kind: str, old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    changes = [Change(ChangeKind.ADDED, kind, name, "", None, None) for name in new.keys() - old.keys()]
    changes += [Change(ChangeKind.REMOVED, kind, name, "", None, None) for name in old.keys() - new.keys()]
    for name in old.keys() & new.keys():
        changes += _fields(kind, name, "", old[name], new[name])
    return changes


def _fields(kind: str, name: str, path: str, old: Any, new: Any) -> list[Change]:
    if old == new or path in _NO_MEANING:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            change
            for key in sorted(old.keys() | new.keys())
            for change in _fields(kind, name, f"{path}.{key}" if path else key, old.get(key), new.get(key))
        ]
    how = ChangeKind.ADDED if old is None else ChangeKind.REMOVED if new is None else ChangeKind.CHANGED
    return [Change(how, kind, name, path, _shown(path, old), _shown(path, new))]


def _shown(path: str, value: Any) -> Any:
    if path == "key_digests" and isinstance(value, list):
        return [str(digest)[:SHOWN_DIGEST] for digest in value]
    if path == "changes" and isinstance(value, list):
        # The clock changes of a time zone, of which there are about a hundred, are not set in the bundle.
        return f"rules {sha256(msgspec.json.encode(value)).hexdigest()[:SHOWN_DIGEST]}"
    return value


def _spelled(value: Any) -> str:
    return "nothing" if value is None else msgspec.json.encode(value).decode()
