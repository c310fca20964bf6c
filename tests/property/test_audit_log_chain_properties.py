"""After any change to a chain of audit entries, verification reports the first entry that differs."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from penstock.log_chains.audit_log_chain import BEGINNING, AuditEntry, AuditHead, entry_hash, sealed, verify_chain

words = st.text(max_size=12)
json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
changes = st.tuples(st.floats(0, 2e9), words, words, words, words, json, json)


def chained(contents: list[tuple[Any, ...]]) -> list[AuditEntry]:
    entries: list[AuditEntry] = []
    head = BEGINNING
    for at, caller, action, target, reason, before, after in contents:
        entry = sealed(AuditEntry(head.seq + 1, at, caller, "admin", action, target, reason, head.hash, before, after))
        entries.append(entry)
        head = AuditHead(entry.seq, entry.hash)
    return entries


chains = st.lists(changes, min_size=1, max_size=6).map(chained)


@given(chains)
def test_written_entries_verify_also_after_an_export(entries: list[AuditEntry]) -> None:
    head = AuditHead(entries[-1].seq, entries[-1].hash)
    assert verify_chain(entries, head=head) is None
    exported = [msgspec.json.decode(msgspec.json.encode(entry), type=AuditEntry) for entry in entries]
    assert verify_chain(exported, head=head) is None
    middle = len(entries) // 2
    before = AuditHead(entries[middle - 1].seq, entries[middle - 1].hash) if middle else BEGINNING
    assert verify_chain(entries[middle:], after=before, head=head) is None


@given(chains, st.data())
def test_a_changed_entry_is_named(entries: list[AuditEntry], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(entries) - 1))
    field = data.draw(st.sampled_from(["caller", "reason", "target", "action", "role"]))
    forged = msgspec.structs.replace(entries[at], **{field: getattr(entries[at], field) + "x"})
    fault = verify_chain([*entries[:at], forged, *entries[at + 1 :]])
    assert fault is not None
    assert fault.seq == at + 1
    # If the forged entry has a new hash, the next entry or a stored head does not match.
    fault = verify_chain(
        [*entries[:at], sealed(forged), *entries[at + 1 :]], head=AuditHead(entries[-1].seq, entries[-1].hash)
    )
    assert fault is not None
    assert fault.seq == min(at + 2, len(entries))


@given(chains, st.data())
def test_a_missing_entry_is_named(entries: list[AuditEntry], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(entries) - 1))
    fault = verify_chain([*entries[:at], *entries[at + 1 :]], head=AuditHead(entries[-1].seq, entries[-1].hash))
    assert fault is not None
    assert fault.seq == at + 1


@given(chains)
def test_a_field_added_later_does_not_change_old_hashes(entries: list[AuditEntry]) -> None:
    class Newer(AuditEntry, frozen=True, omit_defaults=True):
        approved_by: str = ""

    for entry in entries:
        newer = msgspec.json.decode(msgspec.json.encode(entry), type=Newer)
        assert entry_hash(newer) == entry.hash
