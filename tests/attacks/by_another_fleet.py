"""Attacks with values and keys of another fleet of the same authority, such as the one for staging."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from adapters.store import keys
from adapters.store.config_store import Delete, Put
from penstock.wire import identity, peer_probe, route_context
from penstock.wire.identity import SpiffeId, decode_certificate, encode_certificate
from penstock.wire.peer_keys import Keyring, PeerKeys, Purpose
from penstock.wire.peer_probe import PeerProbeRequest
from tests.attacks.fleet import LARGE, Fleet, within
from tests.attacks.suite import attack, expect
from tests.attacks.with_a_stolen_key import TARGET, forward, made_context
from tests.support.control_planes import control_planes
from tests.support.identities import agent_id, keyring_of_fleet, trust
from tests.support.reports import offered, report

STAGING = "/staging/"
GOVERNED = {"authorization": "Bearer demo-eu-personal"}
SETTLING_S = 3.0
"""Time in which a copied value would have had its effect: the planner's interval is 1 s."""


@asynccontextmanager
async def _running_staging(fleet: Fleet) -> AsyncIterator[None]:
    """A control plane of staging on the same etcd, whose policy has no residency rules, and which has published."""
    bundle = fleet.directory / "staging-policy"
    shutil.copytree(fleet.bundle, bundle)
    (bundle / "residency.yaml").unlink()
    settings = {"POLICY_DIR": str(bundle), "ETCD_PREFIX": STAGING}
    staging = control_planes("s", fleet.directory / "staging", fleet.etcd.endpoint, policy_settings=settings)
    await asyncio.to_thread(staging.__enter__)
    try:

        async def published() -> bool:
            return bool((await fleet.store.list(f"{STAGING}v1/plans/")).items)

        expect(await within(30.0, published), "staging publishes no plan")
        yield
    finally:
        await asyncio.to_thread(staging.__exit__, None, None, None)


@attack("40")
async def copied_fleet(fleet: Fleet) -> None:
    """All values of staging, of the same authority, are copied to the prefix of production, and the leader is locked.

    Whichever keys are copied and deleted, agents keep their policy, requests that residency forbids stay refused, other
    requests are served, and the fleet leads again once the keys are deleted.
    """
    before = await fleet.digests()
    forbidden = (await fleet.chat("us-east/a", "revoked", headers=GOVERNED)).status_code
    async with _running_staging(fleet):
        for deleted in ((), (keys.LEADER,), (keys.LEADER, keys.FLEET, keys.ROLLOUT, keys.EPOCH_BASE)):
            await fleet.store.commit((), [Delete(key) for key in deleted])
            for item in (await fleet.store.list(STAGING)).items:
                await fleet.store.commit((), [Put(keys.DEFAULT_PREFIX + item.key.removeprefix(STAGING), item.value)])
            await asyncio.sleep(SETTLING_S)
            expect(await fleet.digests() == before, "agents have the policy of another fleet in force")
            answer = await fleet.chat("us-east/a", "revoked", headers=GOVERNED)
            expect(answer.status_code == forbidden, f"a forbidden request got {answer.status_code}, not {forbidden}")
            expect((await fleet.chat("eu-de/a", "victim", LARGE)).status_code == 200, "requests fail meanwhile")
    log = fleet.agents["eu-de/a"].log_path.read_text()
    expect("was signed for the fleet with prefix /staging/" in log, "the log does not name the cause")
    # The remedy of the fleet's operator, which the log names: delete what is not the fleet's.
    copied = {item.key for item in (await fleet.store.list(keys.ROOT)).items if b" /staging/\n" in item.value}
    for key in copied:
        await fleet.store.commit((), [Delete(key)])


def _strangers(id_: SpiffeId) -> dict[str, Keyring]:
    """The process with the same place and name in other fleets of the authority."""
    return {
        "another prefix": keyring_of_fleet(id_, STAGING),
        "another name": keyring_of_fleet(id_, name="staging"),
    }


@attack("40.1")
async def messages_of_another_fleet(fleet: Fleet) -> None:
    """Agents of staging, of the same authority, region and name, report, probe and forward to those of production.

    Each message is rejected.
    """
    for where, keyring in _strangers(agent_id("us-east", "a")).items():
        own = {identity.HEADER: encode_certificate(keyring.identity.peer.certificate)}
        for server in fleet.control_planes:
            shown = await fleet.http.get(server.url + identity.PATH)
            peer_keys = _peer_keys(keyring, decode_certificate(shown.content))
            body = msgspec.msgpack.encode(report("us-east", offered(1e6, "us-east"), seq=2**40, epoch=2**50, agent="a"))
            signed = own | {"x-penstock-signature": peer_keys.sign(Purpose.REPORT, body)}
            answer = await fleet.http.post(f"{server.url}/v1/reports", content=body, headers=signed)
            expect(answer.status_code in (401, 403), f"{answer.status_code} for a report of a fleet with {where}")
        url = await fleet.peer_url("eu-de/a")
        peer_keys = _peer_keys(keyring, decode_certificate((await fleet.peers.get(url + identity.PATH)).content))
        question = PeerProbeRequest("us-east", "a", "eu-de", f"nonce-{where}", time.time(), {LARGE: 1000})
        asked = own | {peer_probe.HEADER: peer_probe.seal_request(question, peer_keys)}
        probed = await fleet.peers.get(url + peer_probe.PATH, headers=asked)
        expect(probed.status_code in (401, 403), f"{probed.status_code} for a probe of a fleet with {where}")
        token = route_context.seal(made_context("us-east", "eu-de"), peer_keys)
        status = await forward(fleet, "eu-de/a", token)
        expect(status >= 400, f"{status} for a request to {TARGET} that a fleet with {where} forwarded")


def _peer_keys(keyring: Keyring, certificate: bytes) -> PeerKeys:
    """The keys shared with a process of production, which the own checks of a stranger's process would refuse."""
    return PeerKeys(keyring.identity, trust().verify(certificate, time.time()))
