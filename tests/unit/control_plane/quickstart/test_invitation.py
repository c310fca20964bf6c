"""An invitation carries a region's agent to another machine, and nothing else is read as one."""

from __future__ import annotations

import errno
import gzip
import io
import tarfile
import time
import zlib
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from adapters.files.authority_files import IDENTITY_LIFETIME_S
from adapters.files.identity_files import load_identity
from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from control_plane.quickstart import invitation as invitation_module
from control_plane.quickstart.invitation import UnusableInvitation, invite, join
from control_plane.quickstart.places import Place
from control_plane.quickstart.region_dir import Engine, RegionDir, UnusableDirectory, open_region_dir, write_region_dir

HERE, THERE = Place("DE", 52.5, 13.37), Place("FR", 48.87, 2.33)
ENGINE = Engine("http://127.0.0.1:8000", ("m",))


@pytest.fixture
def first(tmp_path: Path) -> RegionDir:
    return write_region_dir(tmp_path / "first", "eu-de", HERE, [ENGINE], "127.0.0.2")


def test_an_invited_region_has_an_identity_and_the_addresses_of_the_first(tmp_path: Path, first: RegionDir) -> None:
    file = tmp_path / "eu-fr.invitation"
    before = read_folder(first.policy)
    assert invite(first, "eu-fr", THERE, "127.0.0.3", file, dry_run=True) == [
        "add region-eu-fr.yaml",
        "remove accepted-losses.yaml",
    ]
    assert (read_folder(first.policy), file.exists(), (first.path / "invited").exists()) == (before, False, False)
    invite(first, "eu-fr", THERE, "127.0.0.3", file)
    assert file.stat().st_mode & 0o077 == 0
    assert set(compile_bundle(read_folder(first.policy)).regions) == {"eu-de", "eu-fr"}
    second = join(tmp_path / "second", file, [ENGINE])
    settings = yaml.safe_load(second.agent_settings.read_text())
    assert settings["etcd_endpoints"] == [first.etcd_endpoint]
    assert settings["control_plane_urls"] == [first.api_url] == [f"https://127.0.0.2:{first.ports['api']}"]
    assert settings["peer_listen"].startswith("127.0.0.3:")
    identity = load_identity(second.path / "agent", time.time())
    assert (identity.id.region, identity.id.name) == ("eu-fr", "eu-fr-1")
    assert open_region_dir(second.path) == second
    assert not second.has_control_plane
    assert not (second.path / "authority").exists()


def test_an_engine_with_a_model_that_the_fleet_lacks_is_refused(tmp_path: Path, first: RegionDir) -> None:
    invite(first, "eu-fr", THERE, "127.0.0.3", tmp_path / "file")
    with pytest.raises(UnusableDirectory, match="the fleet's policy has no model other, only m"):
        join(tmp_path / "second", tmp_path / "file", [Engine(ENGINE.url, ("other",))])
    assert not (tmp_path / "second").exists()


def test_an_invitation_whose_certificate_has_expired_is_refused(
    tmp_path: Path, first: RegionDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    invite(first, "eu-fr", THERE, "127.0.0.3", tmp_path / "file")
    later = time.time() + IDENTITY_LIFETIME_S + 1.0
    monkeypatch.setattr(invitation_module, "time", SimpleNamespace(time=lambda: later))
    with pytest.raises(UnusableInvitation, match=r"is valid from .* only; invite the region again"):
        join(tmp_path / "second", tmp_path / "file", [ENGINE])
    assert not (tmp_path / "second").exists()


def test_an_invitation_for_another_machine_is_refused(tmp_path: Path, first: RegionDir) -> None:
    invite(first, "eu-fr", THERE, "198.51.100.77", tmp_path / "file")
    with pytest.raises(UnusableDirectory, match=r"198\.51\.100\.77 is no address of this machine; .* invite again"):
        join(tmp_path / "second", tmp_path / "file", [ENGINE])
    assert not (tmp_path / "second").exists()


def test_an_invalid_region_changes_nothing(tmp_path: Path, first: RegionDir) -> None:
    before = read_folder(first.policy)
    with pytest.raises(PolicyRefused):
        invite(first, "Eu-Fr", THERE, "127.0.0.3", tmp_path / "file")
    (tmp_path / "there").touch()
    for dry_run in (True, False):
        with pytest.raises(UnusableDirectory, match="File exists; name another file"):
            invite(first, "eu-fr", THERE, "127.0.0.3", tmp_path / "there", dry_run=dry_run)
    assert read_folder(first.policy) == before
    assert not (tmp_path / "file").exists()


def test_a_region_that_other_machines_cannot_reach_invites_none(tmp_path: Path) -> None:
    alone = write_region_dir(tmp_path / "alone", "local", HERE, [ENGINE])
    with pytest.raises(UnusableDirectory, match="start the first region with --host"):
        invite(alone, "eu-fr", THERE, "127.0.0.3", tmp_path / "file")


def test_the_own_region_is_not_invited(tmp_path: Path, first: RegionDir) -> None:
    before = read_folder(first.policy)
    with pytest.raises(UnusableDirectory, match="eu-de is this machine's own region; name a new one"):
        invite(first, "eu-de", THERE, "127.0.0.3", tmp_path / "file")
    assert read_folder(first.policy) == before
    assert not (tmp_path / "file").exists()
    assert not (first.path / "invited").exists()


@pytest.mark.parametrize("method", ["write_text", "unlink"])
def test_a_failed_invitation_can_be_repeated(
    tmp_path: Path, first: RegionDir, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    real = getattr(Path, method)

    def fails_in_the_policy(path: Path, *given: Any, **named: Any) -> Any:
        if path.parent == first.policy:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Path, method, fails_in_the_policy)
        with pytest.raises(UnusableDirectory, match="No space left on device"):
            invite(first, "eu-fr", THERE, "127.0.0.3", tmp_path / "file")
    invite(first, "eu-fr", THERE, "127.0.0.3", tmp_path / "file")
    assert join(tmp_path / "second", tmp_path / "file", [ENGINE]).region == "eu-fr"


def packed(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        entry = tarfile.TarInfo(name)
        entry.size, entry.type, entry.linkname = len(content), kind, "/etc/passwd"
        archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def damaged() -> bytes:
    """An archive in the middle of whose first file the compressed data is invalid, as after a faulty copy."""
    whole = gzip.decompress(packed("ca.crt", Random(1).randbytes(100_000)))
    compressor = zlib.compressobj(wbits=31)
    return compressor.compress(whole[:50_000]) + compressor.flush(zlib.Z_FULL_FLUSH) + b"\xff" * 64


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 100,
        packed("../../evil"),
        packed("tls.key", kind=tarfile.SYMTYPE),
        packed("invitation.yaml", b"region: x"),
        packed("invitation.yaml", b"- not: a mapping"),
        packed("invitation.yaml", b"region: [" * 1000),
        packed("ca.crt", b"0" * (300 * 1024)),
        damaged(),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UnusableInvitation, match="copy the file that `penstock invite` wrote"):
        join(tmp_path / "second", tmp_path / "file", [ENGINE])
    assert not (tmp_path / "second").exists()
