"""`penstock certs`: creation of an authority, issue, renewal and check of certificates."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from adapters.files.identity_files import IdentityFiles
from adapters.files.secret_file import BadSecret
from penstock.wire.identity import ProcessRole
from tests.support.cli import run


@pytest.fixture
def authority(tmp_path: Path) -> str:
    directory = str(tmp_path / "authority")
    assert run("certs", "init", "prod", "--authority", directory).exit_code == 0
    return directory


@pytest.mark.parametrize("name", ["ca.key", "ca.crt"])
def test_an_authority_can_be_made_after_a_failed_write(tmp_path: Path, name: str) -> None:
    in_the_way = tmp_path / f".{name}.new"
    in_the_way.mkdir()
    failed = run("certs", "init", "prod", "--authority", str(tmp_path))
    assert (failed.exit_code, "cannot be written" in failed.stderr) == (2, True)
    in_the_way.rmdir()
    again = run("certs", "init", "prod", "--authority", str(tmp_path))
    assert again.exit_code == 0, again.stderr
    issue_agent(str(tmp_path), tmp_path / "agent")


def issue_agent(authority: str, out: Path, *options: str) -> None:
    arguments = ("eu", "agent-1", "--authority", authority, "--out", str(out), "--host", "agent-1.eu.example", *options)
    result = run("certs", "issue", "agent", *arguments)
    assert result.exit_code == 0, result.output
    assert "spiffe://prod/agent/eu/agent-1" in result.output


def test_issued_and_renewed_certificates_are_usable(authority: str, tmp_path: Path) -> None:
    out = tmp_path / "agent"
    issue_agent(authority, out)
    files = IdentityFiles(out, ProcessRole.AGENT, "agent-1", "eu")
    before = files.keyring.identity.peer
    assert run("certs", "rotate", str(out), "--authority", authority).exit_code == 0
    assert files.reload()
    assert files.keyring.identity.id == before.id
    assert files.keyring.identity.peer.serial != before.serial


def test_rotation_keeps_the_key_of_the_region_and_every_authority_that_is_trusted(
    authority: str, tmp_path: Path
) -> None:
    issue_agent(authority, tmp_path / "agent")
    key = tmp_path / "agent" / "region.key"
    key.write_text("ab" * 32)
    next_authority = str(tmp_path / "next")
    assert run("certs", "init", "prod", "--authority", next_authority).exit_code == 0
    for issuer, is_new in ((next_authority, True), (authority, False), (next_authority, False)):
        rotated = run("certs", "rotate", str(tmp_path / "agent"), "--authority", issuer)
        assert (rotated.exit_code, "all other processes have to trust it too" in rotated.stderr) == (0, is_new)
    assert key.read_text() == "ab" * 32
    trusted = (tmp_path / "agent" / "ca.crt").read_bytes()
    assert trusted == b"".join((Path(directory) / "ca.crt").read_bytes() for directory in (authority, next_authority))


def test_an_authority_certifies_fleets_of_several_names(authority: str, tmp_path: Path) -> None:
    issue_agent(authority, tmp_path / "agent")
    staging = ("eu", "agent-1", "--authority", authority, "--host", "h", "--fleet", "staging")
    issued = run("certs", "issue", "agent", *staging, "--out", str(tmp_path / "staging"))
    assert "spiffe://staging/agent/eu/agent-1" in issued.output
    keys = {(tmp_path / out / "region.key").read_text() for out in ("agent", "staging")}
    assert len(keys) == 2, "the loads of one fleet's region do not count in the other's"
    renamed = run("certs", "rotate", str(tmp_path / "agent"), "--authority", authority, "--fleet", "staging")
    assert "spiffe://staging/agent/eu/agent-1" in renamed.output
    assert "spiffe://staging/" in run("certs", "rotate", str(tmp_path / "agent"), "--authority", authority).output


def test_the_authority_of_another_fleet_does_not_renew_a_certificate(authority: str, tmp_path: Path) -> None:
    issue_agent(authority, tmp_path / "agent")
    other = str(tmp_path / "other")
    assert run("certs", "init", "other", "--authority", other).exit_code == 0
    result = run("certs", "rotate", str(tmp_path / "agent"), "--authority", other)
    assert result.exit_code == 2
    assert "this is the authority of fleet 'other', not of 'prod'" in result.output


def test_a_control_plane_has_a_certificate_too(authority: str, tmp_path: Path) -> None:
    out = tmp_path / "cp"
    arguments = ("cp-1", "--authority", authority, "--out", str(out), "--host", "10.0.0.1", "-o", "json")
    result = run("certs", "issue", "control-plane", *arguments)
    assert msgspec.json.decode(result.stdout)["id"] == "spiffe://prod/control-plane/cp-1"
    IdentityFiles(out, ProcessRole.CONTROL_PLANE, "cp-1")


@pytest.mark.parametrize(("role", "options"), [("server", ("--host", "etcd-1.example")), ("monitor", ())])
def test_servers_and_monitors_have_certificates_that_renew(
    authority: str, tmp_path: Path, role: str, options: tuple[str, ...]
) -> None:
    out = str(tmp_path / role)
    result = run("certs", "issue", role, "one", "--authority", authority, "--out", out, *options)
    assert f"spiffe://prod/{role}/one" in result.output
    assert run("certs", "rotate", out, "--authority", authority).exit_code == 0
    assert run("certs", "check", out).exit_code == 0
    for process in (ProcessRole.AGENT, ProcessRole.CONTROL_PLANE):
        with pytest.raises(BadSecret, match=f"identifies spiffe://prod/{role}/one"):
            IdentityFiles(Path(out), process, "one")


def test_private_keys_are_readable_by_their_owner_only(authority: str, tmp_path: Path) -> None:
    issue_agent(authority, tmp_path / "agent")
    for key in (Path(authority) / "ca.key", tmp_path / "agent" / "tls.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_a_certificate_that_expires_soon_fails_the_check(authority: str, tmp_path: Path) -> None:
    issue_agent(authority, tmp_path / "long")
    issue_agent(authority, tmp_path / "short", "--days", "2")
    assert run("certs", "check", str(tmp_path / "long")).exit_code == 0
    result = run("certs", "check", str(tmp_path / "long"), str(tmp_path / "short"))
    assert result.exit_code == 1
    assert "expires within 14 days" in result.output
    assert run("certs", "check", str(tmp_path / "short"), "--days", "1").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("init", "prod", "--authority", "{authority}"), "there is an authority already"),
        (("init", "Not A Name", "--authority", "{tmp}/other"), "is neither spiffe://"),
        (("issue", "agent", "EU", "a", "--authority", "{authority}", "--out", "{tmp}/x", "--host", "h"), "is neither"),
        (("issue", "agent", "eu", "a", "--authority", "{authority}", "--out", "{tmp}/x", "--host", "ä"), "'ä' is"),
        (("issue", "agent", "eu", "a", "--authority", "{tmp}/no", "--out", "{tmp}/x", "--host", "h"), "certs init"),
        (("rotate", "{tmp}/none", "--authority", "{authority}"), "certs issue"),
        (("check", "{tmp}/none"), "certs issue"),
    ],
)
def test_bad_input_is_named_with_the_remedy(
    authority: str, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = run("certs", *(argument.format(authority=authority, tmp=tmp_path) for argument in arguments))
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "x").exists()
