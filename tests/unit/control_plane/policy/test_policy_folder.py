"""A bundle's folder is read as a whole, or refused with the names of foreign files."""

from __future__ import annotations

from pathlib import Path

import pytest

from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.compiler import MAX_FILE_BYTES, MAX_FILES
from control_plane.policy.folder import read_folder


def refused(folder: Path) -> list[str]:
    with pytest.raises(PolicyRefused) as caught:
        read_folder(folder)
    return [str(error) for error in caught.value.errors]


def test_yaml_files_are_read_and_documentation_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: ä\n")
    (tmp_path / "README.md").write_text("# read me")
    (tmp_path / ".hidden").mkdir()
    assert read_folder(tmp_path) == {"a.yaml": "a: ä\n"}


def test_files_behind_links_inside_the_folder_are_read(tmp_path: Path) -> None:
    """Kubernetes mounts a ConfigMap as links into a hidden folder, which is a link that an update replaces."""
    folder = tmp_path / "policy"
    revision = folder / "..2026_11_22_08_00_00.123456789"
    revision.mkdir(parents=True)
    (revision / "a.yaml").write_text("a: 1\n")
    (folder / "..data").symlink_to(revision.name)
    (folder / "a.yaml").symlink_to("..data/a.yaml")
    assert read_folder(folder) == {"a.yaml": "a: 1\n"}
    (tmp_path / "linked").symlink_to(folder)
    assert read_folder(tmp_path / "linked") == {"a.yaml": "a: 1\n"}


@pytest.mark.parametrize("secret", ["secret", "secret.yaml", "policy-of-others/a.yaml"])
def test_a_link_out_of_the_folder_is_refused_and_its_content_not_shown(tmp_path: Path, secret: str) -> None:
    folder, other = tmp_path / "policy", tmp_path / secret
    folder.mkdir()
    other.parent.mkdir(exist_ok=True)
    other.write_text("key: hunter2\n")
    (folder / "a.yaml").symlink_to(other)
    (folder / ".data").symlink_to(other.parent)
    (folder / "b.yaml").symlink_to(Path(".data") / other.name)
    reported = "is a symbolic link that leads out of the folder; "
    reported += "put the file itself there, or link to one inside the folder"
    assert refused(folder) == [f"{name}: {reported}" for name in ("a.yaml", "b.yaml")]


def test_dangling_links_are_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").symlink_to("absent.yaml")
    (tmp_path / "b.yaml").symlink_to("b.yaml")
    assert [message.split(";")[0] for message in refused(tmp_path)] == [
        "a.yaml: is a broken symbolic link: No such file or directory",
        "b.yaml: is a broken symbolic link: Too many levels of symbolic links",
    ]


@pytest.mark.parametrize("name", ["rules.yml", "rules.json", "rules.yaml.bak", "rules"])
def test_files_with_similar_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("a: 1\n")
    assert refused(tmp_path) == [
        f"{name}: is not a .yaml file; name policy files *.yaml, and keep anything else out of the folder"
    ]


def test_a_folder_inside_is_refused(tmp_path: Path) -> None:
    (tmp_path / "more.yaml").mkdir()
    assert "more.yaml: is not a regular file; put a file" in refused(tmp_path)[0]


def test_a_missing_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    assert refused(tmp_path) == [f"{tmp_path}: has no policy files; put .yaml files into it"]
    assert "No such file or directory" in refused(tmp_path / "absent")[0]


def test_all_invalid_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"a: 1\nb: \xff")
    (tmp_path / "b.yaml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    assert refused(tmp_path) == [
        "a.yaml:2: is not UTF-8; save it as UTF-8",
        f"b.yaml: larger than {MAX_FILE_BYTES} bytes; split it into several files",
    ]


def test_too_many_files_are_refused(tmp_path: Path) -> None:
    for index in range(MAX_FILES + 1):
        (tmp_path / f"{index}.yaml").touch()
    assert refused(tmp_path) == [f"(bundle): has {MAX_FILES + 1} files; use at most {MAX_FILES}"]


@pytest.mark.parametrize(
    "text",
    [
        "deny:\n  regions:\n  - eu-de\n  - us-east",
        "{a: 1}\n---\nquota:\n  concurrent: 10",
        "# {\nconcurrent: 10",
        "text: see [1]",
        "a: 1\r",
        "\ufeff",
    ],
)
def test_a_file_whose_last_line_is_cut_off_is_refused(tmp_path: Path, text: str) -> None:
    """What remains may be valid YAML, such as a rule without its last region, or 10 in place of 100."""
    (tmp_path / "a.yaml").write_bytes(text.encode())
    line = text.count("\n") + 1
    reported = f"a.yaml:{line}: the last line has no line break, so the file may have been cut off; restore what is"
    assert refused(tmp_path)[0].startswith(reported)


@pytest.mark.parametrize("text", ['{"a": 1}', "[\n  1\n]", '\ufeff{"a": 1}', "a: 1\n--- {b: 1}", "a: 1\n---\n\n{b: 1}"])
def test_json_needs_no_line_break_at_its_end(tmp_path: Path, text: str) -> None:
    """Generators of JSON write none, and JSON that is cut off is invalid."""
    (tmp_path / "a.yaml").write_bytes(text.encode())
    assert read_folder(tmp_path) == {"a.yaml": text}
