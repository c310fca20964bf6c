"""The models of an engine, by its list of models; every other answer is refused with a remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from adapters.files.secret_file import BadSecret
from control_plane.quickstart.engine_models import UnusableEngine, base_url, models_of, presets_of, read_key

LONG = b"x" * 900_000
"""A body that no buffers of sockets hold."""


class _Engine(BaseHTTPRequestHandler):
    answer = (200, b"")
    key = ""

    def do_GET(self) -> None:
        status, body = self.answer
        if self.headers["Authorization"] != f"Bearer {self.key}" and self.key:
            status = 401
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if status == 308:
            self.send_header("Location", "https://elsewhere/v1/models")
        self.end_headers()
        self.wfile.write(body)

    paths: Mapping[str, int] = {}
    """Statuses of POST requests, by path."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.paths.get(self.path, 404))
        self.send_header("Content-Length", str(len(LONG)))
        self.end_headers()
        try:
            self.wfile.write(LONG)
        except OSError:
            self.cut.append(self.path)

    cut: ClassVar[list[str]] = []
    """Paths of POST requests whose response the client did not read."""

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Engine)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_engine_lists_its_models(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Engine, "answer", (200, b'{"data": [{"id": "a"}, {"id": "b"}, {"id": "a"}]}'))
    assert models_of(engine) == ["a", "b"]


@pytest.mark.parametrize(
    ("paths", "presets"),
    [
        ({}, []),
        ({"/v1/messages": 400, "/api/chat": 400}, ["anthropic", "ollama"]),
        ({"/v1/messages": 422, "/tokenize": 422}, ["anthropic", "vllm"]),
        ({"/v1/messages": 405, "/api/chat": 501, "/tokenize": 200}, ["vllm"]),
    ],
)
def test_an_engine_is_asked_for_the_apis_that_it_serves(
    engine: str, monkeypatch: pytest.MonkeyPatch, paths: Mapping[str, int], presets: list[str]
) -> None:
    monkeypatch.setattr(_Engine, "paths", paths)
    assert presets_of(engine) == presets
    assert _Engine.cut == [], "the server reports no error"
    assert presets_of("http://127.0.0.1:1") == []


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (401, b"", "answered 401; write the key .* --engine-key-file"),
        (404, b"", "answered 404; add the path before /v1"),
        (500, b"", "answered 500; start the engine first"),
        (200, b"<html>", "no list of models"),
        (200, b'{"data": {}}', "serves no model"),
        (200, b'{"data": null}', "serves no model"),
        (308, b"", "answered 308; it redirects: name the engine by 'https://elsewhere'"),
        (200, b'{"data": [1]}', "no list of models"),
        (200, b" " * (1 << 20) + b"  ", "larger than"),
    ],
)
def test_other_answers_are_refused(
    engine: str, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, message: str
) -> None:
    monkeypatch.setattr(_Engine, "answer", (status, body))
    with pytest.raises(UnusableEngine, match=message):
        models_of(engine)


def test_an_engine_that_requires_a_key_is_asked_with_it(
    engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_Engine, "answer", (200, b'{"data": [{"id": "a"}]}'))
    monkeypatch.setattr(_Engine, "key", "secret")
    file = tmp_path / "engine.key"
    file.write_text("secret\n")
    file.chmod(0o600)
    assert models_of(engine, read_key(file)) == ["a"]
    with pytest.raises(UnusableEngine, match="answered 401"):
        models_of(engine, "another")
    file.write_text("two\nlines\n")
    with pytest.raises(BadSecret, match="is not one line"):
        read_key(file)


def test_the_url_of_an_engine_has_no_path_of_the_api() -> None:
    assert base_url("127.0.0.1:8000") == "http://127.0.0.1:8000"
    assert base_url("https://gpu/prefix/v1/") == "https://gpu:443/prefix"
    assert base_url("http://[::1]/") == "http://[::1]:80"
    assert base_url("http://gpu:") == "http://gpu:80"
    for wrong in ("ftp://x", "http://", "http://u:p@x", "http://x:99999", "http://x?y", "http://[::1:8000"):
        with pytest.raises(UnusableEngine, match="is not the URL of an engine"):
            base_url(wrong)
