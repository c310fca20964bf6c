"""A job store, input files of batches, and a client of the Files and Batches APIs."""

from __future__ import annotations

import asyncio
import json
import os
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx

from penstock.policy.kinds.jobs import JobStore
from regional_agent.upstream.address import Address
from tests.support.planet import MODEL
from tests.support.sockets import ReceivedRequest, ScriptedEngine
from tests.support.wait import PATIENCE_S, until

EMBEDDINGS = "/v1/embeddings"


def job_store(folder: Path, *regions: str, **fields: Any) -> JobStore:
    """A store in a folder for some regions, eu-de by default."""
    return JobStore("jobs", f"file://{folder}", covers=frozenset(regions or ("eu-de",)), **fields)


def request_line(custom_id: str, text: str = "text", *, url: str = EMBEDDINGS, model: str = MODEL) -> bytes:
    """A line of an input file."""
    body = {"model": model, "input": text}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}).encode() + b"\n"


def input_file(requests: int) -> bytes:
    """An input file with the identifiers r0, r1 and so on."""
    return b"".join(request_line(f"r{number}", f"text {number}") for number in range(requests))


async def embeds(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    """The script of an engine that embeds: the answer has the text of the request. Probes are answered, too."""
    if not received.body:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        return
    body = json.dumps({"choices": [], "data": [], "text": json.loads(received.body)["input"]}).encode()
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )


class JobClient:
    """A client of one agent, with or without an API key."""

    def __init__(self, address: Address, key: str = "") -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.AsyncClient(base_url=f"http://{address}", headers=headers, timeout=PATIENCE_S)

    async def __aenter__(self) -> JobClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def upload(self, content: bytes, purpose: str = "batch") -> httpx.Response:
        """Upload a file."""
        files = {"file": ("input.jsonl", content)}
        return await self.http.post("/v1/files", data={"purpose": purpose}, files=files)

    async def create(self, file: str, endpoint: str = EMBEDDINGS, window: str = "24h", **more: Any) -> httpx.Response:
        """Create a batch; `headers` of `more` are sent, other fields are in the body."""
        headers = more.pop("headers", {})
        body = {"input_file_id": file, "endpoint": endpoint, "completion_window": window, **more}
        return await self.http.post("/v1/batches", json=body, headers=headers)

    async def started(self, content: bytes, **more: Any) -> str:
        """Upload a file and create its batch; returns the identifier."""
        uploaded = await self.upload(content)
        assert uploaded.status_code == 200, uploaded.text
        created = await self.create(uploaded.json()["id"], **more)
        assert created.status_code == 200, created.text
        return str(created.json()["id"])

    async def batch(self, batch: str) -> dict[str, Any]:
        """Return a batch."""
        response = await self.http.get(f"/v1/batches/{batch}")
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    async def ended(self, batch: str) -> dict[str, Any]:
        """Wait for the end of a batch, and return it."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await self.batch(batch)
                if found["status"] in ("completed", "failed", "expired", "cancelled"):
                    return found
                await asyncio.sleep(0.05)

    async def lines(self, file: str | None) -> list[dict[str, Any]]:
        """Return the lines of a result file; none for None."""
        if file is None:
            return []
        response = await self.http.get(f"/v1/files/{file}/content")
        assert response.status_code == 200, response.text
        return [json.loads(line) for line in response.content.splitlines()]


async def closed(store: Path) -> None:
    """Wait until a folder store has no mark of an open job. Agents remove it after the end, which clients see."""
    await until(lambda: not stored_files(store, "open/*"))


def stored_files(store: Path, pattern: str = "*") -> list[Path]:
    """Objects of a folder store with a path like `pattern`. Directories may vanish meanwhile, which `rglob` reports."""
    found = (Path(folder, name) for folder, _, names in os.walk(store) for name in names if name != ".penstock-store")
    return sorted(path for path in found if fnmatch(str(path.relative_to(store)), pattern))
