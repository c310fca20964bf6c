"""The events and the progress of a job, for a client that waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from penstock.jobs.response_progress import MAX_EVENT_BYTES, ResponseProgress
from penstock.routes.route import ModelLocation, ModelSource, Route, StreamKind
from regional_agent.jobs.api import job_events
from regional_agent.jobs.async_requests import request_run
from regional_agent.upstream.address import Address
from tests.integration.test_async_requests import submit
from tests.integration.test_batches import serving, with_tenants
from tests.support.agents import running_agent
from tests.support.chats import never_responds
from tests.support.engines import running_engines
from tests.support.jobs import JobClient, embeds, input_file, job_store
from tests.support.planet import MODEL
from tests.support.sockets import ReceivedRequest, ScriptedEngine, engine
from tests.support.wait import PATIENCE_S, until


async def events(client: JobClient, job: str) -> AsyncIterator[dict[str, Any]]:
    """Yield the states of a job until the stream ends."""
    async with asyncio.timeout(PATIENCE_S):
        async with client.http.stream("GET", f"/v1/jobs/{job}/events") as response:
            assert response.status_code == 200, await response.aread()
            assert response.headers["content-type"] == "text/event-stream"
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))


async def test_a_video_of_a_minute_is_a_job_with_progress_that_ends_at_the_engine_when_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_run, "RENEW_S", 0.05)
    monkeypatch.setattr(job_events, "MIN_POLL_S", 0.05)
    route = Route(
        "videos",
        "/v1/videos",
        model=(ModelLocation(ModelSource.JSON, "/model"),),
        stream=StreamKind.NDJSON,
        stream_field="/stream",
    )
    engines = {"name": "quick", "time_scale": 10}, {"name": "slow", "time_scale": 1}
    with running_engines(tmp_path, *engines) as lab:
        for name, ends in (("quick", True), ("slow", False)):
            url = urlsplit(lab.urls[name])
            address = Address(url.hostname or "", url.port or 0)
            store = job_store(tmp_path / "store")
            async with (
                running_agent(tmp_path / name, [address], job_store=store) as agent,
                JobClient(agent.traffic) as client,
            ):
                agent.config.policy = replace(agent.config.policy, routes=(route,))
                body = {"model": MODEL, "prompt": "a cat", "stream": True, "steps": 40}
                headers = {"prefer": "respond-async"}
                job = (await client.http.post("/v1/videos", json=body, headers=headers)).json()["id"]
                reported = []
                async for state in events(client, job):
                    shown = (state["progress"] or {}).get("reported")
                    reported += [] if shown is None else [shown]
                    if not ends and reported:
                        assert (await client.http.post(f"/v1/jobs/{job}/cancel")).status_code == 200
                    last = state
                assert reported == sorted(reported)
                if ends:
                    assert last["status"] == "completed"
                    assert len(set(reported)) > 1
                    lines = (await client.http.get(f"/v1/jobs/{job}/result")).text.splitlines()
                    assert [json.loads(line)["progress"] for line in lines][-2:] == [99, 100]
                else:
                    assert last["status"] == "cancelled"
                    await until(lambda: agent.held() == 0)
        await until(lambda: lab.findings().aborted.total() == 1)
        assert lab.findings().finished.total() == 1


async def test_a_client_reads_the_progress_and_the_end_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_run, "RENEW_S", 0.05)
    monkeypatch.setattr(job_events, "MIN_POLL_S", 0.05)
    seen, release = asyncio.Event(), asyncio.Event()

    async def renders(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if not received.body:
            return await embeds(e, received, writer)
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
            b'data: {"progress": 10}\n\ndata: {"progress": 40}\n\n'
        )
        await seen.wait()
        writer.write(b'data: {"text": "\\"progress\\": 99", "progress": 75}\n\n')
        await release.wait()
        writer.write(b"data: [DONE]\n\n")
        writer.close()
        return None

    async with engine(renders) as gpu, serving(tmp_path, gpu) as (_, client):
        job = (await submit(client)).json()["id"]
        reported = []
        async for state in events(client, job):
            if state["progress"] is not None:
                reported.append(state["progress"]["reported"])
                if reported[-1] == 40.0:
                    seen.set()
                if reported[-1] == 75.0:
                    assert state["progress"]["received_bytes"] > 48
                    release.set()
            last = state
        assert last["status"] == "completed"
        assert {40.0, 75.0} <= set(reported) <= {None, 10.0, 40.0, 75.0}
        assert [state["status"] async for state in events(client, job)] == ["completed"]
        batch = await client.started(input_file(2))
        states = [state["status"] async for state in events(client, batch)]
        assert states[-1] == "completed"
        assert (await client.http.get(f"/v1/jobs/job_{'0' * 32}/events")).status_code == 404


async def test_a_stream_ends_with_the_key_and_streams_of_a_tenant_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_events, "MIN_POLL_S", 0.05)
    monkeypatch.setattr(job_events, "MAX_POLL_S", 0.1)
    monkeypatch.setattr(job_events, "MAX_STREAMS_OF_TENANT", 1)

    async with engine(never_responds) as gpu, serving(tmp_path, gpu) as (agent, _):
        keys = with_tenants(agent, "a", "b")
        async with JobClient(agent.traffic, keys["a"]) as a, JobClient(agent.traffic, keys["b"]) as b:
            job = (await submit(a)).json()["id"]
            assert (await b.http.get(f"/v1/jobs/{job}/events")).status_code == 404
            stream = events(a, job)
            await anext(stream)
            refused = await a.http.get(f"/v1/jobs/{job}/events")
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "saturated")
            tenants = agent.config.policy.tenants
            changed = replace(tenants["a"], key_digests=(sha256(b"another-key").hexdigest(),))
            agent.config.policy = replace(agent.config.policy, tenants=tenants | {"a": changed})
            assert [state["status"] async for state in stream if state["status"] in ("completed", "failed")] == []


def test_progress_is_read_in_events_of_bounded_size() -> None:
    progress, headers = ResponseProgress(), {b"content-type": b"text/event-stream; charset=utf-8"}
    rest = b'ess": 0.5}\r\n\r\ndata: {"progress": true}\ndata: [1]\ndata: {"a": {"progress": 1}}\n'
    for part in (b'data: {"progr', rest):
        progress.add(headers, part)
    assert (progress.reported, progress.received_bytes) == (0.5, 91)
    progress.add(headers, b'{"progress": 1%b}\n' % (b"0" * 400))
    progress.add(headers, b"x" * (MAX_EVENT_BYTES + 1))
    progress.add(headers, b'\ndata: {"progress": 0.9}\n')
    assert progress.reported == 0.5
    progress.add({b"content-type": b"application/json"}, b'{"progress": 3}\n')
    assert (progress.reported, progress.received_bytes) == (None, 16)
