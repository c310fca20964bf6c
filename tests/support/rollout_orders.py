"""Changes a rollout as a client does: with the ETag of the newest rollout, and a retry if the rollout has changed."""

from __future__ import annotations

import httpx

from tests.support.wait import found


async def order(http: httpx.AsyncClient, path: str, reason: str, url: str = "") -> httpx.Response:
    """POST to a path of the API below `url` with an If-Match of the newest rollout."""

    async def accepted() -> httpx.Response | None:
        tag = (await http.get(f"{url}/v1/rollouts/current")).headers["etag"]
        response = await http.post(f"{url}{path}", json={"reason": reason}, headers={"if-match": tag})
        return response if response.status_code != httpx.codes.PRECONDITION_FAILED else None

    return await found(accepted)
