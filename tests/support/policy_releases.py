"""Policies as other releases write them into the store, with their digests."""

from __future__ import annotations

from hashlib import sha256

import msgspec

from adapters.store.codec import Envelope, encode
from penstock.policy.policy import Policy


def _written(raw: bytes) -> tuple[bytes, str]:
    return raw, sha256(msgspec.json.decode(raw, type=Envelope).value).hexdigest()


def with_a_logic_to_come(policy: Policy) -> tuple[bytes, str]:
    """A policy of a newer release, with a planner that this release lacks."""
    return _written(encode(policy).replace(b'"linear_program"', b'"crystal_ball"'))


def with_a_field_to_come(policy: Policy) -> tuple[bytes, str]:
    """A policy of a newer release, with a parameter that this release lacks."""
    return _written(encode(policy).replace(b'"planner"', b'"patience_s":3,"planner"'))


def before_logics_had_names(policy: Policy) -> tuple[bytes, str]:
    """A policy of a release without `planner`, which planned by linear program."""
    return _written(encode(policy).replace(b'"planner":"linear_program",', b""))
