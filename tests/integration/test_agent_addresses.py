import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import msgspec
import pytest
from structlog.testing import capture_logs

from adapters.etcd.etcd_store import EtcdStore
from adapters.servers.etcd import EtcdServer
from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import ConfigStore, Delete, Put
from adapters.store.members import AgentMember
from lab.memory_store import MemoryStore
from penstock.wire.identity import encode_certificate
from penstock.wire.peer_keys import BadSignature, Keyring, Purpose
from regional_agent.peers import agent_addresses
from regional_agent.peers.agent_addresses import MAX_AGENTS_PER_REGION, AgentAddresses
from regional_agent.upstream.address import Address
from tests.support.faulty_store import FaultyStore
from tests.support.identities import agent_id, agent_keyring, identity, introduce
from tests.support.wait import until

Start = Callable[..., AgentAddresses]


@pytest.fixture
async def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    monkeypatch.setattr(agent_addresses, "SAVE_AFTER_S", 0.05)
    made: list[AgentAddresses] = []

    def start(store: ConfigStore, **fixed: list[str]) -> AgentAddresses:
        directory = AgentAddresses(store, tmp_path, fixed, Random(1), agent_keyring("here"))
        directory.start()
        made.append(directory)
        return directory

    yield start
    for directory in made:
        await directory.stop()


def certificate_of(region: str, name: str) -> str:
    return encode_certificate(agent_keyring(region, name).identity.peer.certificate)


def member(region: str, name: str, port: int) -> AgentMember:
    return AgentMember(region, name, f"https://127.0.0.1:{port}", "http://127.0.0.1:9", 1, certificate_of(region, name))


async def register(store: ConfigStore, *members: AgentMember) -> None:
    for registration in members:
        await store.commit((), (Put(keys.agent(registration.region, registration.name), encode(registration)),))


def ports(directory: AgentAddresses, region: str) -> set[int]:
    return {address.port for address in directory.addresses(region)}


async def test_follows_registrations(start: Start) -> None:
    store = MemoryStore()
    directory = start(store)
    await register(store, member("there", "b", 2), member("there", "a", 1), member("here", "a", 3))
    await until(lambda: ports(directory, "there") == {1, 2} and ports(directory, "here") == {3})
    assert directory.names("there") == ("a", "b")
    await register(store, member("there", "a", 7))
    await until(lambda: ports(directory, "there") == {2, 7})
    await store.commit((), (Delete(keys.agent("there", "b")),))
    await until(lambda: ports(directory, "there") == {7})
    assert ports(directory, "nowhere") == set()


async def test_addresses_in_settings_take_precedence(start: Start) -> None:
    store = MemoryStore()
    directory = start(store, there=["https://127.0.0.1:100", "https://127.0.0.1:101"])
    await register(store, member("there", "a", 1))
    await until(lambda: directory.names("there") == ("a",))
    assert directory.addresses("there") == tuple(Address("127.0.0.1", port, True, "there") for port in (100, 101))


async def test_a_registered_server_name_is_part_of_the_address(start: Start) -> None:
    store = MemoryStore()
    directory = start(store)
    first, second = (
        msgspec.structs.replace(member("there", name, 443), server_name=f"{name}.example") for name in ("a", "b")
    )
    await register(store, first, second)
    await until(lambda: len(directory.addresses("there")) == 2)
    assert {address.server_name for address in directory.addresses("there")} == {"a.example", "b.example"}
    for address_or_name in ({"name": "c"}, {"peer_url": "https://127.0.0.2:443"}):
        assert await directory.rival_of(msgspec.structs.replace(first, **address_or_name)) == first
    for successor in ({}, {"region": "here"}, {"server_name": "c.example"}, {"peer_url": "https://127.0.0.1:444"}):
        assert await directory.rival_of(msgspec.structs.replace(first, **successor)) is None


async def test_registrations_on_disk_do_not_occupy_an_address(start: Start, tmp_path: Path) -> None:
    store, old = FaultyStore(MemoryStore()), member("here", "old", 443)
    renamed = msgspec.structs.replace(old, name="new")
    first = start(store)
    await register(store, old)
    await until((tmp_path / "agents").exists)
    store.away = True
    assert await first.rival_of(renamed) == old, "what this process read from the store counts"
    second = start(store)
    assert second.names("here") == ("old",)
    assert await second.rival_of(renamed) is None


async def test_an_invalid_registration_is_ignored(start: Start) -> None:
    store = MemoryStore()
    directory = start(store)
    await store.commit((), (Put(keys.agent("there", "x"), b"garbage"),))
    await store.commit((), (Put(keys.agent("there", "y"), encode(member("there", "another", 1))),))
    await store.commit((), (Put(keys.agent("there", "z"), encode(AgentMember("there", "z", "no url", "", 1))),))
    metadata = msgspec.structs.replace(member("there", "m", 1), peer_url="https://[::ffff:169.254.169.254]:80")
    await register(store, metadata)
    await register(store, member("there", "a", 5))
    await until(lambda: directory.addresses("there") != ())
    assert directory.names("there") == ("a",)


async def test_an_agent_with_an_unencrypted_address_counts_but_is_sent_nothing(tmp_path: Path) -> None:
    store = MemoryStore()
    plain = msgspec.structs.replace(member("there", "b", 2), peer_url="http://127.0.0.1:2")
    await register(store, member("there", "a", 1), plain)
    for allowed in (False, True):
        directory = AgentAddresses(
            store, tmp_path / str(allowed), {}, Random(1), agent_keyring("here"), allow_plaintext=allowed
        )
        with capture_logs() as logs:
            directory.start()
            await until(lambda directory=directory: directory.names("there") == ("a", "b"))
        assert ports(directory, "there") == ({1, 2} if allowed else {1})
        warned = [entry["agent"] for entry in logs if "unencrypted" in entry["event"]]
        assert warned == ([] if allowed else ["b"])
        await directory.stop()


async def test_an_overwritten_registration_is_restored(start: Start) -> None:
    store = MemoryStore()
    directory = start(store)
    await register(store, member("there", "a", 1))
    await until(lambda: ports(directory, "there") == {1})
    await store.commit((), (Put(keys.agent("there", "a"), b""),))
    await register(store, member("there", "b", 2))
    await until(lambda: 2 in ports(directory, "there"))
    assert ports(directory, "there") == {1, 2}


async def test_the_number_of_agents_probed_is_bounded(start: Start) -> None:
    store = MemoryStore()
    directory = start(store)
    await register(store, *(member("there", f"a{port}", port) for port in range(1, MAX_AGENTS_PER_REGION + 5)))
    await until(lambda: len(directory.names("there")) == MAX_AGENTS_PER_REGION + 4)
    assert len(directory.addresses("there")) == MAX_AGENTS_PER_REGION


async def test_an_agent_that_starts_without_etcd_finds_its_peers(
    start: Start, own_etcd: EtcdServer, tmp_path: Path
) -> None:
    endpoint = f"127.0.0.1:{own_etcd.client_port}"
    store = EtcdStore([endpoint])
    first = start(store)
    await register(store, member("there", "a", 1), member("there", "b", 2))
    saved = tmp_path / "agents"
    await until(lambda: saved.exists() and all(b"127.0.0.1:%d" % port in saved.read_bytes() for port in (1, 2)))
    await first.stop()
    await asyncio.to_thread(own_etcd.kill)
    await store.close()

    store = EtcdStore([endpoint])
    second = start(store)
    assert ports(second, "there") == {1, 2}
    await asyncio.to_thread(own_etcd.restart)
    await store.commit((), (Delete(keys.agent("there", "b")),))
    await until(lambda: ports(second, "there") == {1})
    await second.stop()
    await store.close()


async def test_a_restarted_agent_or_a_renewed_certificate_is_accepted_at_once(tmp_path: Path) -> None:
    here = agent_keyring("here")
    token = introduce(agent_keyring("there", "a"), here).seal(Purpose.ROUTE, b"request")
    store = MemoryStore()
    await register(store, member("there", "a", 1))

    first = Keyring(here.identity)
    with pytest.raises(BadSignature, match="not received before"):
        first.open(Purpose.ROUTE, token, time.time())
    directory = AgentAddresses(store, tmp_path, {}, Random(1), first)
    directory.start()
    await until(lambda: directory.names("there") == ("a",))
    assert first.open(Purpose.ROUTE, token, time.time())[0] == b"request"
    first.use(identity(agent_id("here", "renewed")))
    assert first.open(Purpose.ROUTE, token, time.time())[0] == b"request"
    await until((tmp_path / "agents").exists)
    await directory.stop()

    restarted = Keyring(here.identity)
    directory = AgentAddresses(MemoryStore(), tmp_path, {}, Random(1), restarted)
    directory.start()
    assert restarted.open(Purpose.ROUTE, token, time.time())[0] == b"request"
    await directory.stop()
