"""Changes are refused while other processes would ignore them, because the clocks disagree."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate

import httpx
import pytest
from msgspec.structs import replace

from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import Put
from adapters.store.members import Member
from control_plane.auth.authentication import Access
from control_plane.daemon import ControlPlane
from lab.memory_store import MemoryStore
from tests.support.api_app import OPERATOR, TOKEN, client_of, is_problem, leading_api, new_control_plane, served
from tests.support.loopback_server import LoopbackServer
from tests.support.reports import packed, report
from tests.support.wait import until

HOUR_S = 3600.0
FREEZE = {"kind": "freeze", "reason": "a holiday", "expires_in_s": 7200}
REVOKED = {"key_digest": "ab" * 32, "reason": "leaked"}


async def reported(api: httpx.AsyncClient, seq: int, *ahead_s: float) -> None:
    """Let agents report, of whose clocks the control plane is ahead by these times."""
    for number, each in enumerate(ahead_s):
        sent = replace(report("eu-de", agent=f"agent-{number}", seq=seq), sent_at=time.time() - each)
        body, headers = packed(sent)
        assert (await api.post("/v1/reports", content=body, headers=dict(headers))).status_code == 202


async def test_a_leader_that_disagrees_with_most_agents_refuses_changes(control_plane: ControlPlane) -> None:
    async with leading_api(control_plane) as api:
        await reported(api, 1, HOUR_S, HOUR_S, 0.0)
        refused = await api.post("/v1/overrides", json=FREEZE)
        assert is_problem(refused, 503)
        assert "3600 s ahead of that of most agents" in refused.json()["detail"]
        assert is_problem(await api.post("/v1/overrides", json=FREEZE, params={"dry_run": True}), 503)
        assert (await api.get("/v1/overrides")).json()["items"] == []
        assert (await api.post("/v1/revoked-keys", json=REVOKED)).status_code == 201, "counts by any clock"
        await reported(api, 2, HOUR_S, 0.0, 0.0)
        assert (await api.post("/v1/overrides", json=FREEZE)).status_code == 201


async def test_an_only_agent_is_named_and_counts_as_most(control_plane: ControlPlane) -> None:
    async with leading_api(control_plane) as api:
        await reported(api, 1, -HOUR_S)
        refused = await api.post("/v1/overrides", json=FREEZE)
        assert is_problem(refused, 503)
        assert "3600 s behind that of the only agent, eu-de/agent-0" in refused.json()["detail"]
        assert "stop the agents whose clocks are wrong" in refused.json()["detail"]
        (agent,) = (await api.get("/v1/status")).json()["agents"]
        assert agent["clock_ahead_s"] == pytest.approx(HOUR_S, abs=5.0)


class Dated(LoopbackServer):
    """Responds with a Date of a clock that is ahead by `ahead_s`."""

    ahead_s = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        date = formatdate(time.time() + self.ahead_s, usegmt=True).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\ndate: " + date + b"\r\n\r\n")
        await writer.drain()


async def test_a_follower_that_disagrees_with_the_leader_refuses_changes() -> None:
    store = MemoryStore()
    async with Dated() as leader:
        await store.commit((), (Put(keys.LEADER, encode(Member("north", leader.url))),))
        south = new_control_plane(store, "south")
        await south.start()
        await until(lambda: south.elector.leader is not None)
        async with client_of(served(south, Access(TOKEN)), **OPERATOR) as api:

            async def halted() -> httpx.Response:
                return await api.post("/v1/rollouts/current/halt", json={"reason": "errors"})

            assert (await halted()).status_code != 503
            leader.ahead_s = HOUR_S
            refused = await halted()
            assert is_problem(refused, 503)
            assert "s behind that of the leader, north" in refused.json()["detail"]
            assert (await api.post("/v1/revoked-keys", json=REVOKED)).status_code == 201, "counts by any clock"
            await leader.stop()
            assert (await halted()).status_code != 503, "a leader that does not respond keeps no change away"
        await south.stop()
    await store.close()
