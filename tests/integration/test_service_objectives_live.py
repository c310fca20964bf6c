"""A service objective from bundle to status: a slow engine misses the objective, and the status shows the misses."""

from __future__ import annotations

import asyncio
from io import StringIO
from pathlib import Path
from shutil import copytree

from rich.console import Console

from adapters.servers.etcd import EtcdServer
from control_plane.cli.views.status_view import status_view
from control_plane.status.status import RegionStatus, Status
from tests.support.agent_processes import AgentProcess, write_endpoints
from tests.support.chats import BODY
from tests.support.control_planes import PLANET, Operator, control_planes
from tests.support.planet import MODEL
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import PATIENCE_S

WANTED = "service_objective: { first_byte_s: 1.5, total_s: 60, share: 0.99 }"
ASKED = 3


def bundle(directory: Path, objective: str) -> Path:
    """The demo's bundle, without API keys, with one objective."""
    copytree(PLANET, directory)
    models = (directory / "models.yaml").read_text()
    assert models.count(WANTED) == 1
    (directory / "models.yaml").write_text(models.replace(WANTED, objective))
    (directory / "anonymous.yaml").write_text("apiVersion: penstock/v1\nkind: AnonymousAccess\ntenant: open\n")
    return directory


def here(status: Status) -> RegionStatus:
    return next(region for region in status.regions if region.name == "eu-de")


def render(status: Status) -> str:
    """Render the status as `penstock status` does."""
    console = Console(width=200, file=StringIO())
    console.print(status_view(status))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


async def test_an_engine_too_slow_for_the_objective_is_reported(tmp_path: Path, own_etcd: EtcdServer) -> None:
    async def slowly(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if received.head.startswith(b"POST"):
            await asyncio.sleep(0.05)  # five times as long as the objective allows
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n{"choices": [], "data": []}')

    policies = bundle(tmp_path / "bundle", "service_objective: {first_byte_s: 0.01, share: 0.9}")
    with control_planes("a", tmp_path, own_etcd.endpoint, policies) as (server,):
        async with engine(slowly) as gpu, Operator() as operator:
            agent = AgentProcess(
                "one",
                tmp_path / "agent",
                region="eu-de",
                etcd_endpoint=own_etcd.endpoint,
                redis_url=None,
                endpoints_file=write_endpoints(tmp_path / "endpoints.yaml", [gpu.address], 4),
                settings={"CONTROL_PLANE_URLS": server.url},
            )
            agent.start()
            try:
                await asyncio.to_thread(agent.wait_ready, PATIENCE_S)
                before = await operator.until(server, lambda status: bool(here(status).objectives))
                (reported,) = here(before).objectives
                assert (reported.model, reported.limit_s, reported.share) == (MODEL, 0.01, 0.9)
                assert (reported.answers, reported.is_met) == (0, None)
                for _ in range(ASKED):
                    client = await RawClient.connect(agent.faces()["traffic"])
                    client.send(post(BODY))
                    assert (await client.answer()).status == 200
                    client.close()
                after = await operator.until(server, lambda status: here(status).objectives[0].answers == ASKED)
                (reported,) = here(after).objectives
                assert (reported.within, reported.attained, reported.is_met) == (0, 0.0, False)
                table = render(after)
                assert "0.01 s" in table
                assert f"eu-de 0.00% of {ASKED}" in table
                page = (await asyncio.to_thread(agent.ask, "/metrics")).text
                labels = f'measure="first_byte",met="false",model="{MODEL}"'
                missed = f"penstock_agent_slo_requests_total{{{labels}}} {float(ASKED)}"
                assert missed in page.splitlines()
            finally:
                await asyncio.to_thread(agent.kill)
