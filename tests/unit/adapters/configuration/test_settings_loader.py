"""Settings of a file, the environment and flags: precedence, origins, and errors that name the place and the remedy."""

# A row of a table of messages is one line.

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from adapters.configuration.settings_listing import settings_listing
from adapters.configuration.settings_loader import BadSettings, load_with_origins, read_config_file
from adapters.configuration.strict_yaml import YamlDocument


class Example(BaseModel):
    """Settings of an imaginary daemon."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    share: float = Field(default=0.5, le=1.0)
    peers: dict[str, tuple[int, ...]] = {}
    password: SecretStr | None = None
    key_file: Path | None = None

    @model_validator(mode="after")
    def _check(self) -> Example:
        if self.name == "north" and self.password is None:
            raise ValueError("{password}: not set, but required by {name} {unknown}")
        return self


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.yaml"
    path.write_text("# an example\nname: south\nshare: 0.25\npassword: null\npeers:\n  eu: [1, 2]\n")
    return path


def test_flags_precede_the_environment_which_precedes_the_file(file: Path) -> None:
    loaded = load_with_origins(
        Example,
        "X_",
        config=file,
        flags={"name": "flagged"},
        environment={"X_NAME": "ignored", "X_SHARE": "0.75", "X_PEERS": "", "X_PASSWORD": "hush"},
    )
    assert loaded.settings == Example(name="flagged", share=0.75, peers={"eu": (1, 2)}, password=SecretStr("hush"))
    assert settings_listing(loaded).splitlines() == [
        'name: "flagged"  # flag --name',
        "share: 0.75  # environment X_SHARE",
        f'peers: {{"eu": [1, 2]}}  # file {file}:5',
        'password: "**********"  # environment X_PASSWORD',
        "key_file: null  # default",
    ]


def test_relative_paths_are_those_from_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "a.yaml"
    monkeypatch.chdir("/")

    def key_file(text: str, environment: dict[str, str] | None = None) -> Path | None:
        config.write_text(f"name: south\nkey_file: {text}\n")
        return load_with_origins(Example, "X_", config=config, environment=environment or {}).settings.key_file

    assert key_file("a/key") == tmp_path / "a" / "key"
    assert key_file("/a/key") == Path("/a/key")
    assert key_file("null") is None
    assert key_file("a/key", {"X_KEY_FILE": "b/key"}) == Path("b/key")


def test_the_environment_may_name_the_file(file: Path) -> None:
    assert load_with_origins(Example, "X_", environment={"X_CONFIG": str(file)}).settings.share == 0.25


def test_printed_settings_are_a_valid_configuration_file(file: Path, tmp_path: Path) -> None:
    loaded = load_with_origins(Example, "X_", config=file, environment={})
    listing = tmp_path / "listing.yaml"
    listing.write_text(settings_listing(loaded))
    assert load_with_origins(Example, "X_", config=listing, environment={}).settings == loaded.settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nmae: a\n", ":1: nmae: no such setting; did you mean name?"),
        ("name: a\n\nany: 3\n", ":3: any: no such setting; use one of key_file, name, password, peers, share"),
        ("name: a\nname: b\n", ":2: name: written twice; keep one; the other is at line 1"),
        ("name: &a b\n", ":1: the anchor &a is not allowed; remove it"),
        ("- name: a\n", ":1: this document is not a mapping; write one `setting: value` a line"),
        ("name: a\n---\nshare: 1\n", ":2: more than 1 documents; split it"),
        ("name: [\n", ":2: expected the node content, but found '<stream end>'; correct the YAML"),
        ("# nothing\n", ": name: not set"),
        ("name: a\nshare: 3\n", ":2: share: Input should be less than or equal to 1"),
        ("name: a\npeers:\n  eu:\n    - 1\n    - x\n", ":5: peers[eu][1]: Input should be a valid integer"),
        ("name: north\n", ": password: not set, but required by name {unknown}"),
        ("name: \"a\\u001b\"\nshare: 2\n", ":2: share: Input should be less"),
    ],
)  # fmt: skip
def test_an_error_names_file_line_setting_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(BadSettings) as caught:
        load_with_origins(Example, "X_", config=path, environment={})
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{path}{message}")


def test_an_error_names_the_environment_variable(file: Path) -> None:
    with pytest.raises(BadSettings, match=r"^X_SHARE: Input should be less than"):
        load_with_origins(Example, "X_", config=file, environment={"X_SHARE": "7"})
    with pytest.raises(BadSettings, match=r"a\.yaml: password: not set, but required by X_NAME"):
        load_with_origins(Example, "X_", config=file, environment={"X_NAME": "north"})
    with pytest.raises(BadSettings, match=r"^X_PASSWORD: not set, but required by X_NAME"):
        load_with_origins(Example, "X_", environment={"X_NAME": "north"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read the configuration: No such file or directory; name a readable file"),
        (b"name: a\n\xff", "not UTF-8; save the file as UTF-8"),
        (b"#" * 300_000, "larger than 262144 bytes"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "a.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadSettings, match=message):
        read_config_file(path, Example)


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("")
    assert read_config_file(tmp_path / "a.yaml", Example).document == YamlDocument(1, {}, {})
