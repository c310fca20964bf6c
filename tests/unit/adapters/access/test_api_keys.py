"""API keys grant the roles of their entries, are re-read when the file changes, and appear in no output."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from adapters.access.api_keys import MAX_FILE_BYTES, ApiKeys, BadApiKeys, read_api_keys
from adapters.access.callers import Caller, Role
from adapters.files import watched_files
from tests.support.descriptors import no_free_descriptors


def digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def entry(name: str, key: str, role: str = "viewer", regions: str = "") -> str:
    return f"- name: {name}\n  sha256: {digest(key)}\n  role: {role}\n" + (f"  regions: {regions}\n" if regions else "")


def write(path: Path, text: str) -> None:
    """Replace the file with a new file, as a deployment does."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


def test_a_key_authenticates_the_caller_of_its_entry(path: Path) -> None:
    write(path, entry("ci", "first") + entry("duty", "second", "operator", "[eu-de, eu-es]"))
    keys = ApiKeys(path)
    assert keys.caller("first") == Caller("ci", Role.VIEWER)
    assert keys.caller("second") == Caller("duty", Role.OPERATOR, frozenset({"eu-de", "eu-es"}))
    for wrong in ("", "third", "first ", digest("first"), "\udcff"):
        assert keys.caller(wrong) is None


def test_json_files_are_read(path: Path) -> None:
    write(path, f'[{{"name": "ci", "sha256": "{digest("k")}", "role": "admin"}}]')
    assert ApiKeys(path).caller("k") == Caller("ci", Role.ADMIN)


def test_a_changed_file_is_read_and_an_invalid_one_is_ignored(path: Path) -> None:
    write(path, entry("ci", "first"))
    keys = ApiKeys(path)
    write(path, entry("duty", "second"))
    assert keys.caller("second") is None
    keys.files.reload_if_changed()
    assert (keys.caller("first"), keys.caller("second")) == (None, Caller("duty", Role.VIEWER))
    for bad in ("- name: x", "\x00", "", "# no key\n", "---\n"):
        write(path, bad)
        keys.files.reload_if_changed()
        assert keys.caller("second") == Caller("duty", Role.VIEWER)
    path.unlink()
    keys.files.reload_if_changed()
    assert keys.caller("second") == Caller("duty", Role.VIEWER)
    write(path, "[]")
    keys.files.reload_if_changed()
    assert keys.caller("second") is None


def test_a_file_that_could_not_be_read_at_first_is_read_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # After a load that takes 20 ms of CPU time the next one would be seconds later.
    monkeypatch.setattr(watched_files, "RETRY_FACTOR", 0.0)
    write(path, entry("ci", "first"))
    keys = ApiKeys(path)
    write(path, entry("duty", "second"))
    with no_free_descriptors(), capture_logs() as logged:
        for _ in range(2):
            keys.files.reload_if_changed()
            assert keys.caller("first") is not None
    assert [entry["log_level"] for entry in logged] == ["error"]
    keys.files.reload_if_changed()
    assert (keys.caller("first"), keys.caller("second")) == (None, Caller("duty", Role.VIEWER))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- name: x", "Object missing required field `sha256` - at `$[0]`"),
        (entry("x", "k", "king"), "Invalid enum value 'king' - at `$[0].role`"),
        (entry("x", "k") + "  key: secret\n", "Object contains unknown field `key` - at `$[0]`"),
        ("- {name: x, sha256: abc, role: viewer}", "Expected `str` matching regex '^[0-9a-f]{64}$' - at `$[0].sha256`"),
        ("name: x", "Expected `array`, got `object`"),
        (entry("x", "k") + entry("x", "l"), "two entries with the name x"),
        (entry("x", "k") + entry("y", "k"), "two entries with the sha256"),
        ("", "has no keys; restore its content, or write [] to revoke every key"),
        ("# the keys\n---\n", "has no keys"),
        ("null", "has no keys"),
        ("{}", "Expected `array`, got `object`"),
        ("false", "Expected `array`, got `bool`"),
        ("sk-secret: [", "neither YAML nor JSON"),
        ('- {name: "sk-secret \\UFFFFFFFF"}', "neither YAML nor JSON"),
        ('- {name: !!int ""}', "neither YAML nor JSON"),
        ("x" * (MAX_FILE_BYTES + 1), f"cannot read the API keys: larger than {MAX_FILE_BYTES} bytes"),
    ],
)
def test_an_invalid_file_is_refused(path: Path, text: str, problem: str) -> None:
    write(path, text)
    with pytest.raises(BadApiKeys) as caught:
        read_api_keys(path)
    assert str(caught.value).startswith(f"{path}: {problem}")
    assert "sk-secret" not in str(caught.value)


def test_a_missing_file(path: Path) -> None:
    with pytest.raises(BadApiKeys, match="No such file or directory"):
        ApiKeys(path)
