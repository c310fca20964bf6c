"""`penstock backup` and `penstock restore`: the fleet's keys in etcd as one file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adapters.configuration.config_options import ConfigOption
from control_plane.cli.error_output import EXIT_FAILED, UsageFault, exit_on_error, fail
from control_plane.cli.output import Output, OutputOption, print_as

if TYPE_CHECKING:
    from adapters.etcd.etcd_store import EtcdStore
    from adapters.store.signed_store import SignedStore
    from control_plane.settings import ControlPlaneSettings
    from penstock.wire.peer_keys import Keyring

FileArgument = Annotated[Path, typer.Argument(help="The backup.", show_default=False)]


def backup(file: FileArgument, config: ConfigOption = None, output: OutputOption = Output.TABLE) -> None:
    """Write every key of the fleet in etcd into one file, as of one revision.

    Run it where a control plane is configured: the settings of `penstock serve` name etcd, the prefix and the identity.
    The file has digests of API keys and the audit log; only its owner may read it.
    """
    _run("backup", _backup(file, config, output))


def restore(
    file: FileArgument,
    config: ConfigOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the fleet's keys that etcd has.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the backup and etcd, and write nothing.", show_default=False)
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write the keys of a backup into etcd, while no control plane runs.

    Refused for the backup of another fleet, and without --force if etcd has keys of the fleet. Plans of the restored
    fleet have a larger epoch than plans at the time of the backup. See docs/disaster-recovery.md.
    """
    _run("restore", _restore(file, config, output, force=force, dry_run=dry_run))


def _run(command: str, work: Any) -> None:
    from adapters.configuration.settings_loader import BadSettings
    from adapters.logs import warnings_on_stderr
    from adapters.store.config_store import StoreError
    from adapters.store.store_backup import BadBackup, RestoreRefused

    with exit_on_error(command), warnings_on_stderr():
        try:
            asyncio.run(work)
        except (BadSettings, BadBackup) as error:
            raise UsageFault(str(error)) from None
        except (RestoreRefused, StoreError, OSError) as error:
            fail(command, str(error), EXIT_FAILED)


async def _backup(file: Path, config: Path | None, output: Output) -> None:
    from adapters.store import keys
    from adapters.store.config_store import StoreError
    from adapters.store.store_backup import take_backup, write_backup

    async with _stores(config) as (settings, keyring, etcd, store):
        fleet = await store.get(keys.FLEET)
        if fleet is None or not fleet.value:
            reason = "has no fleet" if fleet is None else "belongs to another fleet, or its signature is revoked"
            raise StoreError(f"{settings.etcd_prefix}: the store {reason}; check etcd_endpoints and etcd_prefix")
        name = keyring.identity.id.trust_domain
        now = datetime.now(UTC).isoformat(timespec="seconds")
        taken = await take_backup(etcd, fleet=name, prefix=settings.etcd_prefix, taken_at=now)
    write_backup(taken, file)
    summary = {"file": str(file), "fleet": name, "keys": len(taken.entries), "revision": taken.revision}
    print_as(output, summary, lambda: f"{file}: {len(taken.entries)} keys of fleet {name} at revision {taken.revision}")


async def _restore(file: Path, config: Path | None, output: Output, *, force: bool, dry_run: bool) -> None:
    from adapters.store import keys
    from adapters.store.codec import CodecError, decode, encode
    from adapters.store.config_store import Put
    from adapters.store.store_backup import BadBackup, read_backup, restore_backup
    from control_plane.planning.plan_epoch import EpochBase

    saved = read_backup(file)
    async with _stores(config) as (settings, keyring, etcd, store):
        restored = await restore_backup(etcd, saved, keyring, prefix=settings.etcd_prefix, force=force, dry_run=dry_run)
        item = await store.get(keys.EPOCH_BASE)
        try:
            base = decode(item.value, EpochBase).base if item is not None else 0
        except CodecError as error:
            raise BadBackup(f"{file}: {keys.EPOCH_BASE}: {error}") from None
        if not dry_run:
            # Plans from before the backup have at most this epoch, and a new etcd restarts its revisions (ADR 7).
            await store.commit([], [Put(keys.EPOCH_BASE, encode(EpochBase(base + saved.revision)))])
    summary = {
        "file": str(file),
        "fleet": saved.fleet,
        "taken_at": saved.taken_at,
        "keys": len(saved.entries),
        "replaced": restored.replaced,
        "unauthentic": restored.unauthentic,
    }

    def view() -> str:
        verb = "would restore" if dry_run else "restored"
        lines = [f"{verb} {len(saved.entries)} keys of fleet {saved.fleet}, as of {saved.taken_at}"]
        lines += [f"not signed by a process of the fleet, so ignored: {key}" for key in restored.unauthentic]
        return "\n".join(lines)

    print_as(output, summary, view)


@asynccontextmanager
async def _stores(
    config: Path | None,
) -> AsyncIterator[tuple[ControlPlaneSettings, Keyring, EtcdStore, SignedStore]]:
    """Yield the settings of a control plane, its keyring, the store without signatures, and the signed store."""
    from adapters.etcd.etcd_store import EtcdStore
    from adapters.files.identity_files import IdentityFiles
    from adapters.store.signed_store import SignedStore
    from control_plane.serve import tls_to_etcd
    from control_plane.settings import load_settings
    from penstock.wire.identity import ProcessRole

    settings = load_settings(config=config)
    prefix = settings.etcd_prefix
    identity = IdentityFiles(settings.identity_dir, ProcessRole.CONTROL_PLANE, settings.name, prefix=prefix)
    keyring = identity.keyring
    etcd = EtcdStore(settings.etcd_endpoints, tls=tls_to_etcd(settings))
    try:
        yield settings, keyring, etcd, SignedStore(etcd, keyring, prefix=prefix)
    finally:
        await etcd.close()
