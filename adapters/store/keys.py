"""Where things are in the store. The version in the root lets a new layout stand beside an old one."""

from __future__ import annotations

import re

DEFAULT_PREFIX = "/penstock/"
"""What every key starts with, unless the settings name another prefix for a fleet."""

ROOT = DEFAULT_PREFIX + "v1/"

FLEET = ROOT + "fleet"
"""Signed by each leader: a control plane of another fleet, which cannot verify the signature, does not lead."""

LEADER = ROOT + "leader"
"""Held with the leader's lease; its create revision is the fencing epoch."""

EPOCH_BASE = ROOT + "epoch-base"
"""What plans' epochs are above fencing epochs, since a store that was wiped counts its revisions anew."""

CONTROL_PLANES = ROOT + "control-planes/"
AGENTS = ROOT + "agents/"
POLICIES = ROOT + "policies/"
PLANS = ROOT + "plans/"
OVERRIDES = ROOT + "overrides"
"""All overrides, under one key, so that concurrent changes conflict instead of overlooking each other."""
ROLLOUT = ROOT + "newest-rollout"
"""The newest rollout of a policy: under way, or the last one."""

ENDED_ROLLOUTS = ROOT + "rollouts/"
DRILL = ROOT + "newest-drill"
"""The newest drill: under way, or the last one."""

ENDED_DRILLS = ROOT + "drills/"
REVISIONS = ROOT + "revisions/"
AUDIT = ROOT + "audit/"
AUDIT_HEAD = ROOT + "audit-head"
"""The last audit entry once more: where the next one follows, and what a watch of it shows is each as it is made."""

JOURNAL = ROOT + "journal/"
"""Recent events, written by the leaders."""

IDEMPOTENCY_RECORDS = ROOT + "idempotency/"
"""Requests with an Idempotency-Key, by a digest of the caller and the key; each has a lease."""

AUDIT_BLOCK = 100
"""Audit entries under one prefix, so that a page of them can be read without the rest."""


_PREFIX = re.compile(r"/([a-zA-Z0-9._-]{1,64}/){1,4}")


def key_prefix(text: str) -> str:
    """Returns a prefix of keys if it is valid; raises ValueError."""
    if _PREFIX.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no prefix of keys; write one to four names between slashes, such as /penstock/")
    return text


_REPLACEABLE = frozenset((LEADER, EPOCH_BASE, OVERRIDES, ROLLOUT, DRILL, AUDIT_HEAD))


def is_replaceable(key: str) -> bool:
    """Whether control planes write the key again and again, so that one of its earlier values could be put back."""
    return key in _REPLACEABLE or key.startswith(PLANS)


def control_plane(name: str) -> str:
    """A control plane's registration; lives as long as its lease."""
    return CONTROL_PLANES + name


def agent(region: str, name: str) -> str:
    """An agent's registration; lives as long as its lease."""
    return f"{AGENTS}{region}/{name}"


def policy(digest: str) -> str:
    """A compiled policy, immutable: the key is the digest of the content."""
    return POLICIES + digest


def plan(region: str) -> str:
    """A region's plan slice; it names its policy by digest."""
    return PLANS + region


def ended_rollout(number: int) -> str:
    """A rollout that is over; keys are in the order of the numbers."""
    return f"{ENDED_ROLLOUTS}{number:010d}"


def ended_drill(number: int) -> str:
    """A drill that is over; keys are in the order of the numbers."""
    return f"{ENDED_DRILLS}{number:010d}"


def revision(number: int) -> str:
    """The result of one revision of the policy source; keys are in the order of the numbers."""
    return f"{REVISIONS}{number:010d}"


def journal_entry(number: int) -> str:
    """An entry of the journal, immutable; keys are in the order of the entries."""
    return f"{JOURNAL}{number:012d}"


def idempotency_record(name: str) -> str:
    """The stored claim and response of one request; lives as long as its lease."""
    return IDEMPOTENCY_RECORDS + name


def audit_entry(seq: int) -> str:
    """An entry of the audit log, immutable; keys are in the order of the entries."""
    return f"{audit_block(seq // AUDIT_BLOCK)}{seq % AUDIT_BLOCK:02d}"


def audit_block(block: int) -> str:
    """The prefix of AUDIT_BLOCK entries: those whose number divided by it is `block`."""
    return f"{AUDIT}{block:010d}"
