from pathlib import Path

import pytest

from adapters.fleet_key import load_fleet_key
from adapters.secret_file import BadSecret
from penstock.wire.signing import BadSignature, FleetKey, Purpose

OLD, NEW = b"o" * 32, b"n" * 32


def test_reads_keys_newest_first(tmp_path: Path) -> None:
    path = tmp_path / "fleet.key"
    path.write_bytes(b"\n  " + NEW + b" \r\n\n" + OLD + b"\n")
    key = load_fleet_key(path)
    assert key.sign(Purpose.PROBE, b"m") == FleetKey(NEW).sign(Purpose.PROBE, b"m")
    key.check(Purpose.PROBE, b"m", FleetKey(OLD).sign(Purpose.PROBE, b"m"))
    with pytest.raises(BadSignature):
        key.check(Purpose.PROBE, b"m", FleetKey(b"x" * 32).sign(Purpose.PROBE, b"m"))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot read"),
        (b"", "empty"),
        (b" \n\n", "empty"),
        (NEW + b"\nsecret-but-short\n", "fleet key 2 has 16 bytes"),
    ],
)
def test_refuses_a_bad_file_by_name_without_showing_it(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "fleet.key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadSecret) as caught:
        load_fleet_key(path)
    message = str(caught.value)
    assert str(path) in message
    assert says in message
    assert "give the same file to every agent and control plane" in message
    assert "secret-but-short" not in message
