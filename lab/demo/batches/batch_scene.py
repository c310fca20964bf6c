"""Runs a batch of chats through the Files and Batches APIs of a region, and counts the engine runs of each chat."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import httpx
import msgspec

from lab.demo.demo_workload import EU_REGIONS, TENANT_KEYS, required_regions
from lab.demo.records import BatchScene
from lab.demo.scenario import ActName, Scenario
from lab.planet.configs import url
from lab.planet.planet import Planet
from lab.planet.topology import CHAT_8B, Topology, agent_port
from lab.witness import Witness

URL: Final = "/v1/chat/completions"
OUTPUT_TOKENS: Final = 120
POLL_S: Final = 0.5
TIMEOUT_S: Final = 10.0
ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})

NIGHT_REGION: Final = "jp-tok"
NIGHT_REQUESTS: Final = 120
LOST_REQUESTS: Final = 60
JOB_CONCURRENCY: Final = 4
"""Requests of jobs that one agent runs at a time. It is small, so that the batch lasts until the region is killed."""

LOST_BEFORE_KILL_S: Final = 22.0
"""Time (s) before the kill at which the batch of the lost region is created: an agent claims a batch within 5 s, its
first request takes 4 s, the counts of its status are at most 5 s old, and a busy machine needs the rest."""

ENDS_WITHIN_S: Final = 20.0
"""Time (s) after the schedule within which a batch has to end."""


class PlannedBatch(msgspec.Struct, frozen=True):
    """A batch of the scene."""

    region: str
    tenant: str
    requests: int
    at_s: float
    """Time (s) at which the batch is created."""


def planned_batches(scenario: Scenario, topology: Topology) -> tuple[PlannedBatch, ...]:
    """Return the batches: a long one that begins with the surge, and one that runs when its region is killed."""
    lost = scenario.lost_region
    regions = topology.region_names
    night = NIGHT_REGION if lost != NIGHT_REGION else next(region for region in regions if region != lost)
    # A tenant of the EU may use the store of a region of the EU, and has its requests in the EU.
    tenant = "eu-personal" if lost in EU_REGIONS else "open"
    return (
        PlannedBatch(night, "open", NIGHT_REQUESTS, scenario.act_at_s(ActName.SURGE_BEGINS)),
        PlannedBatch(lost, tenant, LOST_REQUESTS, scenario.act_at_s(ActName.KILL_REGION) - LOST_BEFORE_KILL_S),
    )


class BatchStage:
    """Runs one batch against an entry of its region."""

    def __init__(self, planet: Planet, planned: PlannedBatch, now: Callable[[], float]) -> None:
        """Create the stage.

        Args:
            now: time (s) since the start of the schedule.
        """
        self._planet = planet
        self._planned = planned
        self._now = now
        region = planet.topology.region(planned.region)
        self._entry = url(planet.ports[agent_port(region.name, region.agents[0], "traffic")])
        self.completed = 0
        """Completed requests in the last status that was read."""

    async def run(self, until_s: float) -> BatchScene:
        """Create the batch, wait until its end or until `until_s` (s of the schedule), and return its records.

        Raises:
            RuntimeError, httpx.HTTPError: the batch could not be created, or its results cannot be read.
        """
        headers = {"authorization": f"Bearer {TENANT_KEYS[self._planned.tenant]}"}
        async with httpx.AsyncClient(base_url=self._entry, headers=headers, timeout=TIMEOUT_S) as http:
            files = {"file": ("batch.jsonl", _input(self._planned.requests))}
            file = _json(await http.post("/v1/files", data={"purpose": "batch"}, files=files))["id"]
            body = {"input_file_id": file, "endpoint": URL, "completion_window": "24h"}
            batch = _json(await http.post("/v1/batches", json=body))
            created_s = self._now()
            batch, done = await self._end(http, batch, until_s)
            ended_s = self._now()
            lines = await _lines(http, batch.get("output_file_id"))
            errors = await _lines(http, batch.get("error_file_id"))
        seen = await asyncio.to_thread(_engine_runs, self._planet)
        required = required_regions(self._planned.tenant, "DE", self._planet.topology.region_names)
        ids = [line["response"]["request_id"] for line in lines]
        return BatchScene(
            region=self._planned.region,
            requests=self._planned.requests,
            created_at_s=created_s,
            ended_at_s=ended_s,
            status=str(batch["status"]),
            output=tuple(line["custom_id"] for line in lines),
            errors=tuple(line["custom_id"] for line in errors),
            done_before_loss=done,
            engine_runs=tuple(len(seen.get(id, ())) for id in ids),
            outside=sum(region not in required for id in ids for region in seen.get(id, ())),
            ran_in=dict(Counter(region for id in ids for region in seen.get(id, ()))),
        )

    async def _end(
        self, http: httpx.AsyncClient, batch: dict[str, Any], until_s: float
    ) -> tuple[dict[str, Any], int | None]:
        """Return the batch at its end, and the completed requests of the last status before its region failed."""
        completed: int | None = None
        lost = False
        while batch["status"] not in ENDED and self._now() < until_s:
            await asyncio.sleep(POLL_S)
            try:
                batch = _json(await http.get(f"/v1/batches/{batch['id']}"))
            except (httpx.HTTPError, RuntimeError):
                # The region is down, or not yet ready.
                lost = True
                continue
            self.completed = int(batch["request_counts"]["completed"])
            if not lost:
                completed = self.completed
        return batch, completed if lost else None


def _input(requests: int) -> bytes:
    body = {"model": CHAT_8B, "max_tokens": OUTPUT_TOKENS, "messages": [{"role": "user", "content": "Name a river."}]}
    lines = ({"custom_id": f"line-{number}", "method": "POST", "url": URL, "body": body} for number in range(requests))
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _json(response: httpx.Response) -> dict[str, Any]:
    if not response.is_success:
        raise RuntimeError(f"{response.request.method} {response.request.url.path}: {response.text}")
    found: dict[str, Any] = response.json()
    return found


async def _lines(http: httpx.AsyncClient, file: str | None) -> list[dict[str, Any]]:
    if not file:
        return []
    response = await http.get(f"/v1/files/{file}/content")
    if not response.is_success:
        raise RuntimeError(f"the results cannot be read: {response.text}")
    return [json.loads(line) for line in response.content.splitlines()]


def _engine_runs(planet: Planet) -> dict[str, list[str]]:
    """Return the regions of the arrivals at engines by request id, as the witness recorded them."""
    _, seen = Witness(planet.witness_dir).read()
    regions: dict[str, list[str]] = {}
    for sighting in seen:
        regions.setdefault(sighting.request_id or "", []).append(sighting.region)
    return regions
