"""The certificates of a quickstart are renewed in time, by the authority in its directory."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from adapters.files.authority_files import AUTHORITY_KEY
from adapters.files.identity_files import load_identity
from control_plane.quickstart.places import Place
from control_plane.quickstart.region_dir import Engine, write_region_dir
from control_plane.quickstart.renewal import RENEW_BEFORE_S, renew_identities

DAY_S = 86_400.0
ENGINE = Engine("http://127.0.0.1:8000", ("m",))


@pytest.mark.parametrize(
    ("host", "names"),
    [("127.0.0.1", ["control-plane", "agent"]), ("127.0.0.2", ["control-plane", "agent", "etcd-identity"])],
)
def test_certificates_are_renewed_before_they_expire(tmp_path: Path, host: str, names: list[str]) -> None:
    written = write_region_dir(tmp_path / "new", "local", Place("DE", 52.5, 13.37), [ENGINE], host)
    now = time.time()
    before = {name: load_identity(written.path / name, now).peer for name in names}
    assert renew_identities(written, now) == []
    assert renew_identities(written, now + 90 * DAY_S - RENEW_BEFORE_S + DAY_S) == names
    for name in names:
        after = load_identity(written.path / name, now + DAY_S).peer
        assert (after.id, after.serial == before[name].serial) == (before[name].id, False)


def test_nothing_is_renewed_without_the_key_of_the_authority(tmp_path: Path) -> None:
    written = write_region_dir(tmp_path / "new", "local", Place("DE", 52.5, 13.37), [ENGINE])
    (written.authority / AUTHORITY_KEY).unlink()
    assert renew_identities(written, time.time() + 89 * DAY_S) == []
