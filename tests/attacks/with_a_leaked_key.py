"""Attacks with a tenant's API key that leaked, and was revoked."""

from __future__ import annotations

import asyncio
import time
from hashlib import sha256

from adapters.store import keys
from adapters.store.config_store import Delete
from tests.attacks.by_tenants import ends, open_queued, open_stream, open_tunnel, open_upload
from tests.attacks.fleet import LARGE, Fleet, within
from tests.attacks.suite import attack, expect
from tests.support.control_planes import OPERATOR

DIGEST = sha256(b"key-revoked").hexdigest()


async def revoke(fleet: Fleet, digest: str = DIGEST) -> None:
    """Revoke a key at a follower."""
    body = {"key_digest": digest, "reason": "it leaked"}
    url = f"{(await fleet.follower()).url}/v1/revoked-keys"
    answer = await fleet.http.post(url, json=body, headers=OPERATOR)
    expect(answer.status_code in (200, 201), f"the revocation got {answer.status_code}: {answer.text}")


async def lift(fleet: Fleet, digest: str = DIGEST) -> None:
    """Lift the revocation of a key."""
    url = f"{(await fleet.follower()).url}/v1/revoked-keys/{digest}"
    answer = await fleet.http.delete(url, params={"reason": "the attack is over"}, headers=OPERATOR)
    expect(answer.status_code == 200, f"the lift got {answer.status_code}: {answer.text}")


async def statuses(fleet: Fleet, tenant: str = "revoked") -> set[int]:
    """Statuses of a request with the tenant's key at each agent."""
    return {(await fleet.chat(agent, tenant)).status_code for agent in fleet.agents}


@attack("41")
async def open_requests_outlive_a_revocation(fleet: Fleet) -> None:
    """Streams, a forwarded stream, a tunnel, an upload and a queued request are open while their key is revoked.

    All of them end within a second of the revocation, and new requests are refused at every agent. The requests of
    other keys go on, and no policy changes.
    """
    before = await fleet.digests()
    permitted = await open_stream(fleet, "victim")
    clients = {
        "stream": await open_stream(fleet, "revoked"),
        "forwarded stream": await open_stream(fleet, "revoked", "eu-de/b", LARGE),
        "tunnel": await open_tunnel(fleet, "revoked"),
        "upload": await open_upload(fleet, "revoked"),
        "queued": await open_queued(fleet, "revoked"),
    }
    ending = {name: asyncio.create_task(ends(client)) for name, client in clients.items()}
    going_on = asyncio.create_task(ends(permitted))
    try:
        await asyncio.sleep(0.5)
        early = [name for name, task in ending.items() if task.done()]
        expect(not early, f"ended before the revocation: {early}")
        await revoke(fleet)
        revoked_at = time.monotonic()
        await asyncio.wait(ending.values(), timeout=1.0)
        late = [name for name, task in ending.items() if not task.done()]
        expect(not late, f"still open {time.monotonic() - revoked_at:.1f} s after the revocation: {', '.join(late)}")
        expect(not going_on.done(), "a stream of another key ended as well")
        expect(await statuses(fleet) == {401}, "a request with the revoked key was not refused")
        expect(await fleet.digests() == before, "the policy changed")
        # A writer in etcd removes the list: the key stays revoked, and the list comes back.
        await fleet.store.commit((), (Delete(keys.REVOKED_KEYS),))

        async def is_back() -> bool:
            return await fleet.stored(keys.REVOKED_KEYS) != b""

        expect(await within(20.0, is_back), "the leader does not write the list again")
        expect(await statuses(fleet) == {401}, "the key is valid after its revocation was deleted from etcd")
    finally:
        for client in (*clients.values(), permitted):
            client.close()
        await asyncio.gather(*ending.values(), going_on, return_exceptions=True)
        await lift(fleet)

    async def served() -> bool:
        return await statuses(fleet) == {200}

    expect(await within(10.0, served), "the key is not valid again after the lift")
