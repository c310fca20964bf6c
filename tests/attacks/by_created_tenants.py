"""Attacks by tenants that the API created, with wrong keys, and with forged tokens of an identity provider."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from typing import Any

from cryptography.hazmat.primitives import serialization

from adapters.store import keys
from adapters.store.config_store import Delete
from penstock.tenancy.tenant_record import shard_of
from tests.attacks.by_tenants import ends, open_stream
from tests.attacks.fleet import LARGE, SMALL, Fleet, within
from tests.attacks.suite import attack, expect
from tests.support.control_planes import OPERATOR
from tests.support.issuer import AUDIENCE, Issuer, rsa_key

WRONG_KEYS = 2_000
FLOODING = {"x-forwarded-for": "198.18.1.9"}
"""The address of the flood, by a trusted proxy: other attacks are not limited."""


async def create(fleet: Fleet, name: str, tier: str = "made") -> tuple[str, str]:
    """Create a tenant with a key at a follower, and wait until every agent knows it; the key's identifier, and key."""
    url = f"{(await fleet.follower()).url}/v1/tenants/{name}"
    answer = await fleet.http.put(url, json={"tier": tier}, headers=OPERATOR)
    expect(answer.status_code in (200, 201), f"the tenant got {answer.status_code}: {answer.text}")
    answer = await fleet.http.post(f"{url}/keys", json={}, headers=OPERATOR)
    expect(answer.status_code == 201, f"the key got {answer.status_code}: {answer.text}")
    created = answer.json()
    key = str(created["key"])

    async def known() -> bool:
        return await statuses(fleet, key) == {200}

    expect(await within(10.0, known), "the key is not accepted at every agent")
    return str(created["view"]["id"]), key


async def statuses(fleet: Fleet, key: str, model: str = SMALL) -> set[int]:
    """Statuses of a request with a key at each agent."""
    return {
        (await fleet.chat(agent, "made", model, headers={"authorization": f"Bearer {key}"})).status_code
        for agent in fleet.agents
    }


@attack("42")
async def names_of_other_tenants_models(fleet: Fleet) -> None:
    """A tenant looks for models that its tier does not permit: by the list, by name, and by the text of refusals.

    Nothing distinguishes them from names that do not exist.
    """
    _, key = await create(fleet, "curious", "made-small")
    headers = {"authorization": f"Bearer {key}"}
    for agent in fleet.agents:
        url = f"http://{fleet.address(agent)}/v1/models"
        listed = (await fleet.http.get(url, headers=headers)).json()["data"]
        expect([model["id"] for model in listed] == [SMALL], f"{agent} lists {listed}")
        answers = []
        for name in (LARGE, "no-such-model"):
            answer = await fleet.chat(agent, "curious", name, headers=headers)
            page = await fleet.http.get(f"{url}/{name}", headers=headers)
            answers.append([(each.status_code, each.text.replace(name, "NAME")) for each in (answer, page)])
        expect(answers[0] == answers[1], f"{agent} tells a refused model from an unknown one: {answers}")
        expect(answers[0][0][0] == 404, f"{agent} answers {answers[0][0]}")


@attack("43")
async def a_created_key_outlives_its_revocation(fleet: Fleet) -> None:
    """A key that the API created is revoked while streams are open, and its shard in etcd is put back and removed.

    The streams, a forwarded one too, end within a second; no agent accepts the key again.
    """
    id, key = await create(fleet, "leaky")
    before = await fleet.stored(keys.tenant_shard(shard_of("leaky")))
    clients = [
        await open_stream(fleet, "leaky", key=key),
        await open_stream(fleet, "leaky", "eu-de/b", LARGE, key),
    ]
    ending = [asyncio.create_task(ends(client)) for client in clients]
    try:
        url = f"{(await fleet.follower()).url}/v1/tenants/leaky/keys/{id}"
        answer = await fleet.http.delete(url, params={"reason": "it leaked"}, headers=OPERATOR)
        revoked_at = time.monotonic()
        expect(answer.status_code == 200, f"the revocation got {answer.status_code}: {answer.text}")
        await asyncio.wait(ending, timeout=1.0)
        late = sum(not task.done() for task in ending)
        expect(not late, f"{late} streams are open {time.monotonic() - revoked_at:.1f} s after the revocation")
        expect(await statuses(fleet, key) == {401}, "a request with the revoked key was not refused")
        shard = keys.tenant_shard(shard_of("leaky"))

        async def restored() -> bool:
            return await fleet.stored(shard) not in (before, b"")

        for attempt in ("put back", "removed"):
            if attempt == "put back":
                await fleet.write(shard, before)
            else:
                await fleet.store.commit((), (Delete(shard),))
            expect(await within(20.0, restored), f"the leader did not restore the shard that was {attempt}")
            expect(await statuses(fleet, key) == {401}, f"the key is valid after its shard was {attempt}")
    finally:
        for client in clients:
            client.close()
        await asyncio.gather(*ending, return_exceptions=True)


@attack("44")
async def a_flood_of_wrong_keys(fleet: Fleet) -> None:
    """One address sends thousands of wrong keys and forged tokens.

    Further ones are refused with 429, valid keys from the same address are served, and the memory of caches stays.
    """
    agent, seen = "eu-de/a", dict[int, int]()
    url = f"http://{fleet.address(agent)}/v1/models"
    for number in range(WRONG_KEYS):
        headers = {"authorization": f"Bearer eyJ-wrong-{number}.a.b", **FLOODING}
        answer = await fleet.http.get(url, headers=headers)
        seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
    expect(seen.keys() == {401, 429}, f"wrong keys got {seen}")
    expect(seen[429] > WRONG_KEYS / 2, f"only {seen[429]} of {WRONG_KEYS} were limited")
    answer = await fleet.chat(agent, "victim", headers=FLOODING)
    expect(answer.status_code == 200, f"a valid key got {answer.status_code}")


@attack("45")
async def forged_tokens(fleet: Fleet) -> None:
    """Tokens without a signature, signed by a public key as a secret, by another key, or for another audience.

    None is accepted; a proper token is, until its key is removed from the provider.
    """
    issuer = Issuer(one=rsa_key())
    file = fleet.bundle / "issuer.yaml"
    async with issuer.http:
        file.write_text(
            f"apiVersion: penstock/v1\nkind: Issuer\nname: idp\nissuer: {issuer.url}\njwks_url: {issuer.jwks_url}\n"
            f"audiences: [{AUDIENCE}]\ntier: made\nrefresh_s: 1\n"
        )
        try:
            token = issuer.token("one")

            async def accepted() -> bool:
                return await statuses(fleet, token) == {200}

            expect(await within(40.0, accepted), "a proper token is not accepted")
            head, payload, signature = token.split(".")
            public = issuer.private["one"].public_key()
            pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
            hmac_head = f"{_part({'alg': 'HS256', 'kid': 'one'})}.{payload}"
            forged = {
                "no signature": f"{_part({'alg': 'none', 'kid': 'one'})}.{payload}.",
                "a public key as secret": f"{hmac_head}.{_encode(hmac.digest(pem, hmac_head.encode(), 'sha256'))}",
                "another key": issuer.token("one", key=rsa_key()),
                "another audience": issuer.token("one", aud="elsewhere"),
                "an expired token": issuer.token("one", exp=time.time() - 60, iat=time.time() - 120),
                "changed claims": f"{head}.{_part({'iss': issuer.url, 'aud': AUDIENCE, 'sub': 'root'})}.{signature}",
            }
            for name, each in forged.items():
                found = await statuses(fleet, each)
                expect(found == {401}, f"{name}: {found}")
            stream = await open_stream(fleet, "idp:ada", key=token)
            ending = asyncio.create_task(ends(stream))
            issuer.private["two"] = rsa_key()
            issuer.keys = Issuer(two=issuer.private["two"]).keys

            async def refused() -> bool:
                return await statuses(fleet, token) == {401}

            expect(await within(10.0, refused), "the token of a removed key is accepted")
            await asyncio.wait([ending], timeout=10.0)
            expect(ending.done(), "a stream with the token of a removed key is open")
            stream.close()
        finally:
            file.unlink()


def _part(content: dict[str, Any]) -> str:
    return _encode(json.dumps(content).encode())


def _encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
