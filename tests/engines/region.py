"""A region with one agent, in front of whatever engines the cases start: real etcd, Valkey and `penstock-agent`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import msgspec

from adapters.servers.errors import NotReady
from adapters.servers.free_ports import LOOPBACK, free_ports
from adapters.servers.process import ServerProcess
from control_plane.policy.compiler import compile_bundle
from lab.envoy_picker import envoy_process, picker_configuration
from lab.server_starting import start_etcd
from regional_agent.upstream.address import Address
from tests.engines.environments import Installed
from tests.support.agent_processes import AgentProcess, publish
from tests.support.redis_server import start_redis

REGION = "eu-de"
MODEL, CONTINUED, ADAPTER = "tiny", "tiny-continued", "tiny-lora"
"""The same weights under two names, of which the second has `continue_streams`; and a LoRA adapter."""
ON_DEMAND = "tiny-on-demand"
"""The same weights under a name that sleeps while no request needs it."""
MODELS = (MODEL, CONTINUED, ADAPTER, "tiny-gguf", "embedder", "sum", "sum-stream", "echo")
PRESETS = ["openai", "anthropic", "kserve", "predict", "vllm"]
SERVE_TIMEOUT_S = 60.0
FILE_READ_S = 3.0
"""Time (s) after which an agent has read a changed endpoints file."""
RATE_LIMITED = [f"limited-{number}" for number in range(8)]
"""Tenants with a rate limit; each case uses one of its own, because the limit is per tenant."""
RETRY_AFTER_S = 2.0
"""Time after which a request of a rate-limited tenant is admitted again."""


def key_of(tenant: str) -> str:
    """The API key of a tenant."""
    return f"key-{tenant}"


def _bundle(jobs: Path) -> dict[str, str]:
    region = {"kind": "Region", "name": REGION, "country": "DE", "latitude_deg": 50.11, "longitude_deg": 8.68}
    documents: list[dict[str, Any]] = [region, {"kind": "DataClass", "name": "open"}]
    presets = {"kind": "RoutePresets", "presets": PRESETS}
    documents.append(presets)
    # Context lengths count for models whose cost is that of tokens.
    cost = {MODEL: {"cost": {"unit": "token", "output_unit_s": 0.01}}}
    documents += [
        {"kind": "Model", "name": model, "continue_streams": model == CONTINUED, "queueing": {"preempt_batch": True}}
        | cost.get(model, {})
        for model in MODELS
    ]
    on_demand = {"wake": "vllm", "idle_s": 5, "scale_to_zero": True}
    scaling = {"cold_start_s": 5, "min_endpoints": 0}
    documents.append({"kind": "Model", "name": ON_DEMAND, "scaling": scaling, "on_demand": on_demand})
    for tenant in ("tester", *RATE_LIMITED):
        digest = sha256(key_of(tenant).encode()).hexdigest()
        documents.append({"kind": "Tenant", "name": tenant, "data_class": "open", "key_digests": [digest]})
        if tenant in RATE_LIMITED:
            documents[-1]["quota"] = {"requests_per_s": 1.0 / RETRY_AFTER_S, "burst_requests": 1}
    documents.append(
        {"kind": "AcceptedLoss", "name": "one-region", "regions": [REGION], "because": "It is the only one."}
    )
    store = {"kind": "JobStore", "name": "jobs", "url": f"file://{jobs.resolve()}", "max_use_percent": 100}
    documents.append({**store, "regions": [REGION]})
    text = "---\n".join(
        msgspec.yaml.encode({"apiVersion": "penstock/v1", **document}).decode() for document in documents
    )
    return {"policy.yaml": text}


class Region:
    """The agent, the engines behind it, and the virtual environments that could be made."""

    def __init__(self, directory: Path, agent: AgentProcess) -> None:
        self.directory = directory
        self.agent = agent
        self.installed: dict[str, Installed] = {}
        """By name of the environment."""
        self.servers: dict[str, ServerProcess] = {}
        """Running engines, by the name of their endpoint."""
        self.urls: dict[str, str] = {}
        """By the name of the endpoint."""
        self.http = httpx.AsyncClient(timeout=60.0, headers={"authorization": f"Bearer {key_of('tester')}"})
        self._endpoints: dict[str, dict[str, Any]] = {}
        self._envoy: Address | None = None

    @property
    def url(self) -> str:
        """Where clients reach the agent."""
        return f"http://{self.agent.faces()['traffic']}"

    async def envoy_url(self) -> str:
        """Where clients reach an Envoy that asks the agent for the endpoint of each request; the first call starts it.

        It has the endpoints that run by then.
        """
        if self._envoy is None:
            port, admin = free_ports(2)
            picker, entry = self.agent.faces()["picker"], Address(LOOPBACK, port)
            ports = [Address.parse(url).port for url in self.urls.values()]
            config = picker_configuration(entry, admin, picker, ports)
            (cluster,) = [each for each in config["static_resources"]["clusters"] if each["name"] == "eu-grpc"]
            grpc_ports = [fields["grpc_port"] for fields in self._endpoints.values() if fields.get("grpc_port")]
            addresses = [{"socket_address": {"address": LOOPBACK, "port_value": each}} for each in grpc_ports]
            listed = [{"endpoint": {"address": address}} for address in addresses]
            cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": listed}]
            process = self.servers["envoy"] = envoy_process(self.directory / "envoy", config)
            await asyncio.to_thread(process.start)
            await asyncio.to_thread(process.wait_ready, SERVE_TIMEOUT_S)
            self._envoy = entry
        return f"http://{self._envoy}"

    async def status(self) -> dict[str, Any]:
        """The status page of the agent."""
        return await asyncio.to_thread(self.agent.status)

    async def endpoint(self, name: str) -> dict[str, Any]:
        """An endpoint as the status page of the agent shows it; empty if it is not there."""
        return next((shown for shown in (await self.status())["endpoints"] if shown["name"] == name), {})

    async def add(self, name: str, server: ServerProcess, url: str, models: list[str], **fields: object) -> None:
        """Put a started engine behind the agent, and wait until the agent uses it."""
        self.servers[name], self.urls[name] = server, url
        self._endpoints[name] = {"name": name, "url": url, "models": models, **fields}
        self._write()
        if not await within(SERVE_TIMEOUT_S, lambda: self.serves(name)):
            raise NotReady(f"the agent does not use {name}: {await self.endpoint(name)}")

    async def change(self, name: str, **fields: object) -> None:
        """Change fields of an endpoint, and wait until the agent has read them."""
        self._endpoints[name] |= fields
        self._write()
        await asyncio.sleep(FILE_READ_S)

    async def serves(self, name: str) -> bool:
        """Whether the agent sends requests to an endpoint; the first after an ejection is a trial."""
        shown = await self.endpoint(name)
        return bool(shown.get("ready")) and shown["ejection"] != "ejected"

    async def idle(self) -> bool:
        """Whether the agent counts no request in flight or waiting."""
        status = await self.status()
        return not any(shown["in_flight"] for shown in status["endpoints"]) and not any(status["waiting"].values())

    @property
    def access_log(self) -> Path:
        """One line per request."""
        return self.directory / "access.log"

    def _write(self) -> None:
        file = self.directory / "endpoints.yaml"
        beside = file.with_suffix(".new")
        beside.write_bytes(msgspec.yaml.encode(list(self._endpoints.values())))
        beside.replace(file)

    async def close(self) -> None:
        """Stop all started processes."""
        await self.http.aclose()
        for server in self.servers.values():
            await asyncio.to_thread(server.stop)


async def within(seconds: float, holds: Callable[[], Awaitable[object]]) -> bool:
    """Whether `holds` becomes true within a time."""
    deadline = time.monotonic() + seconds
    while not await holds():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


@asynccontextmanager
async def running_region(directory: Path) -> AsyncIterator[Region]:
    """A region without engines; all of it is stopped at the end."""
    async with AsyncExitStack() as stack:
        etcd = stack.enter_context(await asyncio.to_thread(start_etcd, directory / "etcd"))
        redis = stack.enter_context(await asyncio.to_thread(start_redis, directory / "redis"))
        await publish(etcd, compile_bundle(_bundle(directory / "jobs")))
        (directory / "endpoints.yaml").write_text("[]\n")
        agent = AgentProcess(
            "agent-1",
            directory / "agent",
            region=REGION,
            etcd_endpoint=etcd.endpoint,
            redis_url=redis.url,
            endpoints_file=directory / "endpoints.yaml",
            settings={
                "ACCESS_LOG_FILE": str(directory / "access.log"),
                "WARM_UP_S": "0",
                "PICKER_LISTEN": f"{LOOPBACK}:0",
            },
        )
        stack.callback(agent.stop)
        region = Region(directory, agent)
        stack.push_async_callback(region.close)
        agent.start()

        async def listens() -> bool:  # it is ready only once an engine is
            return bool(agent.faces())

        if not await within(SERVE_TIMEOUT_S, listens):
            raise NotReady(f"the agent does not listen: {agent.log_tail()}")
        yield region
