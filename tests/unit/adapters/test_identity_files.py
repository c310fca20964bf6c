"""The files of an identity: loaded, rotated without restart, and refused with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.authority_files import issue_identity
from adapters.identity_files import (
    AUTHORITIES,
    CERTIFICATE,
    PRIVATE_KEY,
    REGION_KEY,
    REVOKED,
    IdentityFiles,
    load_region_key,
)
from adapters.secret_file import BadSecret
from penstock.wire.identity import BadIdentity, ProcessRole
from tests.support.identities import agent_id, authority, control_plane_id, renew_identity, write_identity


def load(directory: Path) -> IdentityFiles:
    return IdentityFiles(directory, ProcessRole.AGENT, "agent-1", "eu")


def test_a_renewed_certificate_is_used_without_restart(tmp_path: Path) -> None:
    files = load(write_identity(tmp_path, agent_id()))
    before = files.sessions.identity.peer.serial
    assert not files.reload()
    renew_identity(tmp_path, agent_id())
    assert files.reload()
    assert files.sessions.identity.peer.serial != before


def test_a_bad_renewal_leaves_the_last_identity_in_use(tmp_path: Path) -> None:
    files = load(write_identity(tmp_path, agent_id()))
    before = files.sessions.identity
    (tmp_path / CERTIFICATE).write_bytes(b"half a certifica")
    assert not files.reload()
    assert files.sessions.identity is before


def test_a_revocation_takes_effect_without_restart(tmp_path: Path) -> None:
    files = load(write_identity(tmp_path / "own", agent_id()))
    other = IdentityFiles(write_identity(tmp_path / "cp", control_plane_id()), ProcessRole.CONTROL_PLANE, "cp-1")
    peer = other.sessions.identity.peer
    assert files.sessions.session_with(peer.certificate, peer.not_before)
    (tmp_path / "own" / REVOKED).write_text(f"# stolen\n0x{peer.serial.upper()}\n")
    assert files.reload()
    with pytest.raises(BadIdentity, match="revoked"):
        files.sessions.session_with(peer.certificate, peer.not_before)


def test_a_certificate_for_another_process_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSecret, match=r"tls\.crt: identifies spiffe://test/agent/us/agent-1, .* agent agent-1 eu"):
        load(write_identity(tmp_path, agent_id("us")))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (PRIVATE_KEY, b"x", "the private key is not PEM"),
        (CERTIFICATE, b"x", "not PEM"),
        (AUTHORITIES, b"x", "not PEM"),
        (REVOKED, b"not hexadecimal", "no serial number"),
    ],
)
def test_a_bad_file_is_named_with_the_remedy(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    write_identity(tmp_path, agent_id())
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadSecret, match=message) as caught:
        load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert name == REVOKED or "penstock certs issue" in str(caught.value)


def test_a_private_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    write_identity(tmp_path, agent_id())
    (tmp_path / PRIVATE_KEY).chmod(0o644)
    with pytest.raises(BadSecret, match="accessible to every user"):
        load(tmp_path)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSecret, match=r"nowhere/tls\.key: cannot read the private key.*penstock certs issue"):
        load(tmp_path / "nowhere")


def test_the_agents_of_a_region_share_a_key_and_no_other_process_has_it(tmp_path: Path) -> None:
    def key(region: str, name: str, fleet: int = 0) -> bytes:
        directory = issue_identity(authority(fleet), agent_id(region, name), (), tmp_path / f"{region}-{name}-{fleet}")
        assert (directory / REGION_KEY).stat().st_mode & 0o077 == 0
        return load_region_key(directory)

    shared = key("eu", "a")
    assert key("eu", "b") == shared
    assert shared not in (key("us", "a"), key("eu", "a", fleet=1))
    assert not (issue_identity(authority(), control_plane_id(), (), tmp_path / "cp") / REGION_KEY).exists()


@pytest.mark.parametrize("content", ["", "x" * 64, "ab" * 31, "ab" * 33])
def test_a_bad_region_key_is_refused_with_the_remedy(tmp_path: Path, content: str) -> None:
    write_identity(tmp_path, agent_id())
    (tmp_path / REGION_KEY).write_text(content)
    with pytest.raises(BadSecret, match=r"region\.key: not 64 hexadecimal characters; make .* copy the file") as caught:
        load_region_key(tmp_path)
    assert not content or content not in str(caught.value)


def test_a_region_key_that_every_user_may_read_is_refused(tmp_path: Path) -> None:
    write_identity(tmp_path, agent_id())
    (tmp_path / REGION_KEY).chmod(0o644)
    with pytest.raises(BadSecret, match="accessible to every user"):
        load_region_key(tmp_path)
    (tmp_path / REGION_KEY).unlink()
    with pytest.raises(BadSecret, match=r"cannot read the key of the region"):
        load_region_key(tmp_path)
