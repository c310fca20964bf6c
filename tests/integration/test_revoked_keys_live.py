"""A leaked key stays revoked on a live fleet: through a canary rollout, a rollback, restarts, and the loss of etcd."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from control_plane.cli.main import app
from tests.attacks.by_tenants import ends, open_stream
from tests.attacks.fleet import TENANTS, Fleet, running_fleet
from tests.attacks.with_a_leaked_key import revoke, statuses
from tests.support.control_planes import OPERATOR, rollout_rules
from tests.support.wait import PATIENCE_S, until_async


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with running_fleet(tmp_path) as running:
        await until_async(running.healthy)
        yield running
        await asyncio.gather(*(asyncio.to_thread(agent.stop) for agent in running.agents.values()))


async def test_a_revoked_key_stays_revoked(fleet: Fleet) -> None:
    first = await _policy(fleet)
    stream = await open_stream(fleet, "revoked")
    ending = asyncio.create_task(ends(stream))
    rules = rollout_rules(canary_regions="[eu-de]", canary_s=3, min_requests=5, max_failure_increase=0.01, watch_s=1)
    (fleet.bundle / "rollout.yaml").write_bytes(rules)
    await until_async(lambda: _is_over(fleet, first))
    with_canary = await _policy(fleet)

    # During a canary: its requests are refused, its stream is ended, and the candidate is promoted all the same.
    fleet.write_policy({**TENANTS, "another": "open"})
    await until_async(lambda: _is_in_canary(fleet))
    await revoke(fleet)
    asking = asyncio.create_task(_keep_asking(fleet))
    try:
        await until_async(lambda: _is_refused(fleet))
        async with asyncio.timeout(PATIENCE_S):
            await ending
        await until_async(lambda: _is_over(fleet, with_canary))
        assert (await _rollout(fleet)).get("phase") == "done", await _rollout(fleet)
    finally:
        asking.cancel()
        await asyncio.wait({asking})
        stream.close()

    # After a rollback to a policy from before the revocation.
    leader = await fleet.leader()
    assert leader is not None
    url = f"{leader.url}/v1/policies/{with_canary}/rollback"
    back = await fleet.http.post(url, json={"reason": "a test"}, headers=OPERATOR | {"if-match": "*"})
    assert back.status_code < 300, back.text
    await until_async(lambda: _has_policy(fleet, with_canary))
    assert await statuses(fleet) == {401}

    # With new control planes.
    for server in fleet.control_planes:
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        await asyncio.to_thread(server.wait_ready, PATIENCE_S)
    await until_async(lambda: _leads(fleet))
    listed = (await fleet.http.get(f"{fleet.control_planes[0].url}/v1/revoked-keys", headers=OPERATOR)).json()["items"]
    assert [(key["tenant"], key["author"]) for key in listed] == [("revoked", "admin-token")]
    assert await statuses(fleet) == {401}

    await _with_a_created_tenant(fleet)


@pytest.mark.long
async def test_a_revoked_key_stays_revoked_at_agents_that_restart(fleet: Fleet) -> None:
    await revoke(fleet)
    await until_async(lambda: _is_refused(fleet))

    # With an agent that starts while etcd is down.
    await asyncio.to_thread(fleet.etcd.stop)
    agent = fleet.agents["eu-de/b"]
    await asyncio.to_thread(agent.stop)
    await asyncio.to_thread(agent.start)
    await asyncio.to_thread(agent.wait_ready, PATIENCE_S)
    assert (await fleet.chat("eu-de/b", "victim")).status_code == 200
    assert (await fleet.chat("eu-de/b", "revoked")).status_code == 401
    assert (await fleet.status("eu-de/b"))["revoked_keys"]["count"] == 1
    await asyncio.to_thread(fleet.etcd.start)
    await asyncio.to_thread(fleet.etcd.wait_ready, PATIENCE_S)

    # Only a lift ends the revocation, also at that agent.
    await until_async(lambda: _leads(fleet))
    (line,) = await _penstock(fleet, "revoked-keys")
    assert line["tenant"] == "revoked"
    await _penstock(fleet, "lift-key", line["id"], "--reason", "a test")
    await until_async(lambda: _is_served(fleet))

    # An agent with an empty disk reads the list.
    (fleet.directory / "key").write_text("key-revoked\n")
    revoked = await _penstock(fleet, "revoke-key", "--key-file", str(fleet.directory / "key"), "--reason", "a test")
    assert revoked["tenant"] == "revoked"
    await until_async(lambda: _is_refused(fleet))
    agent = fleet.agents["eu-es/a"]
    await asyncio.to_thread(agent.stop)
    shutil.rmtree(fleet.directory / "eu-es-a" / "state")
    await asyncio.to_thread(agent.start)
    await asyncio.to_thread(agent.wait_ready, PATIENCE_S)
    await until_async(lambda: _is_refused(fleet))


async def _with_a_created_tenant(fleet: Fleet) -> None:
    """A tenant that the API creates is served within a moment, with no rollout, and its revoked key is refused."""
    await _penstock(fleet, "create", "acme", "--tier", "made")
    made = await _penstock(fleet, "key", "create", "acme")
    headers = {"authorization": f"Bearer {made['key']}"}

    async def answers(status: int) -> bool:
        return {(await fleet.chat(agent, "acme", headers=headers)).status_code for agent in fleet.agents} == {status}

    await until_async(lambda: answers(200))
    for verb, status in (("suspend", 403), ("resume", 200)):
        await _penstock(fleet, verb, "acme", "--reason", "a test")
        await until_async(lambda status=status: answers(status))
    await _penstock(fleet, "key", "revoke", "acme", made["view"]["id"], "--reason", "leaked")
    await until_async(lambda: answers(401))


async def _penstock(fleet: Fleet, *arguments: str) -> Any:
    """Output of a `penstock tenant` command."""
    server = fleet.control_planes[0]
    options = ("--url", server.url, "--token-file", str(fleet.directory / "control-planes/a/admin.token"), "-o", "json")
    result = await asyncio.to_thread(CliRunner().invoke, app, ["tenant", *arguments, *options])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


async def _keep_asking(fleet: Fleet) -> None:
    """Send requests with a good key, by which the candidate is judged, and many more with the revoked one."""
    while True:
        await fleet.chat("eu-de/a", "victim")
        for agent in ("eu-de/a", "eu-de/b", "us-east/a"):
            await fleet.chat(agent, "revoked")


async def _rollout(fleet: Fleet) -> dict[str, Any]:
    current = await fleet.http.get(f"{fleet.control_planes[0].url}/v1/rollouts/current", headers=OPERATOR)
    found: dict[str, Any] = current.json().get("rollout", {})
    return found


async def _policy(fleet: Fleet) -> str:
    (digest,) = await fleet.digests()
    return digest


async def _has_policy(fleet: Fleet, digest: str) -> bool:
    return await fleet.digests() == {digest}


async def _is_over(fleet: Fleet, earlier: str) -> bool:
    """Whether the rollout was rolled back, or is done and all agents have a policy other than `earlier`."""
    phase = (await _rollout(fleet)).get("phase")
    digests = await fleet.digests()
    return phase == "rolled_back" or (phase == "done" and len(digests) == 1 and digests != {earlier})


async def _is_in_canary(fleet: Fleet) -> bool:
    return str((await _rollout(fleet)).get("phase")) == "canary"


async def _is_refused(fleet: Fleet) -> bool:
    return await statuses(fleet) == {401}


async def _is_served(fleet: Fleet) -> bool:
    return await statuses(fleet) == {200}


async def _leads(fleet: Fleet) -> bool:
    with suppress(httpx.HTTPError):
        return await fleet.leader() is not None
    return False
