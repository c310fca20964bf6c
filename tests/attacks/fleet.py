"""The fleet that is attacked: real etcd, Valkey, control planes and agents as processes, with scripted engines."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import msgspec

from adapters.etcd.etcd_store import EtcdStore
from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY
from adapters.servers.etcd import EtcdServer
from adapters.servers.redis import RedisServer
from adapters.store import keys
from adapters.store.codec import decode
from adapters.store.config_store import Put
from adapters.store.members import AgentMember
from lab.geoip import SITES, write_geoip
from lab.server_starting import start_etcd
from regional_agent.upstream.address import Address
from tests.attacks.engine import Engine, running_engine
from tests.support.admin_keys import ADMIN_HEADERS
from tests.support.agent_processes import AgentProcess
from tests.support.control_planes import OPERATOR, ControlPlaneServer, control_planes, roll_out_at_once
from tests.support.identities import agent_id, write_identity
from tests.support.paths import PLANET
from tests.support.redis_server import start_redis

SMALL, LARGE, IMAGES = "llama-3.1-8b", "llama-3.1-70b", "images"
"""SMALL runs in every region, LARGE in eu-es only, IMAGES in eu-de only."""

SLOTS = 8

DNS_AGENT = "eu-de/a"
DNS_ZONE, DNS_NAME = "api.example.com", "eu.api.example.com"
EU_ENTRIES = frozenset({"192.0.2.10", "192.0.2.20"})
"""The addresses of the regions to which DNS_NAME may resolve."""

ENTRIES = {"eu-de": "192.0.2.10", "eu-es": "192.0.2.20", "us-east": "198.51.100.30"}

DNS_NAMES = f"""
apiVersion: penstock/v1
kind: DnsZone
name: {DNS_ZONE}
name_servers: {{ns1.{DNS_ZONE}: [192.0.2.53]}}
contact: hostmaster.{DNS_ZONE}
---
apiVersion: penstock/v1
kind: DnsName
name: {DNS_NAME}
regions: {{jurisdictions: [EU]}}
tenants: [victim]
"""

SMALL_LIMITS = {
    "kept_body_bytes": 1048576,
    "max_kept_bytes": 16777216,
    "max_connection_rate_per_address": 10,
    "max_request_rate_per_address": 50,
}
REGISTRATION_TOKEN = "a-registration-token-of-the-attacked-fleet"
IN_HAMBURG = {"x-forwarded-for": "198.18.1.7"}

TENANTS = {
    "victim": "open",
    "attacker": "open",
    "revoked": "open",
    "moved": "open",
    "single": "open",
    "de-victim": "open",
    "es-victim": "open",
    "es-attacker": "open",
    "us-victim": "us-restricted",
    "us-attacker": "us-restricted",
}
"""Data class of each tenant beyond those of the example bundle. The key of a tenant is `key-<name>`."""

TENANTS_OF_ONE_REGION = """
---
apiVersion: penstock/v1
kind: ResidencyRule
name: tenants-of-spain
description: So that nothing of them spills to another region.
match:
  tenants: [es-victim, es-attacker]
allow:
  regions: [eu-es]
---
apiVersion: penstock/v1
kind: AcceptedLoss
name: one-region-in-spain
regions: [eu-es]
because: The attacks need tenants whose requests cannot leave one region.
---
apiVersion: penstock/v1
kind: ResidencyRule
name: tenants-of-germany
description: So that nothing of them spills to another region.
match:
  tenants: [de-victim]
allow:
  regions: [eu-de]
---
apiVersion: penstock/v1
kind: AcceptedLoss
name: one-region-in-germany
regions: [eu-de]
because: The attacks need tenants whose requests cannot leave one region.
"""

IMAGE_MODEL = """
---
apiVersion: penstock/v1
kind: Model
name: images
expected_service_s: 1
cost: {unit: megapixel_step, output_unit_s: 0.01}
"""

KEPT_RESPONSES = """
---
apiVersion: penstock/v1
kind: ResultCache
name: deterministic-chats
routes: [openai-chat-completions]
tenants: [victim, attacker]
"""
"""Responses to requests with temperature 0 are kept."""

TIERS = f"""
apiVersion: penstock/v1
kind: Tier
name: made
data_class: open
---
apiVersion: penstock/v1
kind: Tier
name: made-small
data_class: open
models: [{SMALL}]
"""
"""Tiers of tenants that attacks create over the API."""

JOB_STORE = """
apiVersion: penstock/v1
kind: JobStore
name: jobs
url: file://{folder}
regions: [eu-es]
"""

Holds = Callable[[], Awaitable[object]]


def key_of(tenant: str) -> dict[str, str]:
    """Headers of a client with the tenant's key."""
    return {"authorization": f"Bearer key-{tenant}"}


def tenant_document(name: str, data_class: str) -> str:
    """The policy document of a tenant."""
    digest = sha256(f"key-{name}".encode()).hexdigest()
    quota = "\nquota: {concurrent: 1}" if name == "single" else ""
    return (
        f"\n---\napiVersion: penstock/v1\nkind: Tenant\nname: {name}\ndata_class: {data_class}\n"
        f'key_digests: ["{digest}"]{quota}\n'
    )


class Fleet:
    """The processes of the fleet, and what strangers, tenants and operators reach of it."""

    def __init__(self, directory: Path, etcd: EtcdServer, redis: RedisServer) -> None:
        self.directory = directory
        self.etcd = etcd
        self.redis = redis
        self.bundle = directory / "policy"
        self.geoip = directory / "geoip.mmdb"
        self._rules_once: set[str] = set()
        """Names of the rules that `write_policy` has ever added."""
        self.control_planes: list[ControlPlaneServer] = []
        self.agents: dict[str, AgentProcess] = {}
        """By region/name."""
        self.engines: dict[str, Engine] = {}
        """By region; `large` and `images` for those models."""
        self.store = EtcdStore([etcd.endpoint])
        """etcd as a stranger with write access sees it: nothing is signed or checked."""
        self.http = httpx.AsyncClient(timeout=60.0, limits=httpx.Limits(max_connections=None))
        self.stolen_dir = write_identity(directory / "stolen", agent_id("us-east", "a"))
        """The certificate and the key of an agent, as a thief has them."""
        self.peers = httpx.AsyncClient(timeout=60.0, verify=tls_with(self.stolen_dir))
        """Connects to peer listeners with the stolen certificate."""

    def address(self, agent: str, face: str = "traffic") -> Address:
        """Where an agent listens."""
        return self.agents[agent].faces()[face]

    @property
    def dns_socket(self) -> Path:
        """The socket at which a PowerDNS asks DNS_AGENT."""
        return self.directory / "dns.sock"

    async def peer_url(self, agent: str) -> str:
        """The URL at which an agent is registered for those of other regions."""
        stored = await self.stored(keys.agent(*agent.split("/")))
        return decode(stored.partition(b"\n")[2], AgentMember).peer_url

    async def chat(
        self, agent: str, tenant: str, model: str = SMALL, headers: dict[str, str] | None = None, **fields: object
    ) -> httpx.Response:
        """Sends a chat request; `fields` are more of its body, `seconds` the time that the engine takes."""
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "user": tenant, **fields}
        url = f"http://{self.address(agent)}/v1/chat/completions"
        return await self.http.post(url, json=body, headers=key_of(tenant) | IN_HAMBURG | (headers or {}))

    async def status(self, agent: str) -> dict[str, Any]:
        """The status page of an agent."""
        found: dict[str, Any] = (
            await self.http.get(f"http://{self.address(agent, 'admin')}/status", headers=ADMIN_HEADERS)
        ).json()
        return found

    async def digests(self) -> set[str]:
        """Digests of the policies that the agents have in force."""
        return {(await self.status(agent))["policy_digest"] for agent in self.agents}

    async def leader(self) -> ControlPlaneServer | None:
        """The control plane that leads; None while none does."""
        for server in self.control_planes:
            if (await self.http.get(f"{server.url}/v1/status", headers=OPERATOR)).json().get("leading"):
                return server
        return None

    async def follower(self) -> ControlPlaneServer:
        """A control plane that does not lead."""
        leader = await self.leader()
        return next(server for server in self.control_planes if server is not leader)

    def dead(self) -> list[str]:
        """Processes that have ended."""
        processes = {server.name: server for server in self.control_planes} | self.agents
        return [name for name, process in processes.items() if not process.alive]

    async def write(self, key: str, value: bytes) -> None:
        """Write to etcd without the fleet's keys."""
        await self.store.commit((), (Put(key, value),))

    async def stored(self, key: str) -> bytes:
        """What etcd has under a key; empty if there is nothing."""
        item = await self.store.get(key)
        return b"" if item is None else item.value

    def write_policy(self, tenants: dict[str, str] | None = None, rules: str = "") -> None:
        """Write the bundle of the fleet: the example bundle with more tenants and rules."""
        names = set(re.findall(r"^name: (\S+)$", rules, re.MULTILINE))
        self._rules_once |= names
        removed = sorted(self._rules_once - names)
        accepted = f"residency_rules: [{', '.join(removed)}]\nbecause: The attack is over.\n"
        if removed:
            document = f"apiVersion: penstock/v1\nkind: AcceptedRemoval\nname: attack\n{accepted}"
            _replace(self.bundle / "removed.yaml", document)
        else:
            (self.bundle / "removed.yaml").unlink(missing_ok=True)
        tenants = TENANTS if tenants is None else tenants
        documents = "".join(tenant_document(name, data_class) for name, data_class in tenants.items())
        _replace(self.bundle / "tenants.yaml", (PLANET / "tenants.yaml").read_text() + documents + KEPT_RESPONSES)
        _replace(
            self.bundle / "residency.yaml", (PLANET / "residency.yaml").read_text() + TENANTS_OF_ONE_REGION + rules
        )

    def write_models(self, added: str = IMAGE_MODEL) -> None:
        """Write the models of the fleet: those of the example bundle and `added`."""
        _replace(self.bundle / "models.yaml", (PLANET / "models.yaml").read_text() + added)

    def write_names(self) -> None:
        """Write the entries of regions, and the DNS names."""
        regions = (PLANET / "regions.yaml").read_text()
        for region, address in ENTRIES.items():
            regions = regions.replace(f"name: {region}\n", f"name: {region}\nentry: {{addresses: [{address}]}}\n")
        _replace(self.bundle / "regions.yaml", regions)
        _replace(self.bundle / "dns.yaml", DNS_NAMES)

    async def counted(self) -> list[str]:
        """The endpoints and queues that still count a request."""
        found = []
        for agent in self.agents:
            status = await self.status(agent)
            found += [f"{agent} {endpoint['name']}" for endpoint in status["endpoints"] if endpoint["in_flight"]]
            found += [f"{agent} queue {model}" for model, waiting in status["waiting"].items() if waiting]
        return found

    async def idle(self) -> bool:
        """Whether no agent counts a request in flight or waiting."""
        return not await self.counted()

    async def healthy(self) -> bool:
        """Whether `problem` finds none."""
        return await self.problem() is None

    async def problem(self) -> str | None:
        """The first problem of the idle fleet; empty if a control plane leads and every region serves."""
        if await self.leader() is None:
            return "no control plane leads"
        if counted := await self.counted():
            return f"requests are counted: {', '.join(counted)}"
        for agent, model in (*((agent, SMALL) for agent in self.agents), ("eu-de/a", LARGE)):
            answer = await self.chat(agent, "victim", model)
            if answer.status_code != 200:
                return f"{agent} answers {answer.status_code} for {model}: {answer.text[:200]}"
        return None


async def within(seconds: float, holds: Holds) -> bool:
    """Whether `holds` becomes true within a time."""
    deadline = time.monotonic() + seconds
    while not await holds():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.1)
    return True


def _replace(file: Path, content: str) -> None:
    beside = file.with_suffix(".new")
    beside.write_text(content)
    beside.replace(file)


def tls_with(identity_dir: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=identity_dir / AUTHORITIES)
    context.load_cert_chain(identity_dir / CERTIFICATE, identity_dir / PRIVATE_KEY)
    return context


def _endpoint(name: str, engine: Engine, model: str, slots: int) -> dict[str, object]:
    url = f"http://{engine.address}"
    return {"name": name, "url": url, "models": [model], "slots": slots, "queue": 0, "engine": "http"}


@asynccontextmanager
async def running_fleet(directory: Path) -> AsyncIterator[Fleet]:
    """Two control planes, and agents in eu-de (two), eu-es and us-east that serve; all of it stopped at the end."""
    async with AsyncExitStack() as stack:
        etcd = stack.enter_context(await asyncio.to_thread(start_etcd, directory / "etcd"))
        redis = stack.enter_context(await asyncio.to_thread(start_redis, directory / "redis"))
        fleet = Fleet(directory, etcd, redis)
        stack.push_async_callback(fleet.http.aclose)
        stack.push_async_callback(fleet.peers.aclose)
        stack.push_async_callback(fleet.store.close)
        for name in ("eu-de", "eu-es", "us-east", "large", "images"):
            fleet.engines[name] = await stack.enter_async_context(running_engine())
        write_geoip(fleet.geoip, SITES)
        shutil.copytree(PLANET, fleet.bundle)
        roll_out_at_once(fleet.bundle)
        fleet.write_models()
        fleet.write_policy()
        (fleet.bundle / "tiers.yaml").write_text(TIERS)
        (fleet.bundle / "jobs.yaml").write_text(JOB_STORE.format(folder=directory / "jobs"))
        fleet.write_names()
        viewers = [{"name": name, "sha256": sha256(name.encode()).hexdigest(), "role": "viewer"} for name in VIEWERS]
        monitor = {"name": MONITOR, "sha256": sha256(MONITOR.encode()).hexdigest(), "role": "monitor"}
        (directory / "keys.yaml").write_text(json.dumps([*viewers, monitor]))
        settings = {
            "POLICY_DIR": str(fleet.bundle),
            "API_KEYS_FILE": str(directory / "keys.yaml"),
            "GEOIP_FILE": str(fleet.geoip),
        }
        servers = control_planes("ab", directory / "control-planes", etcd.endpoint, policy_settings=settings)
        fleet.control_planes = await asyncio.to_thread(servers.__enter__)
        stack.push(servers)
        for agent in ("eu-de/a", "eu-de/b", "eu-es/a", "us-east/a"):
            fleet.agents[agent] = process = _agent(fleet, *agent.split("/"))
            stack.callback(process.stop)
            process.start()
        for process in fleet.agents.values():
            await asyncio.to_thread(process.wait_ready, 60.0)
        yield fleet


@asynccontextmanager
async def agent_with_tls(fleet: Fleet, name: str) -> AsyncIterator[Address]:
    """One more agent of eu-es, with the default limits, whose clients connect with TLS: where it listens for them."""
    identity = fleet.directory / f"eu-es-{name}" / "identity"
    files = {"TRAFFIC_CERTIFICATE_FILE": str(identity / CERTIFICATE), "TRAFFIC_KEY_FILE": str(identity / PRIVATE_KEY)}
    process = _agent(fleet, "eu-es", name, **files)
    try:
        await asyncio.to_thread(process.start)
        await asyncio.to_thread(process.wait_ready, 60.0)
        yield process.faces()["traffic"]
    finally:
        await asyncio.to_thread(process.stop)


VIEWERS = ("viewer-one-key", "viewer-two-key", "viewer-three-key")
MONITOR = "monitor-one-key"


def _agent(fleet: Fleet, region: str, name: str, **settings: str) -> AgentProcess:
    endpoints = [_endpoint(f"{region}-small", fleet.engines[region], SMALL, 1 if region == "us-east" else SLOTS)]
    if region == "eu-es":
        endpoints.append(_endpoint("eu-es-large", fleet.engines["large"], LARGE, 1))
    if region == "eu-de":
        endpoints.append(_endpoint("eu-de-images", fleet.engines["images"], IMAGES, 4))
    directory = fleet.directory / f"{region}-{name}"
    directory.mkdir()
    (directory / "endpoints.yaml").write_bytes(msgspec.yaml.encode(endpoints))
    (directory / "registration.token").write_text(REGISTRATION_TOKEN)
    (directory / "webhook.keys").write_text("0123456789abcdef" * 4)
    (directory / "webhook.keys").chmod(0o600)
    return AgentProcess(
        name,
        directory,
        region=region,
        etcd_endpoint=fleet.etcd.endpoint,
        redis_url=fleet.redis.url,
        endpoints_file=directory / "endpoints.yaml",
        settings={
            "CONTROL_PLANE_URLS": ",".join(server.url for server in fleet.control_planes),
            "GEOIP_FILE": str(fleet.geoip),
            "TRUSTED_PROXIES": "127.0.0.1/32",
            "PICKER_LISTEN": "127.0.0.1:0",
            **({"DNS_SOCKET": str(fleet.dns_socket)} if f"{region}/{name}" == DNS_AGENT else {}),
            "WEBHOOK_KEY_FILE": str(directory / "webhook.keys"),
            "REGISTRATION_TOKEN_FILE": str(directory / "registration.token"),
            # Small enough that an attack reaches them within seconds; eu-es has the defaults.
            **({} if region == "eu-es" else {"LIMITS": json.dumps(SMALL_LIMITS)}),
            **settings,
        },
    )
