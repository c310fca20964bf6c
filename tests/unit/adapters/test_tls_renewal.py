"""A certificate that other processes reject does not replace the one in force."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from adapters.files.authority_files import _write
from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY, IdentityFiles
from adapters.tls_contexts import ClientTls, ServerTls
from penstock.wire.identity import ProcessRole, SpiffeId
from tests.support.identities import HOSTS, agent_id, authority, control_plane_id, write_identity

HOUR_S = 3600.0


def tls_of(directory: Path, *, server: bool) -> ServerTls | ClientTls:
    certificate, key, authorities = (directory / name for name in (CERTIFICATE, PRIVATE_KEY, AUTHORITIES))
    return ServerTls(certificate, key, authorities) if server else ClientTls(authorities, certificate, key)


def issue(directory: Path, start: float, lifetime_s: float) -> None:
    key, certificate = authority().issue(agent_id(), HOSTS, start, lifetime_s)
    _write(directory, {PRIVATE_KEY: key, CERTIFICATE: certificate})


@pytest.mark.parametrize("server", [True, False])
@pytest.mark.parametrize("start_s", [-3 * HOUR_S, 2 * HOUR_S], ids=["expired", "not valid yet"])
def test_the_last_good_certificate_stays(tmp_path: Path, server: bool, start_s: float) -> None:
    directory = write_identity(tmp_path / "identity", agent_id())
    tls = tls_of(directory, server=server)
    before = tls()
    issue(directory, time.time() + start_s, HOUR_S)
    with capture_logs() as logs:
        assert not tls.files.reload_if_changed()
    assert tls() is before
    assert "only; replace it" in tls.files.problem
    assert [log["event"] for log in logs] == ["file not loaded; the last good content stays in force"]
    issue(directory, time.time(), HOUR_S)
    assert tls.files.reload_if_changed()
    assert (tls() is before, tls.files.problem) == (False, "")


@pytest.mark.parametrize("server", [True, False])
@pytest.mark.parametrize(
    ("other", "fleet", "reason"),
    [
        (control_plane_id(), 0, "identifies spiffe://test/control-plane/cp-1, but this process is the agent"),
        (agent_id("us"), 0, "identifies spiffe://test/agent/us/agent-1, but this process is the agent"),
        (agent_id(), 1, "no authority of this fleet vouches for the certificate"),
    ],
    ids=["of a control plane", "of another agent", "of an authority that is not trusted"],
)
def test_only_an_identity_of_the_process_replaces_its_identity(
    tmp_path: Path, server: bool, other: SpiffeId, fleet: int, reason: str
) -> None:
    own = write_identity(tmp_path / "own", agent_id())
    another = write_identity(tmp_path / "another", other, fleet)
    tls = tls_of(own, server=server)
    tls.presented.follow(IdentityFiles(own, ProcessRole.AGENT, "agent-1", "eu"))
    before = tls()
    for name in (CERTIFICATE, PRIVATE_KEY):
        (own / name).write_bytes((another / name).read_bytes())
    assert not tls.files.reload_if_changed()
    assert tls() is before
    assert reason in tls.files.problem
    issue(own, time.time(), HOUR_S)
    assert tls.files.reload_if_changed()


def test_a_certificate_that_is_no_identity_may_be_any(tmp_path: Path) -> None:
    own, listener = (write_identity(tmp_path / name, agent_id()) for name in ("own", "listener"))
    tls = tls_of(listener, server=True)
    tls.presented.follow(IdentityFiles(own, ProcessRole.AGENT, "agent-1", "eu"))
    another = write_identity(tmp_path / "another", control_plane_id())
    for name in (CERTIFICATE, PRIVATE_KEY):
        (listener / name).write_bytes((another / name).read_bytes())
    assert tls.files.reload_if_changed()


def test_an_expired_certificate_is_better_than_none_at_the_start(tmp_path: Path) -> None:
    directory = write_identity(tmp_path / "identity", agent_id())
    issue(directory, time.time() - 3 * HOUR_S, HOUR_S)
    assert tls_of(directory, server=True)() is not None
