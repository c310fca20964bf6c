"""Client of the Prometheus HTTP API."""

from __future__ import annotations

from typing import Any

import httpx

STEP_S = 2.0
"""Resolution (s) of the displayed time range."""


class PrometheusApi:
    """Sends requests to one Prometheus server."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        """Args: the base URL of `client` is the URL of the server."""
        self._client = client

    async def series(self, expression: str, from_s: float, to_s: float) -> tuple[int, str]:
        """Return the number of series of a range query, and its error; `from_s` and `to_s` are Unix times (s)."""
        form: dict[str, str | float] = {"query": expression, "start": from_s, "end": to_s, "step": STEP_S}
        response = await self._client.post("/api/v1/query_range", data=form)
        content = response.json()
        if content["status"] != "success":
            return 0, str(content["error"])
        return sum(any(value != "NaN" for _, value in series["values"]) for series in content["data"]["result"]), ""

    async def broken_rules(self) -> list[str]:
        """Return the rules whose last evaluation failed, each with its error."""
        groups = (await self._get("/api/v1/rules"))["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return [f"{rule['name']}: {rule['lastError']}" for rule in rules if rule.get("lastError")]

    async def missing_targets(self) -> list[str]:
        """Return the targets whose last scrape failed, each with its error."""
        targets = (await self._get("/api/v1/targets"))["activeTargets"]
        return [f"{target['scrapeUrl']}: {target['lastError']}" for target in targets if target["health"] != "up"]

    async def _get(self, path: str) -> dict[str, Any]:
        response = await self._client.get(path)
        response.raise_for_status()
        data: dict[str, Any] = response.json()["data"]
        return data
