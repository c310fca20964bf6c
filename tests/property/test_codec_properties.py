"""Decoding any stored value returns a value or raises CodecError."""

from __future__ import annotations

from contextlib import suppress

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from adapters.store.codec import CodecError, decode, encode
from adapters.store.members import AgentMember

TEXT = st.text(st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
)


@given(region=TEXT, name=TEXT, peer_url=TEXT, admin_url=TEXT, epoch=st.integers(0, 2**62))
def test_round_trip(region: str, name: str, peer_url: str, admin_url: str, epoch: int) -> None:
    member = AgentMember(region=region, name=name, peer_url=peer_url, admin_url=admin_url, epoch=epoch)
    assert decode(encode(member), AgentMember) == member


@given(st.binary(max_size=200))
def test_any_bytes(raw: bytes) -> None:
    with suppress(CodecError):
        decode(raw, AgentMember)


@given(version=JSON, kind=st.just("AgentMember") | JSON, value=JSON)
def test_any_json_in_an_envelope(version: object, kind: object, value: object) -> None:
    with suppress(CodecError):
        decode(msgspec.json.encode({"version": version, "kind": kind, "value": value}), AgentMember)
