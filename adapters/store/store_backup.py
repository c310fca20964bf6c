"""Backup of a fleet's keys in the store as one file, and restoring it.

A backup has every key under the fleet's prefix at one revision, as stored: the values stay signed by the processes that
wrote them. Keys with a lease (leadership, registrations) are left out, because they are valid
only as long as their process renews them.

Restoring verifies these signatures, and signs the values anew for the fleet that they are restored into, since the
prefix may be another one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec

from adapters.files.plain_file import read_plain_file
from adapters.store import keys
from adapters.store.config_store import ConfigStore, Delete, KeyValue, Put, SameKey, StoreError
from adapters.store.signed_store import SignedStore
from penstock.wire.peer_keys import Keyring

MAX_FILE_BYTES = 1 << 30
"""Maximum size (bytes) of a file that is read; a fleet has some megabytes."""

FORMAT = 1
"""Format of the file."""

MAX_BATCH_OPERATIONS = 100
"""Maximum number of operations in one transaction; etcd accepts 128 by default (--max-txn-ops)."""

MAX_BATCH_BYTES = 1_000_000
"""Maximum size (bytes) of keys and values in a transaction, except for a single larger value; etcd accepts 1.5 MiB."""


_LAYOUT = keys.ROOT.removeprefix(keys.DEFAULT_PREFIX)
"""What the keys of a fleet have after its prefix; the prefix of another fleet may begin with that of this one."""


class BadBackup(Exception):
    """The file is no backup that this release can restore; the message has the reason and the remedy."""


class RestoreRefused(Exception):
    """The backup may not be restored into this store; the message has the reason and the remedy."""


class BackupEntry(msgspec.Struct, frozen=True):
    """One key of a backup."""

    key: str
    """The key without the fleet's prefix."""
    value: bytes
    """The value as stored: signed, and in the format of the release that wrote it."""


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of one fleet at one revision."""

    fleet: str
    """Name of the fleet."""
    prefix: str
    """Prefix of the fleet's keys."""
    revision: int
    """Revision of the store at which the keys were read."""
    taken_at: str
    """Time of the backup (ISO 8601, in UTC)."""
    entries: tuple[BackupEntry, ...]
    """The keys, in the order in which they were created."""


class RestoredKeys(NamedTuple):
    """What a restore has changed."""

    replaced: int
    """Number of keys that were removed or replaced."""
    unauthentic: list[str]
    """Keys whose values no process of the fleet had signed; they are restored empty, which readers reject."""


class _File(msgspec.Struct, frozen=True):
    format: int
    sha256: str
    """Checksum of `backup`, in hexadecimal."""
    backup: msgspec.Raw


class _Format(msgspec.Struct, frozen=True):
    format: int


async def take_backup(store: ConfigStore, *, fleet: str, prefix: str, taken_at: str) -> Backup:
    """Read every key under `prefix` at one revision.

    Args:
        store: the store without the verification of signatures, so that values are read as stored.
        fleet: name of the fleet.
        taken_at: the current time (ISO 8601, in UTC), for the file.

    Raises:
        StoreError: the store cannot be read.
    """
    listing = await store.list(prefix + _LAYOUT)
    lasting = sorted((item for item in listing.items if not item.lease_id), key=lambda item: item.create_revision)
    entries = tuple(BackupEntry(item.key.removeprefix(prefix), item.value) for item in lasting)
    return Backup(fleet=fleet, prefix=prefix, revision=listing.revision, taken_at=taken_at, entries=entries)


def write_backup(backup: Backup, path: Path) -> None:
    """Write the file atomically, readable only by its owner.

    Raises:
        OSError: the file cannot be written.
    """
    content = msgspec.json.encode(backup)
    file = _File(FORMAT, sha256(content).hexdigest(), msgspec.Raw(content))
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as opened:
        opened.write(msgspec.json.encode(file))
        opened.flush()
        os.fsync(opened.fileno())
    draft.replace(path)


def read_backup(path: Path) -> Backup:
    """Read a file that `write_backup` wrote.

    Raises:
        BadBackup: the file cannot be read, is damaged, or has another format.
    """
    try:
        content = read_plain_file(path, MAX_FILE_BYTES).content
    except OSError as error:
        raise BadBackup(f"{path}: cannot be read: {error.strerror}; name a file that `penstock backup` wrote") from None
    try:
        format_ = msgspec.json.decode(content, type=_Format).format
        if format_ != FORMAT:
            raise BadBackup(f"{path}: has format {format_}, this release reads {FORMAT}; use the release that wrote it")
        file = msgspec.json.decode(content, type=_File)
        if sha256(file.backup).hexdigest() != file.sha256:
            raise BadBackup(f"{path}: damaged: its checksum does not match; use another copy")
        return msgspec.json.decode(file.backup, type=Backup)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadBackup(f"{path}: not a backup: {error}; name a file that `penstock backup` wrote") from None


async def _read_values(store: ConfigStore, backup: Backup, keyring: Keyring) -> dict[str, bytes]:
    """Return the content of a backup by key; empty for a value that this fleet did not sign.

    Raises:
        RestoreRefused: the backup is of another fleet.
    """
    stored = [KeyValue(backup.prefix + entry.key, entry.value, 1, 1) for entry in backup.entries]
    items = await SignedStore(store, keyring, prefix=backup.prefix).verify(stored)
    values = {item.key: item.value for item in items}
    if not values.get(keys.FLEET):
        raise RestoreRefused(
            f"the backup is of another fleet ({backup.fleet}): no process of this one has signed it; use the"
            " configuration of a control plane of that fleet"
        )
    return values


async def restore_backup(
    store: ConfigStore, backup: Backup, keyring: Keyring, *, prefix: str, force: bool, dry_run: bool = False
) -> RestoredKeys:
    """Write the keys of a backup, signed for this fleet.

    The restore is not one transaction: after a failure, some keys are missing until the backup is restored again with
    `force`.

    Args:
        store: the store without signing.
        keyring: of the control plane that signs the values.
        prefix: prefix of the fleet's keys in this store.
        force: replace the existing keys, and remove keys that the backup lacks.
        dry_run: check everything, and write nothing.

    Raises:
        RestoreRefused: the backup is of another fleet, a control plane runs, or the store has keys of the fleet and
            `force` is not set.
        StoreError: the store cannot be read or written.
    """
    values = await _read_values(store, backup, keyring)
    items = (await store.list(prefix + _LAYOUT, values=False)).items
    running = sorted(
        item.key.removeprefix(prefix) for item in items if item.lease_id and _is_control_plane(item.key, prefix)
    )
    if running:
        raise RestoreRefused(
            f"a control plane uses the store ({', '.join(running)}); stop every control plane, wait a few seconds for"
            " its lease to expire, and try again"
        )
    present = {keys.DEFAULT_PREFIX + item.key.removeprefix(prefix) for item in items if not item.lease_id}
    if present and not force:
        raise RestoreRefused(
            f"the store has {len(present)} keys of the fleet under {prefix}; restore with --force to replace them"
        )
    # A value that no process of the fleet signed is read as empty, and is restored as that.
    operations: list[Put | Delete] = [Delete(key) for key in sorted(present - values.keys())]
    operations += [
        Put(keys.DEFAULT_PREFIX + entry.key, values[keys.DEFAULT_PREFIX + entry.key]) for entry in backup.entries
    ]
    signed = SignedStore(store, keyring, prefix=prefix)
    for batch in () if dry_run else _batches(operations):
        if not (await signed.commit([SameKey(keys.LEADER, 0)], batch)).succeeded:
            raise StoreError("a control plane became leader meanwhile; stop it, and restore again with --force")
    return RestoredKeys(len(present), [key for key, value in values.items() if not value])


def _is_control_plane(key: str, prefix: str) -> bool:
    name = keys.DEFAULT_PREFIX + key.removeprefix(prefix)
    return name == keys.LEADER or name.startswith(keys.CONTROL_PLANES)


def _batches(operations: Sequence[Put | Delete]) -> Iterator[list[Put | Delete]]:
    batch: list[Put | Delete] = []
    size = 0
    for operation in operations:
        length = len(operation.key) + (len(operation.value) if isinstance(operation, Put) else 0)
        if batch and (len(batch) >= MAX_BATCH_OPERATIONS or size + length > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(operation)
        size += length
    if batch:
        yield batch
