"""The expiry times of certificates in files."""

from __future__ import annotations

import time
from pathlib import Path

from adapters.files.certificate_expiry import CertificateExpiry
from penstock.wire.identity import Identity
from tests.support.descriptors import no_free_descriptors
from tests.support.identities import YEAR_S, agent_id, authority, trust


def write(path: Path, lifetime_s: float) -> float:
    """Write a new certificate; returns when it expires."""
    key, certificate = authority().issue(agent_id(), (), time.time(), lifetime_s)
    path.with_suffix(".new").write_bytes(certificate)
    path.with_suffix(".new").replace(path)
    return Identity(key, certificate, trust(), time.time()).peer.not_after


def test_a_renewed_file_is_read_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "tls.crt"
    expiry = CertificateExpiry({"identity": file, "admin": None, "etcd": tmp_path / "missing"})
    assert expiry.by_use() == {}
    first = write(file, YEAR_S)
    assert expiry.reload_if_changed()
    assert expiry.by_use() == {"identity": first}
    renewed = write(file, 2 * YEAR_S)
    assert renewed > first
    assert expiry.reload_if_changed()
    assert expiry.by_use() == {"identity": renewed}
    file.write_text("half of it")
    assert not expiry.reload_if_changed()
    assert expiry.by_use() == {"identity": renewed}


def test_a_file_that_could_not_be_read_at_first_is_read_later(tmp_path: Path) -> None:
    file = tmp_path / "tls.crt"
    expires_at = write(file, YEAR_S)
    with no_free_descriptors():
        expiry = CertificateExpiry({"identity": file})
        assert expiry.by_use() == {}
    assert expiry.reload_if_changed()
    assert expiry.by_use() == {"identity": expires_at}


def test_the_first_of_several_certificates_counts(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    last, first = write(file, YEAR_S), write(tmp_path / "other", 60.0)
    file.write_bytes(file.read_bytes() + (tmp_path / "other").read_bytes())
    assert first < last
    assert CertificateExpiry({"authority": file}).by_use() == {"authority": first}
