"""The models of an engine, by its list of models; every other answer is refused with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from control_plane.quickstart.engine_models import UnusableEngine, base_url, models_of


class _Engine(BaseHTTPRequestHandler):
    answer = (200, b"")

    def do_GET(self) -> None:
        status, body = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

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
    monkeypatch.setattr(_Engine, "answer", (200, b'{"data": [{"id": "a"}, {"id": "b"}]}'))
    assert models_of(engine) == ["a", "b"]


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (401, b"", "answered 401"),
        (200, b"<html>", "no list of models"),
        (200, b'{"data": {}}', "serves no model"),
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


def test_the_url_of_an_engine_has_no_path_of_the_api() -> None:
    assert base_url("127.0.0.1:8000") == "http://127.0.0.1:8000"
    assert base_url("https://gpu/prefix/v1/") == "https://gpu/prefix"
    for wrong in ("ftp://x", "http://", "http://u:p@x", "http://x:99999", "http://x?y", "http://[::1:8000"):
        with pytest.raises(UnusableEngine, match="is not the URL of an engine"):
            base_url(wrong)
