"""One idempotency key makes one change, across crashes and retries at another control plane, on both stores."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adapters.access.callers import Caller, Role
from adapters.store import keys
from adapters.store.config_store import ConfigStore, Put, StoreUnavailable
from adapters.store.memory_store import MemoryStore
from control_plane.api.idempotency_store import CLAIM_TIMEOUT_S, RETENTION_S, IdempotencyStore
from control_plane.audit import idempotency_claim as claims
from control_plane.audit.audit_log import AuditLog
from control_plane.audit.idempotency_claim import Claim, ClaimLost, IdempotencyRecord, Phase
from lab.servers.etcd import EtcdServer
from tests.support.control_planes import ControlPlaneServer, Operator, control_planes
from tests.support.faulty_store import FaultyStore
from tests.support.stores import SetClock

CALLER = Caller("duty", Role.OPERATOR)
THING = keys.ROOT + "thing"


@contextmanager
def under(claim: Claim | IdempotencyRecord) -> Iterator[Claim]:
    """As the request that has this claim."""
    assert isinstance(claim, Claim), claim
    token = claims.current.set(claim)
    try:
        yield claim
    finally:
        claims.current.reset(token)


async def change(store: ConfigStore, value: bytes) -> None:
    await AuditLog(store).record(CALLER, "thing.write", "thing", "", do=[Put(THING, value)])


async def written(store: ConfigStore) -> tuple[bytes | None, int]:
    """The stored value, and the number of audit entries."""
    item = await store.get(THING)
    return (item.value if item is not None else None), (await AuditLog(store).head()).seq


async def test_a_stored_response_is_found_by_another_control_plane(either_store: ConfigStore) -> None:
    clock = SetClock()
    first, second = IdempotencyStore(either_store, "one", clock), IdempotencyStore(either_store, "other", clock)
    with under(await first.claim("name", "print")) as claim:
        await change(either_store, b"1")
    await first.answered(claim, 201, (("etag", '"1"'),), b"\xff")
    record = await second.claim("name", "print")
    assert isinstance(record, IdempotencyRecord)
    assert (record.phase, record.status, record.headers, record.body) == (
        Phase.ANSWERED,
        201,
        (("etag", '"1"'),),
        b"\xff",
    )
    assert isinstance(await second.claim("another name", "print"), Claim)
    # The key survives a restart, and expires after an hour by its lease.
    item = await either_store.get(keys.idempotency_record("name"))
    assert item is not None
    assert item.lease_id != 0


async def test_of_concurrent_requests_one_gets_the_claim(either_store: ConfigStore) -> None:
    planes = [IdempotencyStore(either_store, name, SetClock()) for name in "abcd"]
    results = await asyncio.gather(*(plane.claim("name", "print") for plane in planes * 3))
    assert sum(isinstance(result, Claim) for result in results) == 1
    assert {result.phase for result in results if isinstance(result, IdempotencyRecord)} == {Phase.CLAIMED}


async def test_a_crash_after_the_change_and_before_its_response(either_store: ConfigStore) -> None:
    clock = SetClock()
    with under(await IdempotencyStore(either_store, "one", clock).claim("name", "print")):
        await change(either_store, b"1")
    clock.now += RETENTION_S / 2
    record = await IdempotencyStore(either_store, "other", clock).claim("name", "print")
    assert isinstance(record, IdempotencyRecord)
    assert (record.phase, record.audit) == (Phase.MADE, 1)


async def test_a_crash_before_the_change_and_a_delayed_process(either_store: ConfigStore) -> None:
    clock = SetClock()
    first, second = IdempotencyStore(either_store, "one", clock), IdempotencyStore(either_store, "other", clock)
    slow = await first.claim("name", "print")
    assert isinstance(await second.claim("name", "print"), IdempotencyRecord), "it may be under way"
    clock.now += CLAIM_TIMEOUT_S
    with under(await second.claim("name", "print")) as taken_over:
        # The first control plane resumes.
        with under(slow), pytest.raises(ClaimLost):
            await change(either_store, b"slow")
        assert await written(either_store) == (None, 0)
        assert isinstance(slow, Claim)
        await first.release(slow)
        await change(either_store, b"1")
    await second.answered(taken_over, 200, (), b"")
    await first.answered(slow, 200, (), b"slow")
    with under(slow), pytest.raises(ClaimLost):
        await change(either_store, b"slow")
    assert await written(either_store) == (b"1", 1)
    record = await first.claim("name", "print")
    assert isinstance(record, IdempotencyRecord)
    assert record.body == b""


async def test_several_changes_of_one_request(either_store: ConfigStore) -> None:
    answers = IdempotencyStore(either_store, "one", SetClock())
    with under(await answers.claim("name", "print")) as claim:
        await change(either_store, b"1")
        await change(either_store, b"2")
    await answers.release(claim)
    record = await answers.claim("name", "print")
    assert isinstance(record, IdempotencyRecord)
    assert (record.phase, record.audit) == (Phase.MADE, 2)


async def test_a_refused_change_can_be_repeated(either_store: ConfigStore) -> None:
    answers = IdempotencyStore(either_store, "one", SetClock())
    for _ in range(2):
        claim = await answers.claim("name", "print")
        assert isinstance(claim, Claim)
        await answers.release(claim)


@pytest.mark.parametrize("done", [True, False])
async def test_a_change_with_an_unknown_outcome_is_not_repeated(done: bool) -> None:
    """The store's response was lost: the control plane reads the outcome, and does not repeat the change."""
    memory = MemoryStore()
    faulty = FaultyStore(memory)
    answers = IdempotencyStore(faulty, "one", SetClock())
    with under(await answers.claim("name", "print")) as claim:
        faulty.commits_in_doubt, faulty.away = done, not done
        with pytest.raises(StoreUnavailable):
            await change(faulty, b"1")
        faulty.commits_in_doubt = faulty.away = False
        await answers.release(claim)
        with pytest.raises(ClaimLost):
            # As a transaction of the first that reaches the store late.
            await change(faulty, b"late")
    outcome = await answers.claim("name", "print")
    if done:
        assert isinstance(outcome, IdempotencyRecord)
        assert (outcome.phase, outcome.audit) == (Phase.MADE, 1)
    else:
        assert isinstance(outcome, Claim)
    assert await written(memory) == ((b"1", 1) if done else (None, 0))


async def freeze(operator: Operator, server: ControlPlaneServer, key: str) -> tuple[int, str | None, str]:
    answer = await operator.http.post(
        f"{server.url}/v1/overrides",
        json={"kind": "freeze", "reason": "a launch", "expires_in_s": 600},
        headers={"idempotency-key": key},
    )
    return answer.status_code, answer.headers.get("idempotency-replayed"), answer.text


async def test_a_retry_at_another_control_plane_and_after_a_restart(own_etcd: EtcdServer, tmp_path: Path) -> None:
    async with Operator() as operator:
        with control_planes("ab", tmp_path, own_etcd.endpoint) as servers:
            await operator.leader_among(servers)
            for server in servers:
                await operator.until(server, lambda status: status.leader is not None)
            first = await freeze(operator, servers[0], "launch")
            assert first[:2] == (201, None), first
            second = await freeze(operator, servers[1], "launch")
            assert second == (201, "true", first[2])
            assert (await freeze(operator, servers[1], "another"))[0] == 409, "it stands"
            # A follower removes an override itself, without the leader.
            (standing,) = (await operator.http.get(f"{servers[0].url}/v1/overrides")).json()["items"]
            where = f"/v1/overrides/{standing['override']['id']}?reason=over"
            headers = {"idempotency-key": "over", "if-match": "*"}
            reported = [await operator.http.delete(server.url + where, headers=headers) for server in servers]
            assert [answer.status_code for answer in reported] == [200, 200]
            assert [answer.headers.get("idempotency-replayed") for answer in reported] == [None, "true"]
            assert reported[0].content == reported[1].content
        with control_planes("c", tmp_path, own_etcd.endpoint) as (fresh,):
            await operator.until(fresh, lambda status: status.leading)
            assert await freeze(operator, fresh, "launch") == (201, "true", first[2])
            entries = (await operator.http.get(f"{fresh.url}/v1/audit")).json()["items"]
            actions = [entry["action"] for entry in entries if entry["action"] != "override.expire"]
            assert actions == ["override.lift", "override.freeze"]
