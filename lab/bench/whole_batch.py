"""One large batch of embeddings from upload to results: time, CPU, memory, and whether each request has one result.

Run by `make bench-batches ARGS="--whole 1000000"`. One region with etcd, Redis, a control plane, an agent and engines;
the agent can be killed with SIGKILL in the middle, and starts again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx

from lab.bench.process_cost import cpu_s, resident_bytes
from lab.planet.configs import url
from lab.planet.planet import Planet
from lab.planet.topology import CHAT_8B, agent_port, engine_port

POLL_S: Final = 5.0
"""Interval (s) of looks at the batch and at the processes."""

REPORT_S: Final = 60.0
"""Interval (s) of lines of the report."""

URL: Final = "/v1/embeddings"
MIB: Final = 1024 * 1024


async def whole_batch(
    planet: Planet, headers: dict[str, str], region: str, directory: Path, requests: int, *, kills: bool
) -> None:
    """Run a batch of `requests`, and print the report; `directory` receives the input. `kills` the agent half-way."""
    agent = f"agent {region}/a"
    file = directory / "input.jsonl"
    with file.open("w", encoding="utf-8") as output:
        output.writelines(_lines(requests))
    entry, peaks = url(planet.ports[agent_port(region, "a", "traffic")]), dict[str, int]()
    _look(planet, peaks)
    print(f"{requests} requests, {file.stat().st_size / 1e6:.0f} MB; {_memory(peaks)}", flush=True)
    async with httpx.AsyncClient(base_url=entry, headers=headers, timeout=600.0) as http:
        began, before_s = time.monotonic(), _cpu(planet, agent)
        with file.open("rb") as content:
            uploaded = await http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)})
        file_id = uploaded.raise_for_status().json()["id"]
        print(
            f"uploaded in {time.monotonic() - began:.1f} s, {_cpu(planet, agent) - before_s:.1f} s of CPU of the agent"
        )
        began, before_s, spent_s = time.monotonic(), _cpu(planet, agent), 0.0
        body = {"input_file_id": file_id, "endpoint": URL, "completion_window": "24h"}
        batch = (await http.post("/v1/batches", json=body)).raise_for_status().json()
        reported_at = began
        while batch["status"] in ("validating", "in_progress"):
            await asyncio.sleep(POLL_S)
            batch = (await http.get(f"/v1/batches/{batch['id']}")).raise_for_status().json()
            _look(planet, peaks)
            counts = batch["request_counts"]
            if kills and counts["completed"] > requests // 2:
                kills, spent_s, before_s = False, spent_s + _cpu(planet, agent) - before_s, 0.0
                print(f"the agent is killed after {counts['completed']} requests", flush=True)
                planet.kill([agent])
                await asyncio.to_thread(planet.restart, [agent])
            if time.monotonic() - reported_at >= REPORT_S:
                reported_at = time.monotonic()
                print(f"{reported_at - began:.0f} s: {counts['completed']} completed; {_memory(peaks)}", flush=True)
        took_s, spent_s = time.monotonic() - began, spent_s + _cpu(planet, agent) - before_s
        print(
            f"{batch['status']} in {took_s:.0f} s, {requests / took_s:.0f} requests/s,"
            f" {spent_s / requests * 1e6:.0f} us of CPU of the agent for each; {_memory(peaks)}"
        )
        found = await _results(http, batch, requests)
        runs = await _engine_runs(planet, region)
        print(f"{found}; {runs - requests} engine runs more than requests")


def _lines(requests: int) -> Iterator[str]:
    for number in range(requests):
        body = {"model": CHAT_8B, "input": f"text {number}"}
        line = {"custom_id": f"r{number}", "method": "POST", "url": URL, "body": body}
        yield json.dumps(line, separators=(",", ":")) + "\n"


async def _results(http: httpx.AsyncClient, batch: dict[str, Any], requests: int) -> str:
    """Read the results, and return what is missing, repeated or failed."""
    seen, repeated, failed = bytearray(requests), 0, 0
    for kind in ("output_file_id", "error_file_id"):
        if batch[kind] is None:
            continue
        async with http.stream("GET", f"/v1/files/{batch[kind]}/content") as response:
            async for line in response.aiter_lines():
                result = json.loads(line)
                number = int(result["custom_id"][1:])
                repeated += seen[number]
                seen[number] = 1
                failed += kind == "error_file_id" or result["response"]["status_code"] != 200
    return f"{seen.count(1)} results, {seen.count(0)} missing, {repeated} repeated, {failed} failed"


async def _engine_runs(planet: Planet, region: str) -> int:
    """The requests that the engines have completed, by their metrics."""
    runs = 0
    async with httpx.AsyncClient() as http:
        for engine in planet.topology.region(region).engines:
            page = (await http.get(f"{url(planet.ports[engine_port(region, engine.name)])}/metrics")).text
            lines = (line for line in page.splitlines() if line.startswith("vllm:request_success_total{"))
            runs += sum(int(float(line.rsplit(" ", 1)[1])) for line in lines)
    return runs


def _cpu(planet: Planet, name: str) -> float:
    return cpu_s(planet.processes()[name].pid)


def _look(planet: Planet, peaks: dict[str, int]) -> None:
    """Note the largest resident memory (bytes) of each process."""
    for name, process in planet.processes().items():
        peaks[name] = max(peaks.get(name, 0), resident_bytes(process.pid))


def _memory(peaks: dict[str, int]) -> str:
    return "peak MiB: " + ", ".join(f"{name} {size // MIB}" for name, size in sorted(peaks.items()))
