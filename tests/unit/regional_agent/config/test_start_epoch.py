from pathlib import Path

from structlog.testing import capture_logs

from regional_agent.config.start_epoch import next_epoch


def test_epoch_grows_even_if_the_clock_is_set_back(tmp_path: Path) -> None:
    epochs = [next_epoch(tmp_path, unix_s) for unix_s in (1000.0, 1000.0, 5.0, 2000.0)]
    assert epochs == [1_000_000, 1_000_001, 1_000_002, 2_000_000]


def test_uses_the_clock_if_the_disk_is_new_or_unwritable(tmp_path: Path) -> None:
    with capture_logs() as logs:
        assert next_epoch(tmp_path / "missing", 3.0) == 3000
    assert [entry["log_level"] for entry in logs] == ["warning"]


def test_ignores_a_damaged_epoch_file(tmp_path: Path) -> None:
    next_epoch(tmp_path, 1000.0)
    (tmp_path / "start").write_bytes(b"garbage")
    assert next_epoch(tmp_path, 1001.0) == 1_001_000
