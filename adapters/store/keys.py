"""Keys of the store. The root contains a version, so that a new layout can exist beside an old one."""

from __future__ import annotations

import re
from hashlib import sha256

from penstock.wire import fleet_prefix

DEFAULT_PREFIX = fleet_prefix.DEFAULT_PREFIX

ROOT = DEFAULT_PREFIX + "v1/"

FLEET = ROOT + "fleet"
"""Key that each leader signs: a control plane of another fleet cannot verify the signature, and does not lead."""

LEADER = ROOT + "leader"
"""Key of the leader, attached to the leader's lease; its create revision is the fencing epoch."""

EPOCH_BASE = ROOT + "epoch-base"
"""Number that is added to fencing epochs to obtain plan epochs, since the revisions of a wiped store start again."""

CONTROL_PLANES = ROOT + "control-planes/"
AGENTS = ROOT + "agents/"
POLICIES = ROOT + "policies/"
PLANS = ROOT + "plans/"
OVERRIDES = ROOT + "overrides"
"""All overrides, under one key, so that concurrent changes conflict instead of overwriting each other."""
REVOKED_KEYS = ROOT + "revoked-keys"
"""The revoked API keys of tenants, by digest, under one key. Agents combine it with what they know: removing the key
makes no API key valid."""

CACHE_PURGES = ROOT + "result-cache-purges"
"""The newest purge of the result cache of each model, under one key."""

TENANTS = ROOT + "tenants/"
"""The tenants that the API creates, with digests of their keys, in shards (`penstock/tenancy/tenant_record.py`)."""

ISSUERS = ROOT + "issuers/"
"""The public keys of identity providers, by the name of the issuer; those of another URL, that a rollout has, by
`penstock.tenancy.tokens.issuer_keys.other_name`."""

ROLLOUT = ROOT + "newest-rollout"
"""The newest rollout of a policy, in progress or ended."""

ENDED_ROLLOUTS = ROOT + "rollouts/"
DRILL = ROOT + "newest-drill"
"""The newest drill, in progress or ended."""

ENDED_DRILLS = ROOT + "drills/"
REVISIONS = ROOT + "revisions/"
AUDIT = ROOT + "audit/"
AUDIT_HEAD = ROOT + "audit-head"
"""Copy of the last audit entry, which the next entry follows; a watch of this key receives every new entry."""
AUDIT_REMOVED = ROOT + "audit-removed"
"""Number and hash of the last audit entry that was removed."""

JOURNAL = ROOT + "journal/"
"""Recent events, written by the leaders."""

MONEY_TOTALS = ROOT + "money-totals/"
"""What tenants have used of budgets of money, in shards, written by the leader."""

MODEL_ROLLOUTS = ROOT + "model-rollouts/"
"""The rollouts of versions of models, by the requested name."""

FORECASTS = ROOT + "forecasts/"
"""The state of the demand forecast, in shards, written by the leader."""

REVOKED_SESSIONS = ROOT + "revoked-sessions/"
"""Revoked sessions of browsers, by a digest of the caller's name; each has a lease."""

AUDIT_BLOCK = 100
"""Number of audit entries under one prefix, so that a page can be read without the other entries."""


_PREFIX = re.compile(r"/([a-zA-Z0-9._-]{1,64}/){1,4}")
_LAYOUT_NAME = re.compile(r"/v[0-9]+/")


def key_prefix(text: str) -> str:
    """Returns a prefix of keys if it is valid; raises ValueError otherwise.

    No name in it may be that of a layout, so that the keys of one fleet never stand among those of another: a fleet has
    all keys under its prefix and the layout's name, and a backup reads, and a restore replaces, all of them.
    """
    if _PREFIX.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no prefix of keys; write one to four names between slashes, such as /penstock/")
    found = _LAYOUT_NAME.search(text)
    if found is not None:
        raise ValueError(
            f"{text!r} contains {found[0]}, which follows the prefix of a fleet in its keys; use another name"
        )
    return text


_REPLACEABLE = frozenset(
    (LEADER, EPOCH_BASE, OVERRIDES, REVOKED_KEYS, CACHE_PURGES, ROLLOUT, DRILL, AUDIT_HEAD, AUDIT_REMOVED)
)


def is_replaceable(key: str) -> bool:
    """Whether control planes overwrite the key, so that an attacker could replay one of its earlier values."""
    return key in _REPLACEABLE or key.startswith(
        (PLANS, TENANTS, ISSUERS, MONEY_TOTALS, FORECASTS, MODEL_ROLLOUTS, REVOKED_SESSIONS)
    )


def control_plane(name: str) -> str:
    """Returns the key of a control plane's registration, which expires with its lease."""
    return CONTROL_PLANES + name


def agent(region: str, name: str) -> str:
    """Returns the key of an agent's registration, which expires with its lease."""
    return f"{AGENTS}{region}/{name}"


def agents_of(region: str) -> str:
    """Returns the prefix of the registrations of a region's agents."""
    return f"{AGENTS}{region}/"


def policy(digest: str) -> str:
    """Returns the key of a compiled policy, which is immutable; `digest` is the digest of its content."""
    return POLICIES + digest


def plan(region: str) -> str:
    """Returns the key of a region's plan slice, which names its policy by digest."""
    return PLANS + region


def tenant_shard(number: int) -> str:
    """Returns the key of a shard of tenants; keys are in the order of the numbers."""
    return f"{TENANTS}{number:04d}"


def tenant_shard_number(key: str) -> int | None:
    """Returns the number of the shard with this key; None if no shard has the key."""
    digits = key.removeprefix(TENANTS)
    return int(digits) if re.fullmatch(r"[0-9]{4}", digits) else None


def issuer(name: str) -> str:
    """Returns the key of the public keys of an issuer."""
    return ISSUERS + name


def ended_rollout(number: int) -> str:
    """Returns the key of an ended rollout; keys are in the order of the numbers."""
    return f"{ENDED_ROLLOUTS}{number:010d}"


def ended_drill(number: int) -> str:
    """Returns the key of an ended drill; keys are in the order of the numbers."""
    return f"{ENDED_DRILLS}{number:010d}"


def revision(number: int) -> str:
    """Returns the key of the result of one revision of the policy source; keys are in the order of the numbers."""
    return f"{REVISIONS}{number:010d}"


def journal_entry(number: int) -> str:
    """Returns the key of a journal entry, which is immutable; keys are in the order of the entries."""
    return f"{JOURNAL}{number:012d}"


def money_totals(shard: int) -> str:
    """Returns the key of a shard of the totals of money."""
    return f"{MONEY_TOTALS}{shard:02d}"


def forecast(shard: int) -> str:
    """Returns the key of a shard of the demand forecast."""
    return f"{FORECASTS}{shard:02d}"


def model_rollout(name: str) -> str:
    """Returns the key of the rollout of a requested name's versions."""
    return MODEL_ROLLOUTS + name


def revoked_sessions(caller: str) -> str:
    """Returns the key of the revoked sessions of a caller."""
    return REVOKED_SESSIONS + sha256(caller.encode()).hexdigest()


def audit_entry(seq: int) -> str:
    """Returns the key of an audit entry, which is immutable; keys are in the order of the entries."""
    return f"{audit_block(seq // AUDIT_BLOCK)}{seq % AUDIT_BLOCK:02d}"


def audit_number(key: str) -> int | None:
    """Returns the number of the audit entry with this key; None if no entry has the key."""
    digits = key.removeprefix(AUDIT)
    return int(digits) if re.fullmatch(r"[0-9]{12}", digits) else None


def audit_block(block: int) -> str:
    """Returns the prefix of the audit entries whose number divided by AUDIT_BLOCK is `block`."""
    return f"{AUDIT}{block:010d}"
