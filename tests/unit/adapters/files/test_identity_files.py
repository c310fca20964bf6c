"""The files of an identity are loaded, rotated without a restart, and refused with a remedy."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from adapters.files import watched_files
from adapters.files.authority_files import issue_identity
from adapters.files.identity_files import (
    AUTHORITIES,
    CERTIFICATE,
    PRIVATE_KEY,
    REGION_KEY,
    REVOKED,
    IdentityFiles,
    load_region_keys,
)
from adapters.files.secret_file import BadSecret, read_secret
from adapters.files.secret_reload import SecretFile
from adapters.tls_contexts import ServerTls
from penstock.wire.identity import BadIdentity, ProcessRole
from penstock.wire.peer_keys import BadSignature
from penstock.wire.region_key import KEY_BYTES, RegionKey, RegionKeys
from tests.support.descriptors import no_free_descriptors
from tests.support.identities import START, agent_id, authority, control_plane_id, renew_identity, write_identity


def load(directory: Path) -> IdentityFiles:
    return IdentityFiles(directory, ProcessRole.AGENT, "agent-1", "eu")


def test_a_renewed_certificate_is_used_without_restart(tmp_path: Path) -> None:
    files = load(write_identity(tmp_path, agent_id()))
    before = files.keyring.identity.peer.serial
    assert not files.reload()
    renew_identity(tmp_path, agent_id())
    assert files.reload()
    assert files.keyring.identity.peer.serial != before


def test_a_bad_renewal_leaves_the_last_identity_in_use(tmp_path: Path) -> None:
    files = load(write_identity(tmp_path, agent_id()))
    before = files.keyring.identity
    (tmp_path / CERTIFICATE).write_bytes(b"half a certifica")
    assert not files.reload()
    assert files.keyring.identity is before


def test_a_certificate_that_could_not_be_used_at_first_is_used_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # After a load that takes 20 ms of CPU time the next one would be seconds later.
    monkeypatch.setattr(watched_files, "RETRY_FACTOR", 0.0)
    now = START
    files = IdentityFiles(write_identity(tmp_path, agent_id()), ProcessRole.AGENT, "agent-1", "eu", clock=lambda: now)
    tls = ServerTls(tmp_path / CERTIFICATE, tmp_path / PRIVATE_KEY, tmp_path / AUTHORITIES)
    before, context = files.keyring.identity.peer.serial, tls()
    renew_identity(tmp_path, agent_id())
    with capture_logs() as logged:
        assert not files.reload(), "by the clock of this process the certificate is not valid yet"
        assert not files.reload()
        with no_free_descriptors():
            tls.files.reload_if_changed()
            tls.files.reload_if_changed()
    assert [entry["log_level"] for entry in logged] == ["error", "error"]
    assert tls() is context
    now = time.time()
    assert files.reload()
    tls.files.reload_if_changed()
    assert files.keyring.identity.peer.serial != before
    assert tls() is not context


def test_a_revocation_takes_effect_without_restart(tmp_path: Path) -> None:
    files = load(write_identity(tmp_path / "own", agent_id()))
    other = IdentityFiles(write_identity(tmp_path / "cp", control_plane_id()), ProcessRole.CONTROL_PLANE, "cp-1")
    peer = other.keyring.identity.peer
    assert files.keyring.keys_with(peer.certificate, peer.not_before)
    (tmp_path / "own" / REVOKED).write_text(f"# stolen\n0x{peer.serial.upper()}\n")
    assert files.reload()
    with pytest.raises(BadIdentity, match="revoked"):
        files.keyring.keys_with(peer.certificate, peer.not_before)
    (tmp_path / "own" / REVOKED).write_text("")
    assert not files.reload()
    with pytest.raises(BadIdentity, match="revoked"):
        files.keyring.keys_with(peer.certificate, peer.not_before)


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
        (REVOKED, b"", "lists no serial number; restore its content, or remove the file"),
        (REVOKED, b"# none\n", "lists no serial number"),
    ],
)
def test_a_bad_file_is_named_with_the_remedy(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    write_identity(tmp_path, agent_id())
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadSecret, match=message) as caught:
        load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert name == REVOKED or "penstock certs issue" in str(caught.value)


def test_an_expired_certificate_is_named_as_such_with_the_remedy(tmp_path: Path) -> None:
    write_identity(tmp_path, agent_id())
    with pytest.raises(BadSecret, match=r"is valid from .* only; renew it with `penstock certs rotate`"):
        IdentityFiles(tmp_path, ProcessRole.AGENT, "agent-1", "eu", clock=lambda: START + 400 * 86_400.0)


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
        (found,) = load_region_keys(directory / REGION_KEY).keys
        return found

    shared = key("eu", "a")
    assert key("eu", "b") == shared
    assert shared not in (key("us", "a"), key("eu", "a", fleet=1))
    assert not (issue_identity(authority(), control_plane_id(), (), tmp_path / "cp") / REGION_KEY).exists()


@pytest.mark.parametrize("content", ["", "x" * 64, "ab" * 31, "ab" * 33, ("ab" * 32 + "\n") * 4])
def test_a_bad_region_key_is_refused_with_the_remedy(tmp_path: Path, content: str) -> None:
    write_identity(tmp_path, agent_id())
    (tmp_path / REGION_KEY).write_text(content)
    with pytest.raises(
        BadSecret, match=r"region\.key: not 1 to 3 lines of 64 hexadecimal characters; make .* copy the file"
    ) as caught:
        load_region_keys(tmp_path / REGION_KEY)
    assert not content or content not in str(caught.value)


def test_a_region_key_that_every_user_may_read_is_refused(tmp_path: Path) -> None:
    write_identity(tmp_path, agent_id())
    (tmp_path / REGION_KEY).chmod(0o644)
    with pytest.raises(BadSecret, match="accessible to every user"):
        load_region_keys(tmp_path / REGION_KEY)
    (tmp_path / REGION_KEY).unlink()
    with pytest.raises(BadSecret, match=r"cannot read the key of the region"):
        load_region_keys(tmp_path / REGION_KEY)


def test_a_region_key_rotates_without_a_gap(tmp_path: Path) -> None:
    old, new = b"o" * KEY_BYTES, b"n" * KEY_BYTES
    path = tmp_path / REGION_KEY

    def write(*keys: bytes) -> None:
        path.with_suffix(".new").touch(mode=0o600)
        path.with_suffix(".new").write_text("".join(f"{key.hex()}\n" for key in keys))
        path.with_suffix(".new").replace(path)

    write(old)
    file = SecretFile(path, load_region_keys)
    ours, theirs = RegionKey(file.secret, "eu"), RegionKey(RegionKeys(old), "eu")
    later = RegionKey(RegionKeys(new, old), "eu")
    with pytest.raises(BadSignature):
        ours.open(later.seal(b"load"))
    write(old, new)
    file.files.reload_if_changed()
    assert ours.open(later.seal(b"load")) == b"load"
    assert theirs.open(ours.seal(b"load")) == b"load"
    write(new, old)
    file.files.reload_if_changed()
    assert later.open(ours.seal(b"load")) == b"load"
    assert ours.open(theirs.seal(b"load")) == b"load"
    path.write_text("half")
    file.files.reload_if_changed()
    assert later.open(ours.seal(b"load")) == b"load"
    write(new)
    file.files.reload_if_changed()
    with pytest.raises(BadSignature):
        ours.open(theirs.seal(b"load"))


def test_a_mounted_secret_is_read_again_when_its_link_is_swapped(tmp_path: Path) -> None:
    """In Kubernetes each file is a link into `..data`, which is a link to a directory; an update replaces that link."""
    mount = tmp_path / "mount"
    mount.mkdir()

    def publish(version: str) -> None:
        made = issue_identity(authority(), agent_id(), (), mount / version)
        for name in (PRIVATE_KEY, CERTIFICATE, AUTHORITIES, REGION_KEY):
            (made / name).chmod(0o440)
        (mount / "..new").symlink_to(version)
        (mount / "..new").rename(mount / "..data")

    publish("..2026_01")
    for name in (PRIVATE_KEY, CERTIFICATE, AUTHORITIES, REGION_KEY):
        (mount / name).symlink_to(f"..data/{name}")
    files = load(mount)
    tls = ServerTls(mount / CERTIFICATE, mount / PRIVATE_KEY, mount / AUTHORITIES)
    before, context = files.keyring.identity.peer.serial, tls()
    assert not files.reload()
    publish("..2026_02")
    assert files.reload()
    tls.files.reload_if_changed()
    assert files.keyring.identity.peer.serial != before
    assert tls() is not context


def test_a_systemd_credential_may_be_read(tmp_path: Path) -> None:
    """systemd gives the service's user access by the mode 0400, or 0440 with an access control list."""
    for mode in (0o400, 0o440):
        credential = tmp_path / f"{mode:o}"
        credential.write_text("0123456789abcdef0123\n")
        credential.chmod(mode)
        assert read_secret(credential, "token", min_bytes=16) == b"0123456789abcdef0123"
