"""Two states of a shard: nothing that was revoked or deleted becomes valid, and nothing is lost."""

from __future__ import annotations

from itertools import permutations

import pytest
from msgspec.structs import replace

from penstock.tenancy.created_tenants.shard_merge import MAX_DELETED, merged, without_old_deletions
from penstock.tenancy.created_tenants.tenant_changes import (
    TenantConflict,
    TenantNotFound,
    created,
    deleted,
    existing,
    with_key,
    with_revoked_key,
    with_rotated_key,
)
from penstock.tenancy.tenant_record import MAX_KEYS, TenantKey, TenantRecord, TenantShard

DELETED_KEPT_S, ENDED_KEPT_S = 30 * 86400.0, 30 * 86400.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

NOW = 1_000_000.0


def key(number: int, **fields: object) -> TenantKey:
    return replace(TenantKey(f"psk-{number:012x}", number.to_bytes(32), NOW), **fields)


ACME = TenantRecord("acme", "gold", NOW, (key(1), key(2)), changed_at=NOW)


def shard(*records: TenantRecord) -> TenantShard:
    return TenantShard(records)


def test_the_later_change_of_a_tenant_counts_and_no_tenant_is_lost() -> None:
    other = TenantRecord("other", "gold", NOW, changed_at=NOW)
    changed = replace(ACME, note="new", changed_at=NOW + 1)
    for known, read in permutations((shard(changed), shard(ACME, other))):
        assert merged(known, read).tenants == (changed, other)
    whole = shard(changed, other)
    assert merged(whole, shard(ACME)) is whole
    assert merged(TenantShard(), whole) == whole


def test_a_key_that_is_known_as_revoked_stays_revoked_after_a_change_of_an_older_state() -> None:
    """A backup from before the revocation is restored, and the restored tenant is then changed."""
    known = shard(replace(with_revoked_key(ACME, key(1).id, NOW + 1), changed_at=NOW + 1))
    restored = shard(replace(ACME, note="new", changed_at=NOW + 9))
    for states in permutations((known, restored)):
        (record,) = merged(*states).tenants
        assert record.note == "new"
        assert [each.revoked_at for each in record.keys] == [NOW + 1, None]


def test_an_expiry_that_is_known_stays() -> None:
    rotated = replace(with_rotated_key(ACME, key(1).id, key(3), 60.0, NOW), changed_at=NOW + 1)
    restored = replace(ACME, note="new", changed_at=NOW + 9)
    (record,) = merged(shard(rotated), shard(restored)).tenants
    assert record.keys[0].expires_at == NOW + 60.0


@pytest.mark.parametrize("name", ["expires_at", "revoked_at"])
def test_of_two_ends_of_a_key_the_earlier_one_counts(name: str) -> None:
    for older, newer, end in ((50.0, 90.0, 50.0), (90.0, 50.0, 50.0), (None, 50.0, 50.0), (50.0, None, 50.0)):
        states = [
            replace(ACME, keys=(key(1, **{name: None if at is None else NOW + at}),), changed_at=NOW + change)
            for change, at in enumerate((older, newer))
        ]
        for known, read in permutations(states):
            (record,) = merged(shard(known), shard(read)).tenants
            assert getattr(record.keys[0], name) == NOW + end
            assert record.changed_at == NOW + 1


def test_a_deleted_tenant_stays_deleted_and_its_keys_revoked() -> None:
    gone = replace(deleted(ACME, NOW + 1), changed_at=NOW + 1)
    for states in permutations((shard(gone), shard(ACME))):
        assert merged(*states).tenants == (gone,)
    changed_after_restore = replace(ACME, changed_at=NOW + 9)
    (record,) = merged(shard(gone), shard(changed_after_restore)).tenants
    assert all(each.revoked_at == NOW + 1 for each in record.keys)


def test_records_of_deleted_tenants_are_kept_for_a_time_and_in_a_limited_number() -> None:
    gone = [
        TenantRecord(f"t{number:02d}", "gold", NOW, deleted_at=NOW + number, changed_at=NOW + number)
        for number in range(MAX_DELETED + 2)
    ]
    kept = without_old_deletions(shard(ACME, *gone))
    assert [record.name for record in kept.tenants] == ["acme", *(record.name for record in gone[2:])]
    assert without_old_deletions(kept) is kept
    just_before = kept.replaced(replace(ACME, changed_at=NOW + DELETED_KEPT_S))
    assert without_old_deletions(just_before) is just_before
    later = replace(ACME, changed_at=NOW + DELETED_KEPT_S + 100)
    assert without_old_deletions(kept.replaced(later)).tenants == (later,)
    assert merged(kept, shard(later)).tenants == (later,)


def test_a_repeated_creation_changes_nothing_and_another_one_is_refused() -> None:
    wanted = TenantRecord("acme", "gold", NOW + 5)
    assert created(None, wanted, restores=False) is wanted
    assert created(ACME, wanted, restores=False) is ACME
    assert created(deleted(ACME, NOW), wanted, restores=True) is wanted
    with pytest.raises(TenantConflict, match="with another tier, budgets or note"):
        created(ACME, replace(wanted, tier="free"), restores=True)


def test_the_name_of_a_deleted_tenant_is_no_one_elses_by_mistake() -> None:
    # Files, jobs, kept responses and the ledger know a tenant by its name alone.
    with pytest.raises(TenantConflict, match="a tenant acme was deleted"):
        created(deleted(ACME, NOW), ACME, restores=False)


def test_a_rotated_key_and_its_successor_are_both_valid_until_the_overlap_ends() -> None:
    old = with_key(TenantRecord("acme", "gold", NOW), key(1, note="app"), NOW)
    rotated = with_rotated_key(old, key(1).id, key(2), 60.0, NOW)
    assert [each.is_valid(NOW + 59) for each in rotated.keys] == [True, True]
    assert [each.is_valid(NOW + 60) for each in rotated.keys] == [False, True]
    assert rotated.keys[1].note == "app"
    again = with_rotated_key(rotated, key(1).id, key(3), 600.0, NOW)
    assert again.keys[0].expires_at == NOW + 60.0, "a rotation never extends the life of a key"
    with pytest.raises(TenantConflict, match="revoked or expired"):
        with_rotated_key(rotated, key(1).id, key(3), 60.0, NOW + 60)
    with pytest.raises(TenantNotFound, match="has no key psk-x; `penstock tenant key list acme`"):
        with_rotated_key(rotated, "psk-x", key(3), 60.0, NOW)


def test_a_revocation_is_final() -> None:
    revoked = with_revoked_key(ACME, key(1).id, NOW + 1)
    assert with_revoked_key(revoked, key(1).id, NOW + 2) is revoked


def test_keys_that_ended_long_ago_make_room_for_new_ones() -> None:
    full = replace(ACME, keys=tuple(key(number) for number in range(MAX_KEYS)))
    with pytest.raises(TenantConflict, match=f"has {MAX_KEYS} keys, the maximum"):
        with_key(full, key(99), NOW)
    revoked = with_revoked_key(full, key(5).id, NOW)
    with pytest.raises(TenantConflict):
        with_key(revoked, key(99), NOW + ENDED_KEPT_S - 1)
    made = with_key(revoked, key(99), NOW + ENDED_KEPT_S)
    assert len(made.keys) == MAX_KEYS
    assert made.find_key(key(5).id) is None
    assert made.find_key(key(99).id) is not None
    with pytest.raises(TenantConflict, match="repeat the request"):
        with_key(ACME, key(1), NOW)


def test_a_deleted_tenant_does_not_exist() -> None:
    with pytest.raises(TenantNotFound, match="created no tenant acme"):
        existing(deleted(ACME, NOW), "acme")
    assert existing(ACME, "acme") is ACME
