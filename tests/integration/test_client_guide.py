"""The transport of docs/clients.md follows a 421 to the region that may process the request, with the key."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
from msgspec.structs import replace

from penstock.policy.kinds.region_entry import RegionEntry
from regional_agent.upstream.address import Address
from tests.support.agents import running_agent
from tests.support.chats import BODY, answers
from tests.support.paths import ROOT
from tests.support.sockets import engine


def transport(scheme: str, domain: str) -> httpx.HTTPTransport:
    """The transport as the page has it, for URLs of `scheme`."""
    code = (ROOT / "docs" / "clients.md").read_text().partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(code.replace('"https"', f'"{scheme}"'), names)
    made: httpx.HTTPTransport = names["EntryTransport"](domain)
    return made


async def chat(address: Address, transport: httpx.HTTPTransport) -> httpx.Response:
    def send() -> httpx.Response:
        with httpx.Client(transport=transport, timeout=30.0) as client:
            return client.post(f"http://{address}/v1/chat/completions", content=BODY)

    return await asyncio.to_thread(send)


async def test_the_client_follows_the_entry_url_below_its_domain(tmp_path: Path) -> None:
    async with (
        engine(answers) as gpu,
        running_agent(tmp_path / "1", [gpu.address], region="eu-de", anonymous="personal") as permitted,
        running_agent(tmp_path / "2", [gpu.address], region="us-east", anonymous="personal") as forbidden,
    ):
        config: Any = forbidden.config
        here = replace(config.policy.regions["eu-de"], entry=RegionEntry(f"http://{permitted.traffic}"))
        config.policy = replace(config.policy, regions=config.policy.regions | {"eu-de": here})
        answer = await chat(forbidden.traffic, transport("http", "127.0.0.1"))
        assert (answer.status_code, answer.headers["x-penstock-region"]) == (200, "eu-de")
        for refuses in (transport("http", ".elsewhere.example"), transport("https", "127.0.0.1")):
            answer = await chat(forbidden.traffic, refuses)
            assert (answer.status_code, answer.headers["x-penstock-regions"]) == (421, "eu-es,eu-de")
            assert answer.headers["x-penstock-entries"] == f"http://{permitted.traffic}"
