"""Values in the store: readable, versioned, bounded, and rejected as a whole if they are of another type."""

from __future__ import annotations

import json
from hashlib import sha256

import msgspec
import pytest

from adapters.store.codec import MAX_VALUE_BYTES, CodecError, decode, encode, is_as_written
from adapters.store.members import AgentMember, Member

MEMBER = Member(name="cp-1", url="http://127.0.0.1:8080")


class Sets(msgspec.Struct, frozen=True):
    names: frozenset[str]


def test_round_trip_is_readable_json() -> None:
    raw = encode(MEMBER)
    assert json.loads(raw) == {
        "version": 1,
        "kind": "Member",
        "value": {"name": "cp-1", "url": "http://127.0.0.1:8080"},
    }
    assert decode(raw, Member) == MEMBER
    agent = AgentMember(region="eu-de", name="a", peer_url="http://p", admin_url="http://a", epoch=7)
    assert decode(encode(agent), AgentMember) == agent


def test_equal_values_have_equal_bytes() -> None:
    names = [f"region-{number}" for number in range(50)]
    assert encode(Sets(frozenset(names))) == encode(Sets(frozenset(reversed(names))))


def test_unknown_fields_of_the_same_version_are_ignored() -> None:
    raw = b'{"version":1,"kind":"Member","value":{"name":"cp-1","url":"u","zone":"z"},"written_by":"x"}'
    assert decode(raw, Member) == Member(name="cp-1", url="u")


def test_newer_version_is_refused_with_the_remedy() -> None:
    raw = encode(MEMBER).replace(b'"version":1', b'"version":2')
    with pytest.raises(CodecError, match=r"version 2.*up to 1: upgrade"):
        decode(raw, Member)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "empty, or not signed"),
        (b"\xff\xfe", "not a stored Member"),
        (b"[]", "not a stored Member"),
        (b'{"version":1,"kind":"Member"}', "value"),
        (b'{"version":"1","kind":"Member","value":{}}', r"\$\.version"),
        (b'{"version":0,"kind":"Member","value":{}}', "version 0"),
        (b'{"version":1,"kind":"RegionPlan","value":{}}', "expected a Member, found 'RegionPlan'"),
        (b'{"version":1,"kind":"Member","value":{"name":"x"}}', "url"),
        (b'{"version":1,"kind":"Member","value":{"name":7,"url":"u"}}', r"\$\.name"),
        (b'{"version":1,"kind":"Member","value":' + b"[" * 100_000, "Member"),
    ],
)
def test_bad_values_are_refused_by_name(raw: bytes, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        decode(raw, Member)


def test_size_is_bounded_both_ways() -> None:
    with pytest.raises(CodecError, match="larger"):
        encode(Member(name="x" * MAX_VALUE_BYTES, url=""))
    with pytest.raises(CodecError, match=str(MAX_VALUE_BYTES)):
        decode(b" " * (MAX_VALUE_BYTES + 1), Member)


def test_undecodable_values_match_their_digest() -> None:
    raw = encode(MEMBER)
    name = sha256(msgspec.json.encode(MEMBER)).hexdigest()
    assert is_as_written(raw, name)
    assert is_as_written(raw.replace(b'"version":1', b'"version":2'), name)
    assert not is_as_written(raw.replace(b"cp-1", b"cp-2"), name)
    assert not is_as_written(b"torn", name)
