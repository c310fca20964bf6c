"""Creates three tenants on the running fleet, lets one of them send a flood, and revokes the key of another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import httpx

from lab.demo.records import TenantRequest, TenantScene
from lab.demo.tenants.bill import billed
from lab.planet.planet import Planet
from lab.planet.topology import CHAT_8B
from lab.witness import Witness

FLOOD_TIER: Final = "trial"
QUIET_TIER: Final = "standard"

FLOOD_S: Final = 4.0
FLOOD_PER_S: Final = 60.0
QUIET_EVERY_S: Final = 0.2
REVOKE_AFTER_S: Final = 1.5
STREAM_TOKENS: Final = 4_000
"""Length of the stream whose key is revoked: it would take much longer than the scene."""

STREAM_LIMIT_S: Final = 12.0
"""Time (s) after which the stream counts as not ended."""

TIMEOUT_S: Final = 15.0

REASON: Final = {"reason": "demo"}


class TenantStage:
    """Runs the scene against one entry of the fleet."""

    def __init__(self, planet: Planet, entry: str, control_planes: list[str], now: Callable[[], float]) -> None:
        """Create the scene.

        Args:
            entry: base URL of the agent that receives the requests.
            control_planes: base URLs of the control planes.
            now: time (s) since the start of the schedule.
        """
        self._planet = planet
        self._entry = entry
        self._control_planes = control_planes
        self._now = now
        self._keys: dict[str, tuple[str, str]] = {}
        """Identifier and key of each tenant."""

    async def run(self) -> TenantScene:
        """Run the scene, and compare its ledger with the witness of the engines."""
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=self._entry, timeout=TIMEOUT_S, limits=limits) as http:
            for name, tier in (("flood", FLOOD_TIER), ("quiet", QUIET_TIER), ("leaked", QUIET_TIER)):
                await self._create(name, tier)
            await self._wait_known(http)
            began_at = self._now()
            (flood, flood_s), quiet, (revoked_at, ended_at, started) = await asyncio.gather(
                self._flood(http), self._quiet(http), self._leak(http)
            )
            after = await self._chat(http, "leaked", 1)
        requests = (*flood, *quiet, *([started] if started is not None else []), after)
        bills = await asyncio.to_thread(billed, self._planet.directory / "state", tuple(self._keys))
        witnessed = (await asyncio.to_thread(Witness(self._planet.witness_dir).read))[0]
        return TenantScene(
            began_at_s=began_at,
            requests=requests,
            revoked_at_s=revoked_at,
            stream_ended_at_s=ended_at,
            status_after_revocation=after.status,
            billed=bills,
            generated={id: sum(each.output_tokens for each in found) for id, found in witnessed.generated.items()},
            flood_s=flood_s,
        )

    async def _create(self, name: str, tier: str) -> None:
        await self._ask("POST", "/v1/tenants", {"name": name, "tier": tier, **REASON})
        answer = await self._ask("POST", f"/v1/tenants/{name}/keys", REASON)
        self._keys[name] = answer["view"]["id"], answer["key"]

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a request to a control plane that answers."""
        headers = {"authorization": f"Bearer {self._planet.admin_token}"}
        async with httpx.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http:
            problem = ""
            for base in self._control_planes:
                try:
                    if method == "DELETE":
                        answer = await http.request(method, base + path, params=REASON)
                    else:
                        answer = await http.request(method, base + path, json=body)
                except httpx.HTTPError as error:
                    problem = str(error)
                    continue
                if answer.is_success:
                    return answer.json() if answer.content else None
                problem = answer.text
            raise RuntimeError(f"{method} {path}: {problem}")

    async def _wait_known(self, http: httpx.AsyncClient) -> None:
        """Wait until the agent accepts the keys."""
        until = time.monotonic() + TIMEOUT_S
        for _, key in self._keys.values():
            while (await http.get("/v1/models", headers=_bearer(key))).status_code == 401:
                if time.monotonic() > until:
                    raise RuntimeError("the agent does not know a key that was created")
                await asyncio.sleep(0.05)

    async def _flood(self, http: httpx.AsyncClient) -> tuple[list[TenantRequest], float]:
        """Send the flood; returns its requests, and the time (s) to the last response."""
        sent, began_at = [], self._now()
        async with asyncio.TaskGroup() as group:
            for _ in range(int(FLOOD_S * FLOOD_PER_S)):
                sent.append(group.create_task(self._chat(http, "flood", 16)))
                await asyncio.sleep(1 / FLOOD_PER_S)
        return [task.result() for task in sent], self._now() - began_at

    async def _quiet(self, http: httpx.AsyncClient) -> list[TenantRequest]:
        requests, until = [], time.monotonic() + FLOOD_S
        while time.monotonic() < until:
            requests.append(await self._chat(http, "quiet", 8))
            await asyncio.sleep(QUIET_EVERY_S)
        return requests

    async def _leak(self, http: httpx.AsyncClient) -> tuple[float | None, float | None, TenantRequest | None]:
        """Stream with a key that is revoked meanwhile; the times of the revocation and of the end of the stream."""
        key_id, key = self._keys["leaked"]
        revoked_at: float | None = None
        body = _body(STREAM_TOKENS) | {"stream": True, "ignore_eos": True}
        began_at, id, status = self._now(), "", 0
        try:
            async with (
                asyncio.timeout(STREAM_LIMIT_S),
                http.stream("POST", "/v1/chat/completions", headers=_bearer(key), json=body) as answer,
            ):
                id, status = answer.headers.get("x-request-id", ""), answer.status_code
                async for _ in answer.aiter_raw():
                    if revoked_at is None and self._now() - began_at > REVOKE_AFTER_S:
                        await self._ask("DELETE", f"/v1/tenants/leaked/keys/{key_id}")
                        revoked_at = self._now()
        except httpx.ReadError:
            # The agent ends the stream with an error event, or by a reset where the format has none.
            pass
        except TimeoutError:
            return revoked_at, None, None
        ended_at = self._now()
        request = TenantRequest("leaked", id, status, ended_at - began_at)
        return revoked_at, ended_at, request

    async def _chat(self, http: httpx.AsyncClient, tenant: str, tokens: int) -> TenantRequest:
        began_at = self._now()
        try:
            answer = await http.post("/v1/chat/completions", headers=_bearer(self._keys[tenant][1]), json=_body(tokens))
        except httpx.HTTPError as error:
            return TenantRequest(tenant, "", 0, self._now() - began_at, str(error))
        detail = "" if answer.is_success else str(answer.json().get("error", {}).get("message", ""))
        id = answer.headers.get("x-request-id", "")
        return TenantRequest(tenant, id, answer.status_code, self._now() - began_at, detail)


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def _body(tokens: int) -> dict[str, Any]:
    return {"model": CHAT_8B, "max_tokens": tokens, "messages": [{"role": "user", "content": "Tell me about rivers."}]}
