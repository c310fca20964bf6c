"""The explanation of a request at the admin listener equals the decision for a real request."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Thread

import msgspec
import pytest
from typer.testing import CliRunner, Result

from adapters.access.api_keys import ApiKeys
from adapters.access.key_access import KeyAccess
from control_plane.cli.main import app
from control_plane.status.status import AgentStatus, LeaderStatus
from penstock.policy.geography import Location
from penstock.routing.affinity import session_key
from penstock.routing.explain import ConsideredRegion, Explanation, RegionVerdict
from penstock.routing.reasons import Reason
from regional_agent.http.limits import Limits
from regional_agent.http.listener import Listener
from regional_agent.upstream.address import Address
from tests.support.admin_keys import ADMIN_KEY, write_admin_keys
from tests.support.agents import Agent, admin_service, running_agent
from tests.support.identities import region_keyring
from tests.support.planet import MODEL, plan
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.unit.control_plane.cli.test_control_plane_cli import TOKEN, FakeControlPlane, status_of

NOBODY = Address("127.0.0.1", 1)
BODY = json.dumps({"model": MODEL, "messages": []}).encode()


async def answers(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{"choices": []}')


@asynccontextmanager
async def admin(agent: Agent, access: KeyAccess | None = None) -> AsyncIterator[Address]:
    agent.locator.locate = lambda address: Location("DE", "BE")
    listener = Listener(admin_service(agent, access=access), Limits(idle_linger_s=0.0))
    try:
        yield Address(*await listener.start("127.0.0.1", 0))
    finally:
        listener.stop_accepting()
        await listener.drain(0.0)


async def get(address: Address, path: str) -> tuple[int, bytes]:
    client = await RawClient.connect(address)
    client.send(f"GET {path} HTTP/1.1\r\nHost: admin\r\n\r\n".encode())
    try:
        answer = await client.answer()
    finally:
        client.close()
    return answer.status, answer.body


async def explained(address: Address, query: str) -> Explanation:
    status, body = await get(address, f"/explain?model={MODEL}&{query}")
    assert status == 200, body
    return msgspec.json.decode(body, type=Explanation)


def regions(explanation: Explanation) -> dict[str, ConsideredRegion]:
    return {considered.region: considered for considered in explanation.regions}


async def test_the_explanation_equals_the_decision(tmp_path: Path) -> None:
    async with (
        engine(answers) as serving,
        running_agent(
            tmp_path, [serving.address, NOBODY], plan=plan("eu-de", "eu-de+eu-es+us-east", eu_de=1.0)
        ) as agent,
        admin(agent) as address,
    ):
        for busy in list(agent.endpoints.every())[1:]:
            busy.view.draining = True
            busy.view.update_score()
        reported = await explained(address, "tenant=open&session=s")
        assert reported.chosen is not None
        assert [(seen.name, seen.done_s is not None, seen.reason) for seen in reported.endpoints] == [
            ("gpu-0", True, None),
            ("gpu-1", False, Reason.ENDPOINT_DRAINING),
        ]
        assert agent.held() == 0
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        answer = await client.answer()
        client.close()
        assert answer.headers["x-penstock-region"] == reported.chosen.region == "eu-de"
        assert answer.headers["x-penstock-endpoint"] == reported.endpoints[0].name


async def test_a_session_is_explained_where_it_has_spilled_to(tmp_path: Path) -> None:
    peers, credits = {"eu-es": NOBODY, "us-east": NOBODY}, {"us-east": 3}
    async with running_agent(tmp_path, [NOBODY], peers=peers, credits=credits) as agent, admin(agent) as address:
        agent.router.spilled.spilled(session_key(f"open/{MODEL}", b"s"), "us-east", time.monotonic())
        spilled, other = [await explained(address, f"tenant=open&session={name}") for name in ("s", "t")]
        assert (spilled.query.stays_in, other.query.stays_in) == ("us-east", "")
        assert spilled.chosen is not None
        assert other.chosen is not None
        assert (spilled.chosen.region, other.chosen.region) == ("us-east", "eu-de")


async def test_waits_and_credits_are_those_of_the_agent(tmp_path: Path) -> None:
    peers, credits = {"eu-es": NOBODY, "us-east": NOBODY}, {"us-east": 3}
    async with running_agent(tmp_path, [NOBODY], peers=peers, credits=credits) as agent, admin(agent) as address:
        reported = await explained(address, "tenant=open&tried=eu-de:saturated&overflow=true")
        seen = regions(reported)
        assert seen["us-east"].spends_credit
        assert seen["us-east"].view is not None
        assert seen["us-east"].view.credits == 3
        assert seen["eu-es"].reasons[0].reason is Reason.NO_CREDIT
        governed = regions(await explained(address, "tenant=personal&ip=192.0.2.1"))
        assert governed["us-east"].verdict is RegionVerdict.FORBIDDEN
        assert not agent.peers.spent


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "model: is missing"),
        ("model=m&model=n", "model: is repeated"),
        ("model=m&region=eu-de", "region: unknown parameter"),
        ("model=m&tried=atlantis", "no region 'atlantis'"),
        ("model=m&tried=eu-de:tired", "'tired' is not a reason"),
        ("model=m&ip=nonsense", "is not an IP address"),
        ("model=m&ip=192.0.2.1&country=DE", "country or subdivision is present too"),
        ("model=m&country=XX", "country: 'XX' is no country"),
        (f"model=m&key_digest={'0' * 64}", "no tenant has this key"),
        ("model", "malformed"),
    ],
)
async def test_invalid_queries_are_refused(tmp_path: Path, query: str, message: str) -> None:
    async with running_agent(tmp_path, []) as agent, admin(agent) as address:
        status, body = await get(address, f"/explain?{query}")
        assert status == 400
        assert message in json.loads(body)["problem"]


async def test_without_a_policy_the_error_states_so(tmp_path: Path) -> None:
    async with running_agent(tmp_path, []) as agent, admin(agent) as address:
        agent.config.policy = None
        status, body = await get(address, f"/explain?model={MODEL}")
        assert (status, json.loads(body)["problem"]) == (400, "this agent has no policy yet")


async def test_clients_cannot_use_explain(tmp_path: Path) -> None:
    async with running_agent(tmp_path, []) as agent:
        for face in (agent.traffic, agent.peer):
            assert (await get(face, f"/explain?model={MODEL}"))[0] == 404


async def test_the_command_prints_an_explanation(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    environment = {"COLUMNS": "200"}
    server = FakeControlPlane()
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    async def run(*arguments: str) -> Result:
        given = ("--url", server.url, "--token-file", str(tmp_path / "token"), "--model", MODEL, *arguments)
        runner = CliRunner(env=environment)
        return await asyncio.to_thread(runner.invoke, app, ["explain", *given], catch_exceptions=False)

    keys = ApiKeys(write_admin_keys(tmp_path / "keys.yaml"))
    access = KeyAccess(keys, region_keyring("eu-de"), key_setting="KEYS")
    (tmp_path / "agents.key").touch(mode=0o600)
    (tmp_path / "agents.key").write_text(ADMIN_KEY)
    try:
        async with running_agent(tmp_path / "agent", [NOBODY]) as agent, admin(agent, access) as address:
            known = AgentStatus("eu-de", "one", True, "http://p", f"http://{address}", 0.5)
            status = status_of("north", server.url, LeaderStatus("north", server.url, 7))
            server.answer = msgspec.json.encode(msgspec.structs.replace(status, agents=(known,)))
            refused = await run("--agent", "eu-de/one")
            assert (refused.exit_code, "the credential is missing" in refused.stderr) == (1, True)
            assert "--agents-key-file" in refused.stderr
            environment["PENSTOCK_AGENTS_KEY_FILE"] = str(tmp_path / "agents.key")
            shown = await run("--agent", "eu-de/one", "--tenant", "open", "--session", "s")
            assert shown.exit_code == 0, shown.stderr
            assert "gpu-0" in shown.stdout
            assert "as seen by agent eu-de/one" in shown.stdout
            assert "--origin is eu-es" in (await run("--agent", "eu-de/one", "--origin", "eu-es")).stderr
            assert "did you mean eu-de/one?" in (await run("--agent", "eu-de/on")).stderr
            bad = await run("--agent", "eu-de/one", "--ip", "nonsense")
            assert (bad.exit_code, "is not an IP address" in bad.stderr) == (2, True)
        gone = await run("--agent", "eu-de/one")
        assert (gone.exit_code, "check that this machine can reach the agent" in gone.stderr) == (1, True)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_a_batch_request_is_compared_by_what_the_agent_measures(tmp_path: Path) -> None:
    async with (
        engine(answers) as gpu,
        running_agent(tmp_path, [gpu.address], slots=4) as agent,
        admin(agent) as address,
    ):
        first = (await explained(address, "batch=true")).query.batch_work
        for _ in range(1000):
            agent.tally.message_bytes.count(MODEL, 10, 5_000_000)
        agent.endpoints.pools[MODEL].endpoints[0].completed(40.0)
        agent.endpoints.pools[MODEL].update_readiness()
        measured = (await explained(address, "batch=true")).query.batch_work
        assert first is not None
        assert measured is not None
        model = agent.config.policy.models[MODEL]
        assert (first.gpu_s, first.response_bytes) == (model.expected_service_s / 4, model.response_bytes)
        assert measured.gpu_s == agent.endpoints.pools[MODEL].service_s / 4 > first.gpu_s
        assert (measured.request_bytes < 100.0, measured.response_bytes > 4_900_000.0) == (True, True)
