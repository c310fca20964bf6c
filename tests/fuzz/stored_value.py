"""Reads any value that stands in etcd.

The first byte selects the type and whether the rest is the value itself, or the payload of a value that a control plane
signed. Property: an unsigned value is read as empty; a signed payload is read as it was written; decoding it yields
CodecError, or a value that encodes to bytes which decode to the same.
"""

from __future__ import annotations

import asyncio
import time

from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import Put
from adapters.store.members import AgentMember, Member
from adapters.store.signed_store import MARK, UNAUTHENTIC, SignedStore
from lab.memory_store import MemoryStore
from penstock.overrides.overrides import OverrideSet
from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy
from penstock.policy.revoked_keys import RevokedKeySet
from penstock.rollout.policy_rollout import Rollout
from penstock.tenancy.tenant_record import TenantShard
from tests.support.identities import agent_keyring, control_plane_keyring

TYPES = (AgentMember, Member, OverrideSet, RegionPlan, Policy, Rollout, RevokedKeySet, TenantShard)

KEYS = (
    keys.agent("eu", "a"),
    keys.LEADER,
    keys.OVERRIDES,
    keys.tenant_shard(0),
    keys.plan("eu"),
    keys.policy("0" * 64),
    keys.ROLLOUT,
    keys.REVOKED_KEYS,
)

WORDS = (
    *(type_.__name__.encode() for type_ in TYPES),
    *(MARK, b" ", b"\n", b'{"version":1,"kind":"', b'","value":{', b'"region":"', b'"name":"', b"1e999", b"null"),
)

_WRITERS = (agent_keyring("eu", "a"), control_plane_keyring())
_CERTIFICATES = tuple(writer.identity.peer.certificate for writer in _WRITERS)
_LOOP = asyncio.new_event_loop()


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    select, content = data[0] if data else 0, data[1:]
    which = select % len(TYPES)
    read = _LOOP.run_until_complete(_read(KEYS[which], content, signed=bool(select & 0x80), by_agent=which == 0))
    try:
        value = decode(read, TYPES[which])
    except CodecError:
        return
    assert decode(encode(value), TYPES[which]) == value


async def _read(key: str, content: bytes, *, signed: bool, by_agent: bool) -> bytes:
    """Return the value as a member of the fleet reads it from the store."""
    store = MemoryStore()
    reader = SignedStore(store, _WRITERS[1], clock=time.time)
    if signed:
        writer = SignedStore(store, _WRITERS[0 if by_agent else 1], clock=time.time)
        await writer.commit((), (Put(key, content),))
    else:
        await store.commit((), (Put(key, content),))
    item = await reader.get(key)
    assert item is not None
    assert item.value == (content if signed else UNAUTHENTIC)
    return content
