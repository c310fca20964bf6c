"""Response times of clients' chats beside a batch that fills the rest of a region, and without one.

Run by `make bench-batches`. One region with etcd, Redis, a control plane, an agent and batching engines
(`lab.engine`); rounds with and without a batch alternate, and have the same requests at the same times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from statistics import mean
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import httpx
import yaml

from control_plane.policy.folder import read_folder
from lab.bench.whole_batch import whole_batch
from lab.demo.demo_workload import TENANT_KEYS
from lab.geoip import write_geoip
from lab.planet.bundle import SHIPPED_BUNDLE, job_store_file, without_stages
from lab.planet.configs import FleetFiles, url
from lab.planet.planet import Launch, Planet
from lab.planet.planet_ports import assign_ports
from lab.planet.topology import CHAT_8B, Engine, Region, Topology, agent_port
from lab.quantile import quantile

REGION: Final = "eu-de"
ENGINES: Final = 2
SLOTS: Final = 12
"""Slots of each engine."""

USE: Final = 0.4
"""Part (0-1) of the slots that clients' chats occupy."""

TOKENS: Final = 100
"""Output tokens of each chat, of clients and of the batch."""

BATCH_REQUESTS: Final = 100_000
CONCURRENCY: Final = 64
PATIENCE_S: Final = 120.0
"""Maximum time (s) until a batch has begun or ended."""

MAX_RATIO: Final = 1.05
"""Goal: p99 beside a batch, relative to that without one."""

HEADERS: Final = {"authorization": f"Bearer {TENANT_KEYS['open']}", "x-forwarded-for": "198.51.100.1"}


class Round(NamedTuple):
    """The response times (s) of clients in one round, and the mean number of requests on the engines."""

    responses_s: list[float]
    failed: int
    in_flight: float

    def row(self, name: str) -> str:
        """Return a line of the report."""
        p50, p99 = (quantile(self.responses_s, part) or 0.0 for part in (0.5, 0.99))
        used = self.in_flight / (ENGINES * SLOTS)
        return (
            f"{name}: {len(self.responses_s)} chats, {self.failed} failed, p50 {p50:.3f} s, p99 {p99:.3f} s,"
            f" {used:.0%} of the slots in use"
        )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="rounds with and without a batch (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="time of each round (s; default: %(default)s)")
    parser.add_argument("--max-use-percent", type=float, default=75.0, help="of the job store (default: %(default)s)")
    parser.add_argument("--preempt", action="store_true", help="let clients' chats end running requests of the batch")
    parser.add_argument(
        "--preempt-wait-percent",
        type=float,
        metavar="PERCENT",
        help="let the chats wait for a slot first, for this part of a usual chat's time; implies --preempt",
    )
    parser.add_argument("--whole", type=int, metavar="N", help="run one batch of N embeddings to its end instead")
    parser.add_argument("--kill", action="store_true", help="with --whole: kill the agent half-way")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="penstock-batches-"))
    try:
        if given.whole:
            with _planet(directory, 100.0, _FAST) as planet:
                asyncio.run(whole_batch(planet, HEADERS, REGION, directory, given.whole, kills=given.kill))
            return
        queueing: dict[str, object] = {}
        if given.preempt or given.preempt_wait_percent is not None:
            queueing["preempt_batch"] = True
        if given.preempt_wait_percent is not None:
            queueing["preempt_wait_percent"] = given.preempt_wait_percent
        with _planet(directory, given.max_use_percent, queueing=queueing) as planet:
            asyncio.run(_bench(planet, given.rounds, given.seconds))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class _Fleet(NamedTuple):
    """The engines of a run, and the requests of jobs that an agent runs at a time."""

    engines: int = ENGINES
    slots: int = SLOTS
    time_scale: float = 0.5
    concurrency: int = CONCURRENCY


_SLOW: Final = _Fleet()
_FAST: Final = _Fleet(4, 64, 20.0, 256)
"""Engines that are no bottleneck."""

_PLAIN: Final[Mapping[str, object]] = MappingProxyType({})


def _planet(
    directory: Path, max_use_percent: float, fleet: _Fleet = _SLOW, *, queueing: Mapping[str, object] = _PLAIN
) -> Planet:
    bundle = directory / "bundle"
    stores = yaml.safe_load(job_store_file(directory / "jobs", [REGION], fleet.concurrency))
    files = without_stages(read_folder(SHIPPED_BUNDLE))
    files["jobs.yaml"] = yaml.safe_dump(stores | {"max_use_percent": max_use_percent})
    if queueing:
        files = {name: _queueing(text, queueing) for name, text in files.items()}
    for name, text in files.items():
        (bundle / name).parent.mkdir(parents=True, exist_ok=True)
        (bundle / name).write_text(text, encoding="utf-8")
    engines = tuple(
        Engine(f"gpu-{number}", CHAT_8B, "h100", f"{REGION}-1", fleet.slots) for number in range(fleet.engines)
    )
    topology = Topology((Region(REGION, "Frankfurt", ("a",), engines),), (), ("north",), fleet.time_scale)
    geoip_file = directory / "clients.mmdb"
    write_geoip(geoip_file)
    work = directory / "fleet"
    work.mkdir()
    files_of_fleet = FleetFiles(work, work, bundle, geoip_file)
    ports = assign_ports(topology.port_names(), None, Random())
    return Planet(topology, ports, None, files_of_fleet, Launch())


def _queueing(text: str, more: Mapping[str, object]) -> str:
    """A policy file whose models have further fields in `queueing`."""
    documents = [each for each in yaml.safe_load_all(text) if each is not None]
    for document in documents:
        if document.get("kind") == "Model":
            document["queueing"] = {**document.get("queueing", {}), **more}
    return yaml.safe_dump_all(documents)


async def _bench(planet: Planet, rounds: int, seconds: float) -> None:
    entry = url(planet.ports[agent_port(REGION, "a", "traffic")])
    limits = httpx.Limits(max_connections=1000)
    async with httpx.AsyncClient(base_url=entry, headers=HEADERS, timeout=120.0, limits=limits) as http:
        alone_s = mean([await _chat(http) or 0.0 for _ in range(5)])
        per_s = USE * ENGINES * SLOTS / alone_s
        print(f"a chat alone takes {alone_s:.2f} s; {per_s:.2f} chats/s use {USE:.0%} of {ENGINES * SLOTS} slots")
        await _round(planet, http, per_s, 10.0, seed=0)
        without: list[float] = []
        beside: list[float] = []
        for number in range(1, rounds + 1):
            plain = await _round(planet, http, per_s, seconds, seed=number)
            print(plain.row(f"round {number}, no batch"), flush=True)
            batch = await _begin_batch(http)
            filled = await _round(planet, http, per_s, seconds, seed=number)
            print(filled.row(f"round {number}, a batch"), flush=True)
            await _end_batch(http, batch)
            without += plain.responses_s
            beside += filled.responses_s
        for part in (0.5, 0.99):
            ratio = (quantile(beside, part) or 0.0) / (quantile(without, part) or 1.0)
            goal = f" (goal: {MAX_RATIO})" if part == 0.99 else ""
            print(f"p{part * 100:g} beside a batch: {ratio:.3f} x without{goal}")


async def _round(planet: Planet, http: httpx.AsyncClient, per_s: float, seconds: float, seed: int) -> Round:
    """Send chats at random times, and return their response times."""
    rng, loop = Random(seed), asyncio.get_running_loop()
    began, at, chats = loop.time(), 0.0, []
    seen: list[int] = []
    watch = asyncio.create_task(_watch(planet, seen))
    while (at := at + rng.expovariate(per_s)) < seconds:
        await asyncio.sleep(max(0.0, began + at - loop.time()))
        chats.append(asyncio.create_task(_chat(http)))
    found: Sequence[float | None] = await asyncio.gather(*chats)
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
    times = [each for each in found if each is not None]
    return Round(times, len(found) - len(times), mean(seen))


async def _watch(planet: Planet, seen: list[int]) -> None:
    """Add the requests on the engines twice a second."""
    address = planet.admin_urls()[f"{REGION}/a"]
    headers = {"authorization": f"Bearer {planet.agents_key}"}
    async with httpx.AsyncClient(base_url=address, headers=headers) as http:
        while True:
            await asyncio.sleep(0.5)
            response = await http.get("/status")
            endpoints = response.raise_for_status().json()["endpoints"]
            seen.append(sum(endpoint["in_flight"] for endpoint in endpoints))


async def _chat(http: httpx.AsyncClient) -> float | None:
    """Send one chat; returns its response time (s), or None if it failed."""
    began = time.perf_counter()
    try:
        response = await http.post("/v1/chat/completions", json=_body("Name a river."))
    except httpx.HTTPError:
        return None
    return time.perf_counter() - began if response.is_success else None


def _body(content: str) -> dict[str, object]:
    return {"model": CHAT_8B, "max_tokens": TOKENS, "messages": [{"role": "user", "content": content}]}


async def _begin_batch(http: httpx.AsyncClient) -> str:
    """Create a batch that outlasts the round, and wait until it has filled the slots that it may use."""
    line = partial(json.dumps, separators=(",", ":"))
    lines = (
        line({"custom_id": f"{n}", "method": "POST", "url": "/v1/chat/completions", "body": _body(f"Name river {n}.")})
        for n in range(BATCH_REQUESTS)
    )
    content = "\n".join(lines).encode()
    uploaded = await http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)})
    uploaded.raise_for_status()
    body = {"input_file_id": uploaded.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    created = await http.post("/v1/batches", json=body)
    created.raise_for_status()
    batch = str(created.json()["id"])
    await _until(http, batch, lambda found: found["request_counts"]["completed"] >= CONCURRENCY)
    return batch


async def _end_batch(http: httpx.AsyncClient, batch: str) -> None:
    """Cancel a batch, and wait for its end."""
    await http.post(f"/v1/batches/{batch}/cancel")
    await _until(http, batch, lambda found: found["status"] == "cancelled")


async def _until(http: httpx.AsyncClient, batch: str, holds: Callable[[dict[str, Any]], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if holds((await http.get(f"/v1/batches/{batch}")).json()):
                return
            await asyncio.sleep(0.5)


if __name__ == "__main__":
    main()
