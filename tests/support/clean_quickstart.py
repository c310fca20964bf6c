"""`python -m tests.support.clean_quickstart WHEEL DIRECTORY PYTHON...`: time the quickstart on clean environments.

For each Python: an empty virtual environment, the wheel with its extra `quickstart`, then `penstock quickstart` and the
time until the first answer of its base URL. With root, each region runs in a network namespace of its own, and a second
one joins by an invitation; only the ports that the guide names are open between the two. DIRECTORY/report.json has the
times.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from release.wheels import interpreters
from tests.support.firewalled_network import FirewalledNetwork, Flow, can_make_networks
from tests.support.quickstarts import base_url_in, key_in, running

ENGINE_PORT = 18_000
MODEL = "llama-3.1-8b"
MAX_FIRST_ANSWER_S = 30.0
"""Maximum time (s) from the command to the first answer, on a machine that does nothing else; on a busy one, longer."""

PORTS = (2379, 8081, 8400)
"""Ports of the first region that a second one needs (docs/quickstart.md): etcd, agent, control plane."""

ENGINE = f"""
import http.server
class Engine(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self): self.answer(b'{{"object": "list", "data": [{{"id": "{MODEL}", "object": "model"}}]}}')
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.answer(b'{{"object": "chat.completion", "choices": [{{"index": 0, "finish_reason": "stop",'
                    b'"message": {{"role": "assistant", "content": "Hello"}}}}]}}')
    def answer(self, body):
        self.send_response(200); self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", {ENGINE_PORT}), Engine).serve_forever()
"""

CLIENT = f"""
import json, sys, urllib.request
body = {{"model": "{MODEL}", "messages": [{{"role": "user", "content": "Hello"}}], "max_tokens": 4}}
request = urllib.request.Request(sys.argv[1] + "/chat/completions", json.dumps(body).encode(),
    {{"authorization": "Bearer " + sys.argv[2], "content-type": "application/json"}})
with urllib.request.urlopen(request, timeout=60) as answer:
    json.load(answer)["choices"]
    print(answer.headers["x-penstock-region"])
"""


class Machine:
    """A place where programs of one environment run: this machine, or one of a network."""

    def __init__(self, environment: Path, network: FirewalledNetwork | None, name: str) -> None:
        self._bin = environment / "bin"
        self._network = network
        self._name = name
        self.engine = f"http://127.0.0.1:{ENGINE_PORT}"
        self.host = network.address(name) if network is not None else "127.0.0.1"

    def command(self, program: str, *arguments: str) -> list[str]:
        """Return the command line of a program of the environment."""
        argv = [str(self._bin / program), *arguments]
        return argv if self._network is None else self._network.command(self._name, *argv)

    @contextmanager
    def serving_engine(self) -> Iterator[None]:
        """Run an engine on loopback."""
        with subprocess.Popen(self.command("python", "-c", ENGINE)) as process:
            try:
                yield
            finally:
                process.kill()

    def chat(self, shown: str, key: str) -> str:
        """Send a chat to the base URL that a command printed; returns the region that answered."""
        argv = self.command("python", "-c", CLIENT, base_url_in(shown), key)
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=90.0).stdout.strip()


def trial(wheel: Path, python: str, directory: Path) -> dict[str, Any]:
    """Install into a clean environment and run the quickstart; the times."""
    environment = directory / "venv"
    shutil.rmtree(directory, ignore_errors=True)
    began = time.monotonic()
    subprocess.run([python, "-m", "venv", str(environment)], check=True)
    pip = (environment / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run([*pip, "install", f"{wheel.resolve()}[quickstart]"], check=True)
    times: dict[str, Any] = {"installed_after_s": round(time.monotonic() - began, 1)}
    version = subprocess.run([environment / "bin" / "python", "-V"], check=True, capture_output=True, text=True).stdout
    times["python"] = version.split()[1]
    permitted = {Flow("second", "first", port) for port in PORTS} | {Flow("first", "second", 8081)}
    isolated = can_make_networks()
    network = FirewalledNetwork(directory, {"first": (), "second": ()}, permitted) if isolated else None
    with network or nullcontext():
        first = Machine(environment, network, "first")
        with first.serving_engine():
            times |= _run(first, Machine(environment, network, "second") if isolated else None, directory)
    return times


def _run(first: Machine, second: Machine | None, directory: Path) -> dict[str, Any]:
    began = time.monotonic()
    options = ("--engine", first.engine, "--region", "eu-de", "--place", "DE", "--host", first.host)
    folder = str(directory / "first")
    program, *argv = first.command("penstock", "quickstart", *options, "--dir", folder)
    with running(*argv, program=program) as shown:
        assert first.chat(shown, key_in(shown)) == "eu-de"
        times: dict[str, Any] = {
            "first_answer_after_s": round(time.monotonic() - began, 1),
            "load_per_core": round(os.getloadavg()[0] / (os.cpu_count() or 1), 1),
        }
        if second is None:
            return times | {"joined_answer_after_s": "not run: it needs root and network namespaces"}
        invitation = str(directory / "eu-fr.invitation")
        where = ("--host", second.host, "--place", "FR", "--dir", folder, "--file", invitation)
        subprocess.run(first.command("penstock", "invite", "eu-fr", *where), check=True)
        began = time.monotonic()
        program, *argv = second.command(
            "penstock", "join", invitation, "--engine", second.engine, "--dir", str(directory / "second")
        )
        with second.serving_engine(), running(*argv, program=program) as joined:
            assert second.chat(joined, key_in(shown)) == "eu-fr"
            return times | {"joined_answer_after_s": round(time.monotonic() - began, 1)}


def main() -> int:
    """Run the trials; exit code 1 if a first answer took too long, or a Python does not run."""
    wheel, directory, pythons = Path(sys.argv[1]), Path(sys.argv[2]).resolve(), sys.argv[3:]
    directory.mkdir(parents=True, exist_ok=True)
    # The checkout must not shadow what is installed.
    os.environ.pop("PYTHONPATH", None)
    # A shim of pyenv is on PATH, and does not run where no version is selected.
    runs = {f"python{version}": command for version, command in interpreters().items()}
    found, missing = [], []
    for name in pythons:
        python = runs.get(name, name)
        if shutil.which(python) is None or subprocess.run([python, "-V"], capture_output=True).returncode:
            print(f"{name} does not run here, so that it is not tried: name one that does in PYTHONS")
            missing.append(name)
            continue
        found.append(trial(wheel, python, directory / Path(name).name))
        print(found[-1], flush=True)
    (directory / "report.json").write_text(json.dumps(found, indent=2) + "\n")
    slow = [
        each for each in found if each["first_answer_after_s"] > MAX_FIRST_ANSWER_S * max(1.0, each["load_per_core"])
    ]
    return 1 if slow or missing else 0


if __name__ == "__main__":
    sys.exit(main())
