"""A second region on another machine: an invitation from the first region, and the directory that it becomes.

The invitation is one file with the identity of the new region's agent, including its private key, so the file is a
secret. The authority's key stays at the first region.
"""

from __future__ import annotations

import io
import os
import tarfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from adapters.files.authority_files import issue_identity, load_authority
from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY, REGION_KEY, load_trust
from adapters.files.plain_file import read_plain_file
from adapters.servers.free_ports import LOOPBACK
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from control_plane.quickstart.places import Place
from control_plane.quickstart.region_dir import (
    FLEET,
    Engine,
    RegionDir,
    UnusableDirectory,
    add_engines,
    agent_settings,
    choose_ports,
    hosts_of,
    require_own,
    whole,
    write_agents_key,
    write_ports,
    write_yaml,
)
from control_plane.quickstart.starter_bundle import region_file
from penstock.wire.identity import BadIdentity, Identity, ProcessRole, SpiffeId

MAX_BYTES = 256 * 1024
"""Maximum size of an invitation; one takes about 5 kB."""

_SETTINGS = "invitation.yaml"
_IDENTITY = (CERTIFICATE, PRIVATE_KEY, AUTHORITIES, REGION_KEY)


class Invitation(NamedTuple):
    """What the agent of a new region has to know."""

    region: str
    host: str
    """IP address of the new region's machine."""
    etcd_endpoint: str
    control_plane_url: str
    models: tuple[str, ...]
    """Models of the policy."""


class UnusableInvitation(Exception):
    """The file is no invitation; the message states the remedy."""


def invite(
    region_dir: RegionDir, region: str, place: Place, host: str, file: Path, *, dry_run: bool = False
) -> list[str]:
    """Add a region to the policy, and write the invitation for its machine. Returns the changes of the policy.

    Args:
        region_dir: the first region.
        host: IP address of the new region's machine.
        file: the invitation; only its owner may read it.
        dry_run: whether only to check and return the changes.

    Raises:
        UnusableDirectory: the region is that of `region_dir`, which cannot be reached from other machines, or a file
            cannot be written.
        PolicyRefused: the region cannot be added to the policy; nothing was written.
    """
    if region_dir.host == LOOPBACK or not region_dir.has_control_plane:
        raise UnusableDirectory(
            f"{region_dir.path}: other machines cannot reach its control plane; start the first region with"
            " --host and an IP address of its machine, in a new --dir"
        )
    if region == region_dir.region:
        raise UnusableDirectory(f"{region} is this machine's own region; name a new one")
    policy = read_folder(region_dir.policy)
    name = f"region-{region}.yaml"
    changed = {**policy, name: region_file(region, place)}
    removed = changed.pop("accepted-losses.yaml", None)
    models = tuple(sorted(compile_bundle(changed).models))
    changes = [
        f"{'replace' if name in policy else 'add'} {name}",
        *(["remove accepted-losses.yaml"] if removed else []),
    ]
    remedy = "name another file, or check owner, mode and space"
    if dry_run:
        if file.exists():
            raise UnusableDirectory(f"{file}: File exists; {remedy}")
        return changes
    identity = region_dir.path / "invited" / region
    agent = SpiffeId(FLEET, ProcessRole.AGENT, f"{region}-1", region)
    invitation = Invitation(region, host, region_dir.etcd_endpoint, region_dir.api_url, models)
    try:
        issue_identity(load_authority(region_dir.authority), agent, hosts_of(host), identity)
        packed = _packed(invitation, identity)
        created = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            with os.fdopen(created, "wb") as target:
                target.write(packed)
            (region_dir.policy / name).write_text(changed[name], encoding="utf-8")
            (region_dir.policy / "accepted-losses.yaml").unlink(missing_ok=True)
        except OSError:
            # A retry refuses a file that exists; it replaces what else was written.
            file.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UnusableDirectory(f"{error.filename or file}: {error.strerror}; {remedy}") from None
    return changes


def join(path: Path, file: Path, engines: Sequence[Engine]) -> RegionDir:
    """Write the directory of an invited region.

    Args:
        path: a directory that is empty or does not exist.

    Raises:
        UnusableInvitation: the file is no invitation, or its certificate is not valid now.
        UnusableDirectory: the directory cannot be written, or an engine serves a model that the fleet does not have.
    """
    invitation, identity = _unpacked(file)
    unknown = sorted({model for engine in engines for model in engine.models} - set(invitation.models))
    if unknown:
        raise UnusableDirectory(
            f"the fleet's policy has no model {', '.join(unknown)}, only {', '.join(invitation.models)}; add it at the"
            " first region and invite again, or name one of these with --model"
        )
    path = path.absolute()
    found = RegionDir(path, invitation.region, choose_ports(invitation.host), invitation.host)
    require_own(
        invitation.host, "join on the machine that has it, or invite again with --host and an address of this one"
    )
    with whole(path):
        for folder in (path, path / "agent", found.agents_key.parent):
            folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        for name, content in identity.items():
            with os.fdopen(os.open(path / "agent" / name, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as target:
                target.write(content)
        try:
            Identity(identity[PRIVATE_KEY], identity[CERTIFICATE], load_trust(path / "agent"), time.time())
        except BadIdentity as error:
            raise UnusableInvitation(f"{file}: {error}; invite the region again, or set the clock") from None
        write_agents_key(found)
        settings = agent_settings(found, invitation.etcd_endpoint, invitation.control_plane_url)
        write_yaml(found.agent_settings, settings)
        add_engines(found, engines)
        write_ports(found)
    return found


def read_invitation(file: Path) -> Invitation:
    """Return what an invitation says; raises UnusableInvitation."""
    return _unpacked(file)[0]


def _packed(invitation: Invitation, identity: Path) -> bytes:
    content = {_SETTINGS: yaml.safe_dump({**invitation._asdict(), "models": list(invitation.models)}).encode()}
    content |= {name: read_plain_file(identity / name, MAX_BYTES).content for name in _IDENTITY}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in content.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o600
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _unpacked(file: Path) -> tuple[Invitation, dict[str, bytes]]:
    remedy = "copy the file that `penstock invite` wrote"
    found: dict[str, bytes] = {}
    try:
        packed = read_plain_file(file, MAX_BYTES).content
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
            for entry in archive:
                content = archive.extractfile(entry) if entry.isreg() and entry.size <= MAX_BYTES else None
                if content is None or entry.name not in (_SETTINGS, *_IDENTITY):
                    raise UnusableInvitation(f"{file}: has an entry {entry.name[:80]!r}, which none has; {remedy}")
                found[entry.name] = content.read()
        settings = yaml.safe_load(found.pop(_SETTINGS))
        invitation = Invitation(**{**settings, "models": tuple(settings["models"])})
        return invitation, {name: found[name] for name in _IDENTITY}
    except OSError as error:
        raise UnusableInvitation(f"{file}: cannot be read: {error.strerror or error}; {remedy}") from None
    except (tarfile.TarError, zlib.error, EOFError, yaml.YAMLError, KeyError, TypeError, ValueError, RecursionError):
        raise UnusableInvitation(f"{file}: is no invitation; {remedy}") from None
