"""Reads the accounted work of image jobs from the access logs of agents."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection
from pathlib import Path

POLL_S = 0.2
WITHIN_S = 5.0
"""Maximum time (s) to wait for the last lines of the access logs, which agents write every second."""


async def accounted_work_s(logs: Path, ids: Collection[str]) -> dict[str, float]:
    """Return the accounted work (s on the reference accelerator) by request id.

    Args:
        logs: directory of the access logs.
        ids: the completed requests to look up. A request is absent from the result if its agent was killed before it
            wrote the log line.
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
                    continue  # SIGKILL truncated the line
                if line["request_id"] in ids and line["outcome"] == "ok":
                    found[line["request_id"]] = line.get("work_s", 0.0)
    return found
