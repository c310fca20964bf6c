"""`penstock-lab wan` as a process: its output, its control socket, its end, and its errors for bad input."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

START = [sys.executable, "-c", "from lab.cli import main; main()", "wan"]


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*START, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def write_config(path: Path, **fields: object) -> str:
    links = [
        {"name": "1", "from": "eu-de", "to": "eu-es", "target": "127.0.0.1:9"},
        {"name": "2", "from": "eu-de", "to": "jp-tok", "target": "127.0.0.1:9", "rtt_ms": 5},
    ]
    path.write_text(json.dumps({"links": links, **fields}))
    return str(path)


@pytest.fixture
def wan(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[dict[str, object]], str]]:
    """The process, its links as it printed them, and the URL of its control socket."""
    process = start("--config", write_config(tmp_path / "wan.json"))
    try:
        assert process.stdout is not None
        *links, control = [json.loads(process.stdout.readline()) for _ in range(3)]
        yield process, links, control["control"]
    finally:
        process.kill()
        process.communicate()


def test_prints_links_takes_faults_and_ends_on_sigterm(
    wan: tuple[subprocess.Popen[str], list[dict[str, object]], str],
) -> None:
    process, links, control = wan
    assert [(link["link"], link["from"], link["to"], link["rtt_ms"]) for link in links] == [
        ("1", "eu-de", "eu-es", 23.7),
        ("2", "eu-de", "jp-tok", 5.0),
    ]

    def knock(link: dict[str, object]) -> None:
        asyncio.run(connect(int(str(link["port"]))))

    knock(links[0])
    fault = {"mode": "cut", "extra_rtt_ms": 7}
    answer = httpx.put(f"{control}/faults", json={"select": {"to": "eu-es"}, "fault": fault})
    assert (answer.status_code, answer.json()) == (200, {"links": ["1"]})
    with pytest.raises(ConnectionRefusedError):
        knock(links[0])
    knock(links[1])
    listed = httpx.get(f"{control}/links").json()
    assert [link["fault"] for link in listed] == [
        {"mode": "cut", "extra_rtt_ms": 7.0, "jitter_ms": 0.0},
        {"mode": "none", "extra_rtt_ms": 0.0, "jitter_ms": 0.0},
    ]
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_the_control_socket_names_the_command_it_rejects(
    wan: tuple[subprocess.Popen[str], list[dict[str, object]], str],
) -> None:
    _, _, control = wan
    for method, path, body, status, message in [
        ("GET", "/", b"", 404, "GET /links and PUT /faults"),
        ("PUT", "/faults", b"{", 400, "truncated"),
        ("PUT", "/faults", b'{"fault": {"mode": "slow"}}', 400, "$.fault.mode"),
        ("PUT", "/faults", b'{"fault": {"extra_rtt_ms": -1}}', 400, "$.fault.extra_rtt_ms"),
        ("PUT", "/faults", b'{"fault": {}, "select": {"link": "3"}}', 404, "no link matches"),
    ]:
        answer = httpx.request(method, control + path, content=body)
        assert answer.status_code == status
        assert message in answer.json()["error"]
    # The control socket closes the connection, which the client may notice before it reads the response.
    with suppress(httpx.TransportError):
        assert httpx.put(f"{control}/faults", content=b"x" * 1_000_000).status_code == 413


async def connect(port: int) -> None:
    """Connect to a link without a server behind it, which resets the connections that it accepts."""
    with suppress(ConnectionResetError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()


@pytest.mark.parametrize(
    ("fields", "matrix", "message"),
    [
        ({"links": 3}, None, "wan.json: Expected `array`, got `int` - at `$.links`; correct it"),
        ({}, "from,to,rtt_ms\neu-es,eu-de,9\n", "no round trip from 'eu-de' to 'eu-es'"),
        ({}, "nonsense", "rtt.csv: the header is missing"),
        ({"control_port": "taken"}, None, "control_port: cannot listen on 127.0.0.1:"),
        ({"host": "192.0.2.1"}, None, "link '1': cannot listen on 192.0.2.1:0"),
    ],
)
async def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, fields: dict[str, object], matrix: str | None, message: str
) -> None:
    taken = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    if fields.get("control_port") == "taken":
        fields = {"control_port": taken.sockets[0].getsockname()[1]}
    arguments = ["--config", write_config(tmp_path / "wan.json", **fields)]
    if matrix is not None:
        (tmp_path / "rtt.csv").write_text(matrix)
        arguments += ["--rtt", str(tmp_path / "rtt.csv")]
    process = await asyncio.to_thread(start, *arguments)
    out, err = await asyncio.to_thread(process.communicate)
    taken.close()
    assert process.returncode == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
