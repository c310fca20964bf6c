"""Attacks by a party that may write to etcd but has no key of the fleet, and by a second fleet on the same etcd."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import httpx

from adapters.files.identity_files import CERTIFICATE, PRIVATE_KEY
from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import Delete, Put
from adapters.store.members import AgentMember, Member
from adapters.store.signed_store import SignedStore
from lab.memory_store import MemoryStore
from penstock.overrides.overrides import Override, OverrideKind, OverrideSet
from penstock.planning.plan import RegionPlan
from penstock.wire.identity import encode_certificate
from penstock.wire.peer_keys import Keyring
from tests.attacks.fleet import LARGE, Fleet, within
from tests.attacks.suite import attack, expect
from tests.support.control_planes import OPERATOR, control_planes
from tests.support.identities import agent_keyring, control_plane_id, control_plane_keyring, keyring_of_fleet

PROMPT = "a prompt that no stranger may read"
SETTLING_S = 2.5
"""Time in which a forged value would have had its effect: the planner's interval is 1 s."""


@asynccontextmanager
async def listening(certificate: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[str, bytearray]]:
    """The attacker's server, which presents a certificate if required; its URL, and all that it receives."""
    received = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                received.extend(data)
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(certificate)}\r\n\r\n{certificate}"
                writer.write(head.encode())
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}", received
    finally:
        server.close()


def certificate_of(keyring: Keyring) -> str:
    """The certificate of a process, as it is sent."""
    return encode_certificate(keyring.identity.peer.certificate)


class Forger(NamedTuple):
    """The process that signs a forged value, which is then copied into the attacked fleet."""

    keyring: Keyring | None
    prefix: str = keys.DEFAULT_PREFIX
    """Prefix of the keys of the forger's fleet."""


async def _write_as(fleet: Fleet, forger: Forger, key: str, value: bytes) -> None:
    """Write a value that `forger` signed in its own fleet, or an unsigned one."""
    if forger.keyring is not None:
        own = MemoryStore()
        await SignedStore(own, forger.keyring, prefix=forger.prefix).commit((), (Put(key, value),))
        (item,) = (await own.list(forger.prefix)).items
        value = item.value
    await fleet.write(key, value)


def forgers() -> dict[str, Forger]:
    """The signers of forged values: none, a stolen agent, control planes and an agent of other fleets."""
    staging = keyring_of_fleet(control_plane_id("a"), name="staging")
    return {
        "unsigned": Forger(None),
        "signed by a stolen agent's key": Forger(agent_keyring("us-east", "a")),
        "signed by another fleet": Forger(control_plane_keyring("a", fleet=1)),
        "of a fleet of the same authority with another prefix": Forger(control_plane_keyring("a"), "/staging/"),
        "of an agent of that fleet": Forger(agent_keyring("eu-es", "a"), "/staging/"),
        "of a fleet of the same authority and prefix with another name": Forger(staging),
    }


@attack("4")
async def second_fleet(fleet: Fleet) -> None:
    """A control plane of another fleet takes leadership on the same etcd, with a policy without residency rules.

    The fleet keeps its leader. Where its keys are deleted too, the agents keep their policy, requests that residency
    forbids stay refused, and the fleet leads again once an operator has removed the other fleet.
    """
    before = await fleet.digests()
    forbidden = (
        await fleet.chat("us-east/a", "revoked", headers={"authorization": "Bearer demo-eu-personal"})
    ).status_code
    bundle = fleet.directory / "other-policy"
    shutil.copytree(fleet.bundle, bundle)
    (bundle / "residency.yaml").unlink()
    others = control_planes("x", fleet.directory / "other", fleet.etcd.endpoint, bundle, fleet=1, elected=False)
    (other,) = await asyncio.to_thread(others.__enter__)
    try:
        await asyncio.sleep(3.0)
        expect(await fleet.leader() is not None, "the fleet lost its leader to another fleet")
        await fleet.store.commit((), (Delete(keys.LEADER), Delete(keys.FLEET)))
        await asyncio.sleep(4.0)
        expect(await fleet.digests() == before, "agents accepted the policy of another fleet")
        answer = await fleet.chat("us-east/a", "revoked", headers={"authorization": "Bearer demo-eu-personal"})
        expect(answer.status_code == forbidden, f"a forbidden request got {answer.status_code}, not {forbidden}")
        expect((await fleet.chat("eu-de/a", "victim", LARGE)).status_code == 200, "requests fail meanwhile")
        status = await fleet.http.get(f"{fleet.control_planes[0].url}/v1/status", headers=OPERATOR)
        expect(other.url not in status.text, "a control plane follows the leader of another fleet")
    finally:
        await asyncio.to_thread(others.__exit__, None, None, None)
        # The remedy of the fleet's operator, which the log of the control planes names.
        await fleet.store.commit((), (Delete(keys.LEADER), Delete(keys.FLEET)))


@attack("7")
async def forged_registration(fleet: Fleet) -> None:
    """The attacker registers an agent with the URL of its own relay, unsigned and with the keys of others.

    The relay receives no prompt, and requests still reach the real agent.
    """
    key = keys.agent("eu-es", "a")
    relay_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    relay_tls.load_cert_chain(fleet.stolen_dir / CERTIFICATE, fleet.stolen_dir / PRIVATE_KEY)
    stolen = certificate_of(agent_keyring("us-east", "a"))
    real = encode_certificate(agent_keyring("eu-es", "a").identity.peer.certificate)
    for by, forger in forgers().items():
        for certificate, tls in ((stolen, None), (real, None), (stolen, relay_tls), (real, relay_tls)):
            async with listening(certificate, tls) as (url, received):
                member = AgentMember("eu-es", "a", url, url, 2**50, certificate)
                await _write_as(fleet, forger, key, encode(member))
                statuses = set()
                for _ in range(5):
                    statuses.add((await fleet.chat("eu-de/a", "victim", LARGE, padding=PROMPT)).status_code)
                    await asyncio.sleep(0.2)
                expect(PROMPT.encode() not in received, f"the relay received a prompt, by a registration {by}")
                expect(statuses == {200}, f"requests got {statuses} during a registration {by}")

    async def registered_again() -> bool:
        return url.encode() not in await fleet.stored(key)

    expect(await within(15.0, registered_again), "the agent does not repair its registration")


@attack("8")
async def forged_leader(fleet: Fleet) -> None:
    """The attacker writes the leader key with its own URL, unsigned and with the keys of others.

    It receives neither an operator's bearer token nor the body of a report.
    """
    original = await fleet.stored(keys.LEADER)
    token = OPERATOR["authorization"].removeprefix("Bearer ").encode()
    for by, forger in forgers().items():
        for shown in (agent_keyring("us-east", "a"), control_plane_keyring("a", fleet=1)):
            async with listening(certificate_of(shown)) as (url, received):
                await _write_as(fleet, forger, keys.LEADER, encode(Member("stranger", url)))
                for server in fleet.control_planes:
                    for path in ("/v1/status", "/v1/regions", "/v1/overrides"):
                        try:
                            await fleet.http.get(server.url + path, headers=OPERATOR, timeout=3.0)
                        except httpx.TransportError as error:
                            expect(False, f"{server.name} did not answer: {error!r}")
                await asyncio.sleep(1.2)
                expect(token not in received, f"an operator's token was sent to a leader {by}")
                expect(b"POST" not in received, f"a report was sent to a leader {by}")
                await fleet.write(keys.LEADER, original)
    await fleet.store.commit((), (Delete(keys.LEADER),))


async def _effect(fleet: Fleet) -> tuple[object, ...]:
    """The state that forged values could change: the agents' policies, the overrides, and the origins of plans."""
    overrides = (await fleet.http.get(f"{(await fleet.follower()).url}/v1/overrides", headers=OPERATOR)).json()
    return (await fleet.digests(), json.dumps(overrides.get("items", overrides), sort_keys=True))


@attack("16")
async def forged_plans_and_overrides(fleet: Fleet) -> None:
    """The attacker writes a newer plan and a drain of a region, unsigned and with the keys of others.

    No agent applies the forged plan, no override appears, and requests are served by the same regions.
    """
    before = await _effect(fleet)
    forged_epoch = 2**40
    original = {key: await fleet.stored(key) for key in (keys.plan("eu-de"), keys.OVERRIDES)}
    drain = Override("0" * 16, OverrideKind.FAIL_OVER, "forged", "nobody", time.time() - 1.0, region="eu-de")
    for by, forger in forgers().items():
        digest = next(iter(await fleet.digests()))
        plan = RegionPlan("eu-de", forged_epoch, 1, digest, time.time(), ())
        await _write_as(fleet, forger, keys.plan("eu-de"), encode(plan))
        await _write_as(fleet, forger, keys.OVERRIDES, encode(OverrideSet((drain,))))
        await asyncio.sleep(SETTLING_S)
        for agent in ("eu-de/a", "eu-de/b"):
            in_force = (await fleet.status(agent))["plan"]
            expect(in_force["epoch"] != forged_epoch, f"{agent} applies a plan {by}")
        expect(await _effect(fleet) == before, f"a policy or an override {by} is in force")
        answer = await fleet.chat("eu-de/a", "victim")
        expect(answer.headers.get("x-penstock-region") == "eu-de", f"a region was drained by an override {by}")
    for key, value in original.items():
        if value:
            await fleet.write(key, value)
        else:
            await fleet.store.commit((), (Delete(key),))


@attack("16.1")
async def replayed_plan_and_override(fleet: Fleet) -> None:
    """The attacker records a plan and an override that the fleet signed, and restores them after they were replaced.

    The newer plan stays in force, and the lifted override stays lifted.
    """
    leader = await fleet.leader()
    expect(leader is not None, "no control plane leads")
    assert leader is not None
    body = {"reason": "an attack", "expires_in_s": 600, "force": True}

    async def is_open() -> bool:
        # What the region serves then is up to the planner, which may keep the shares.
        plans = (await fleet.http.get(f"{leader.url}/v1/plans/current", headers=OPERATOR)).json()
        return not any(closed["region"] == "eu-de" for plan in plans.values() for closed in plan.get("closed", ()))

    async def is_closed() -> bool:
        return not await is_open()

    drained = await fleet.http.post(f"{leader.url}/v1/regions/eu-de/drain", json=body, headers=OPERATOR)
    expect(drained.status_code == 201, f"a drain got {drained.status_code}: {drained.text}")
    expect(await within(20.0, is_closed), "the drain closed no region")
    await asyncio.sleep(SETTLING_S)
    recorded = {key: await fleet.stored(key) for key in (keys.plan("eu-de"), keys.OVERRIDES)}
    undrain = f"{leader.url}/v1/regions/eu-de/undrain"
    lifted = await fleet.http.post(undrain, json={"reason": "an attack"}, headers=OPERATOR)
    expect(lifted.status_code == 200, f"lifting the drain got {lifted.status_code}: {lifted.text}")

    async def plan_number() -> tuple[int, int]:
        plan = (await fleet.status("eu-de/a"))["plan"]
        return plan["epoch"], plan["generation"]

    async def replaced() -> bool:
        return recorded[keys.plan("eu-de")] != await fleet.stored(keys.plan("eu-de"))

    expect(await within(10.0, replaced), "the leader published no newer plan")
    await asyncio.sleep(1.0)
    newest = await plan_number()
    for key, value in recorded.items():
        await fleet.write(key, value)
    await asyncio.sleep(SETTLING_S)
    expect(await plan_number() >= newest, "an agent went back to an older plan")
    shown = await fleet.http.get(f"{leader.url}/v1/overrides", headers=OPERATOR)
    in_force = [override for override in shown.json()["items"] if override.get("state") == "in_force"]
    expect(not in_force, "a lifted override is in force again")
    # The current values come back with the next change of an operator.
    again = await fleet.http.post(f"{leader.url}/v1/regions/eu-de/drain", json=body, headers=OPERATOR)
    expect(again.status_code == 201, f"an operator's drain after the replay got {again.status_code}: {again.text}")
    lifted = await fleet.http.post(undrain, json={"reason": "an attack"}, headers=OPERATOR)
    expect(lifted.status_code == 200, f"lifting it got {lifted.status_code}: {lifted.text}")

    expect(await within(20.0, is_open), "the region stays drained")
