"""Revoked keys: lists combine to the newest entry of each key, in any order, and apply to every policy."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policy import revoked_keys
from penstock.policy.revoked_keys import RevokedKey, RevokedKeySet, TooManyRevokedKeys, without_keys
from tests.support.planet import policy

DIGESTS = [f"{number:064x}" for number in range(4)]
entries = st.builds(
    RevokedKey, st.sampled_from(DIGESTS), st.integers(0, 5).map(float), st.just("a"), st.just("r"), st.booleans()
)
lists = st.lists(entries, max_size=8).map(RevokedKeySet().merged)


def revoked(number: int, at: float = 1.0, *, lifted: bool = False) -> RevokedKey:
    return RevokedKey(f"{number:064x}", at, "operator", "leaked", lifted)


@given(lists, lists, lists)
def test_lists_combine_in_any_order_to_the_same(
    first: RevokedKeySet, second: RevokedKeySet, third: RevokedKeySet
) -> None:
    assert first.merged(second.keys) == second.merged(first.keys)
    assert first.merged(second.keys).merged(third.keys) == first.merged(second.merged(third.keys).keys)
    assert first.merged(first.keys) is first
    assert first.merged(()) is first


def test_neither_an_older_nor_an_empty_list_makes_a_key_valid() -> None:
    known = RevokedKeySet().merged([revoked(1, 2.0), revoked(2, 2.0, lifted=True)])
    assert known.merged([revoked(1, 1.0, lifted=True), revoked(2, 1.0)]) is known
    assert [entry.digest for entry in known.revoked] == [DIGESTS[1]]
    assert known.merged([revoked(1, 2.0, lifted=True)]) is known, "of two entries of one time the revocation counts"
    assert known.merged([revoked(1, 3.0, lifted=True)]).revoked == ()


def test_a_key_is_found_by_its_id_and_by_its_digest_while_it_is_revoked() -> None:
    key = RevokedKey("ab" * 32, 1.0, "operator", "leaked")
    keys = RevokedKeySet((key,))
    assert keys.find("ab" * 8) is keys.find("ab" * 32) is key
    assert keys.find("ab" * 4) is None
    assert keys.changed(revoked_keys.RevokedKey(key.digest, 2.0, "o", "r", lifted=True)).find(key.digest) is None


def test_a_full_list_loses_lifted_entries_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revoked_keys, "MAX_REVOKED_KEYS", 3)
    keys = RevokedKeySet().merged([revoked(0, 1.0, lifted=True), revoked(1, 2.0, lifted=True), revoked(2)])
    keys = keys.changed(revoked(3))
    assert [entry.digest for entry in keys.keys] == DIGESTS[1:], "the oldest lifted entry is removed"
    keys = keys.changed(revoked(0))
    message = "^3 keys are revoked, .*: remove revoked keys from the policy, and then lift their revocation$"
    with pytest.raises(TooManyRevokedKeys, match=message):
        keys.changed(revoked(9))
    assert keys.changed(revoked(0, 9.0)).find(DIGESTS[0]) is not None, "a key that is there is changed"
    assert len(keys.changed(revoked(9, lifted=True)).revoked) == 3
    assert len(keys.merged([revoked(9)]).revoked) == 4, "an agent never forgets a revoked key"


def test_a_policy_without_the_keys_is_another_object_with_the_same_digest() -> None:
    whole = policy()
    name, tenant = next(iter(whole.tenants.items()))
    kept = msgspec.structs.replace(tenant, key_digests=(DIGESTS[0], DIGESTS[1]))
    whole = msgspec.structs.replace(whole, tenants={**whole.tenants, name: kept})
    without = without_keys(whole, frozenset((DIGESTS[1], DIGESTS[2])))
    assert without.tenants[name].key_digests == (DIGESTS[0],)
    assert {other: found for other, found in without.tenants.items() if other != name} == {
        other: found for other, found in whole.tenants.items() if other != name
    }
    assert without.digest() == whole.digest()
    assert (whole.revoked_ids, without.revoked_ids) == (set(), {DIGESTS[1][:16], DIGESTS[2][:16]})
    unknown = without_keys(whole, frozenset((DIGESTS[3],)))
    assert unknown == whole
    assert unknown is not whole, "so that open requests of forwarded keys are evaluated again"
