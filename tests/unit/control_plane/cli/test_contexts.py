"""`penstock context`, and the control planes that a command connects to."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from control_plane.cli.command_options import select_context
from control_plane.cli.contexts import BadContexts, Context, Contexts, contexts_file, load_contexts
from control_plane.cli.error_output import UsageFault
from control_plane.cli.main import app


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "config" / "contexts.yaml"
    monkeypatch.setenv("PENSTOCK_CONTEXTS_FILE", str(file))
    return file


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["context", *arguments])


class TestCommands:
    def test_a_file_that_cannot_be_written_is_an_error_with_the_remedy(self, file: Path) -> None:
        file.parent.symlink_to("/proc/nobody")
        result = run("add", "lab", "--url", "http://127.0.0.1:1")
        assert result.exit_code == 2
        assert f"{file}: cannot be written: " in result.stderr
        assert "set PENSTOCK_CONTEXTS_FILE to another file" in result.stderr

    def test_the_first_context_becomes_the_current_one(self, file: Path) -> None:
        assert run("add", "lab", "--url", "http://127.0.0.1:1/", "--token-file", "/tokens/lab").exit_code == 0
        assert run("add", "live", "--url", "https://a:1, https://b:1", "--ca-file", "/ca.pem").exit_code == 0
        assert load_contexts() == Contexts(
            "lab",
            {
                "lab": Context(("http://127.0.0.1:1",), "/tokens/lab"),
                "live": Context(("https://a:1", "https://b:1"), ca_file="/ca.pem"),
            },
        )
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        shown = run("list").stdout
        assert "* │ lab" in shown
        assert "https://b:1" in shown

    def test_another_context_can_be_selected(self, file: Path) -> None:
        run("add", "lab", "--url", "http://127.0.0.1:1")
        run("add", "live", "--url", "https://a:1")
        assert run("use", "live").exit_code == 0
        assert msgspec.json.decode(run("list", "-o", "json").stdout)["current"] == "live"

    def test_a_similar_name_is_suggested(self, file: Path) -> None:
        run("add", "production", "--url", "http://127.0.0.1:1")
        result = run("use", "producton")
        assert result.exit_code == 2
        assert "no context 'producton'; did you mean production?" in result.stderr

    def test_an_existing_context_is_not_replaced(self, file: Path) -> None:
        run("add", "lab", "--url", "http://127.0.0.1:1")
        assert run("add", "lab", "--url", "http://127.0.0.1:2").exit_code == 2
        assert load_contexts().named("lab").urls == ("http://127.0.0.1:1",)
        assert run("add", "lab", "--url", "http://127.0.0.1:2", "--replace").exit_code == 0
        assert load_contexts().named("lab").urls == ("http://127.0.0.1:2",)

    def test_the_current_context_can_be_removed(self, file: Path) -> None:
        run("add", "lab", "--url", "http://127.0.0.1:1")
        assert run("remove", "lab").exit_code == 0
        assert load_contexts() == Contexts()
        assert run("remove", "lab").exit_code == 2

    @pytest.mark.parametrize(
        "url",
        [
            *("nonsense", "ftp://a", "http://a/path", "https://user:secret@a:1", ",", "http://[", "http://a:99999"),
            *("http://a:b", "http://a:0", "http://.", "http://a#b"),
        ],
    )
    def test_invalid_urls_are_refused(self, file: Path, url: str) -> None:
        assert run("add", "lab", "--url", url).exit_code == 2
        assert not file.exists()


class TestFile:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("contexts: [", "contexts.yaml: "),
            ("contexts: {lab: {urls: [http://a], token: secret}}", "unknown field `token`"),
            ("contexts: {lab: {urls: []}}", "context lab: has no urls"),
            ("- lab", "contexts.yaml: "),
            (" " * (1 << 20) + "x", "larger than"),
        ],
    )
    def test_invalid_files_are_errors_with_the_remedy(self, file: Path, text: str, said: str) -> None:
        file.parent.mkdir()
        file.write_text(text)
        with pytest.raises(BadContexts, match="context") as reported:
            load_contexts()
        assert said in str(reported.value)
        assert run("list").exit_code == 2

    def test_the_location_of_the_contexts_file(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("PENSTOCK_CONTEXTS_FILE", raising=False)
        monkeypatch.setenv("XDG_CONFIG_HOME", "/config")
        assert contexts_file() == Path("/config/penstock/contexts.yaml")
        monkeypatch.delenv("XDG_CONFIG_HOME")
        assert contexts_file() == Path.home() / ".config" / "penstock" / "contexts.yaml"


class TestMeant:
    @pytest.fixture(autouse=True)
    def contexts(self, file: Path) -> None:
        run("add", "lab", "--url", "http://lab:1", "--token-file", "/tokens/lab")
        run("add", "live", "--url", "https://live:1", "--token-file", "/tokens/live")

    @pytest.mark.parametrize(
        ("url", "context", "environment", "urls"),
        [
            (None, None, {}, ("http://lab:1",)),
            (None, None, {"PENSTOCK_CONTEXT": "live"}, ("https://live:1",)),
            (None, None, {"PENSTOCK_CONTEXT": "live", "PENSTOCK_URL": "http://x:1"}, ("http://x:1",)),
            (None, "live", {"PENSTOCK_URL": "http://x:1"}, ("https://live:1",)),
            ("http://y:1,http://z:1", None, {"PENSTOCK_URL": "http://x:1"}, ("http://y:1", "http://z:1")),
        ],
    )
    def test_the_most_specific_setting_wins(
        self, url: str | None, context: str | None, environment: dict[str, str], urls: tuple[str, ...]
    ) -> None:
        assert select_context(url, context, environment).urls == urls

    def test_a_token_of_a_context_is_not_sent_to_another_url(self) -> None:
        assert select_context("http://y:1", None, {}).token_file is None
        assert select_context(None, None, {"PENSTOCK_URL": "http://x:1"}).token_file is None
        assert select_context(None, "live", {}).token_file == "/tokens/live"

    def test_contradicting_settings_are_refused(self) -> None:
        with pytest.raises(UsageFault, match="cannot be used together"):
            select_context("http://y:1", "live", {})

    def test_without_a_context_the_error_states_the_remedy(self, file: Path) -> None:
        file.unlink()
        with pytest.raises(UsageFault, match="penstock context use"):
            select_context(None, None, {})
