"""An engine registers at the admin listener, serves, drains and is removed: real sockets on every side."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from regional_agent.endpoints.endpoint_registration import Registrations
from regional_agent.http.limits import Limits
from regional_agent.http.listener import Listener
from regional_agent.upstream.address import Address
from tests.support.agents import Agent, admin_service, running_agent
from tests.support.engines import running_engines
from tests.support.planet import MODEL
from tests.support.sockets import Answer, RawClient, post
from tests.support.wait import until

TOKEN = "0123456789abcdef-registration"


@asynccontextmanager
async def admin(agent: Agent, directory: Path) -> AsyncIterator[Address]:
    """Run the admin listener of an agent, with a registration token."""
    (directory / "tokens").write_text(TOKEN)
    registrations = Registrations(agent.endpoints, directory / "tokens")
    listener = Listener(admin_service(agent, registrations), Limits(idle_linger_s=0.0))
    try:
        yield Address(*await listener.start("127.0.0.1", 0))
    finally:
        listener.stop_accepting()
        await listener.drain(0.0)


async def call(address: Address, method: str, path: str, body: Any = None, token: str = TOKEN) -> Answer:
    client = await RawClient.connect(address)
    raw = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: admin\r\nAuthorization: Bearer {token}\r\n"
    client.send(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
    try:
        return await client.answer()
    finally:
        client.close()


async def test_an_engine_registers_serves_and_is_removed(tmp_path: Path) -> None:
    with running_engines(tmp_path, {"name": "new", "time_scale": 1}) as process:
        async with running_agent(tmp_path / "agent", []) as agent, admin(agent, tmp_path) as address:
            agent.endpoints.start()
            spec = {"url": process.urls["new"], "models": [MODEL], "slots": 8, "engine": "vllm", "zone": "a"}
            assert (await call(address, "PUT", "/v1/endpoints/new", spec, token="wrong")).status == 401
            assert (await call(address, "PUT", "/v1/endpoints/new", spec)).status == 201
            await until(lambda: agent.endpoints.pools[MODEL].ready == 1)

            client = await RawClient.connect(agent.traffic)
            request = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stream": True}
            client.send(post(json.dumps({**request, "max_tokens": 400, "ignore_eos": True}).encode()))
            assert (await client.head())[0] == 200
            await client.chunk()
            drained = json.loads((await call(address, "DELETE", "/v1/endpoints/new")).body)
            assert drained == {"name": "new", "draining": True, "in_flight": 1}
            listed = json.loads((await call(address, "GET", "/v1/endpoints")).body)["endpoints"]
            assert [(shown["name"], shown["draining"], shown["loaded"]) for shown in listed] == [("new", True, [MODEL])]
            assert agent.endpoints.pools[MODEL].ready == 0

            parts = []
            while part := await client.chunk():
                parts.append(part)
            assert b"".join(parts).rstrip().endswith(b"data: [DONE]")
            client.close()
            await until(lambda: not list(agent.endpoints.every()))
            assert json.loads((await call(address, "GET", "/v1/endpoints")).body) == {"endpoints": []}
            await agent.endpoints.stop()
