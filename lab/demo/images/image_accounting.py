"""The work that agents accounted for image jobs, from their access logs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection
from pathlib import Path

POLL_S = 0.2
WITHIN_S = 5.0
"""How long (s) to wait for agents to write their last lines, which they do each second."""


async def accounted_work_s(logs: Path, ids: Collection[str]) -> dict[str, float]:
    """Work (s on the reference accelerator) by request id, of those of `ids` that an agent completed and logged.

    Args:
        logs: directory of the access logs.
        ids: requests that agents completed; those whose agent was killed before it wrote its log are not found.
    """
    deadline = time.monotonic() + WITHIN_S
    while True:
        found = await asyncio.to_thread(_read, logs, frozenset(ids))
        if len(found) == len(ids) or time.monotonic() > deadline:
            return found
        await asyncio.sleep(POLL_S)


def _read(logs: Path, ids: frozenset[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for path in logs.glob("access-*.jsonl"):
        with path.open("rb") as file:
            for text in file:
                try:
                    line = json.loads(text)
                except ValueError:
                    continue  # a line that SIGKILL cut
                if line["request_id"] in ids and line["outcome"] == "ok":
                    found[line["request_id"]] = line.get("work_s", 0.0)
    return found
