"""Records that `penstock dns update` keeps in a real BIND, by signed updates."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adapters.servers.free_ports import LOOPBACK, free_ports
from adapters.servers.process import ServerProcess
from control_plane.dns.dynamic_update import DynamicUpdates, UpdateFailed, read_key
from control_plane.dns.publisher import RecordPublisher
from lab import debian_packages
from penstock.dns.name_answer import NameServerView
from penstock.dns.record_sets import NameRecords, name_records
from penstock.health.region_health import RegionState
from penstock.policy.kinds.dns_names import DnsName, DnsStrategy
from tests.support.dns_names import ZONE, a_name, all_live, dns_policy
from tests.support.powerdns import is_answering
from tests.support.wait import until_async

NAMED = debian_packages.program("named")

pytestmark = pytest.mark.skipif(NAMED is None, reason="there is no named: run `make test-dns`, or install bind9")

FIRST = a_name("first", tenants=("open",), strategy=DnsStrategy.FAILOVER, failover_order=("us-east", "eu-de"))
EU = a_name("eu", tenants=("personal",))


def records(name: DnsName, **states: RegionState) -> NameRecords:
    return name_records(dns_policy(), name, NameServerView(all_live(**states), {}))


def _new_key(tsig_keygen: str) -> str:
    command = [tsig_keygen, "penstock"]
    return subprocess.run(command, capture_output=True, check=True, env=debian_packages.environment(), text=True).stdout


@asynccontextmanager
async def bind(directory: Path) -> AsyncIterator[int]:
    """A BIND with the zone, which accepts updates that the key in `directory` signs; its port."""
    assert NAMED is not None
    tsig_keygen = debian_packages.program("tsig-keygen")
    assert tsig_keygen is not None
    key = await asyncio.to_thread(_new_key, tsig_keygen)
    (directory / "key").write_text(key)
    (directory / "key").chmod(0o600)
    (directory / "other").write_text(key.replace("penstock", "another"))
    (directory / "other").chmod(0o600)
    (directory / "zone").write_text(
        f"$TTL 60\n@ IN SOA ns.example.net. {ZONE.contact}. 1 3600 600 86400 30\n@ IN NS ns.example.net.\n"
    )
    (port,) = free_ports(1)
    (directory / "named.conf").write_text(
        f'include "{directory}/key";\n'
        f'options {{ directory "{directory}"; pid-file none; listen-on port {port} {{ {LOOPBACK}; }};'
        f' listen-on-v6 {{ none; }}; recursion no; session-keyfile "{directory}/session.key"; }};\n'
        f'controls {{}};\nzone "{ZONE.name}" {{ type primary; file "zone"; allow-update {{ key penstock; }}; }};\n'
    )
    server = ServerProcess(
        "named",
        [NAMED, "-g", "-n", "1", "-c", str(directory / "named.conf")],
        log_path=directory / "log",
        env=debian_packages.environment(),
    )
    server.start()
    try:
        await until_async(lambda: is_answering(port, ZONE.name, "SOA"))
        yield port
    finally:
        server.stop()


async def test_names_follow_the_fleet_and_never_become_empty(tmp_path: Path) -> None:
    async with bind(tmp_path) as port:
        target = DynamicUpdates(LOOPBACK, port, read_key(tmp_path / "key"))
        lines: list[str] = []
        publisher = RecordPublisher(target, 0.0, lines.append)

        def step(*names: NameRecords) -> bool:
            return publisher.step(names)

        def published(name: DnsName) -> list[str]:
            return [value for each in target.read([name.name])[name.name] for value in each.values]

        assert await asyncio.to_thread(step, records(FIRST), records(EU))
        assert await asyncio.to_thread(published, FIRST) == ["198.51.100.30"]
        both = ["192.0.2.10", "192.0.2.20", "2001:db8::10", "2001:db8::20"]
        assert await asyncio.to_thread(published, EU) == both
        assert await asyncio.to_thread(step, records(FIRST, us_east=RegionState.FAILED), records(EU))
        assert await asyncio.to_thread(published, FIRST) == ["192.0.2.10", "2001:db8::10"]
        lost = {"eu_de": RegionState.FAILED, "eu_es": RegionState.DRAINING}
        assert not await asyncio.to_thread(step, records(FIRST), records(EU, **lost))
        assert await asyncio.to_thread(published, EU) == both
        assert lines[-1] == "eu.api.example.com: no permitted region is live; its records stay"
        changes = len(lines)
        # A process that starts again finds what the server has, and changes nothing.
        again = RecordPublisher(target, 0.0, lines.append)
        assert await asyncio.to_thread(again.step, [records(FIRST), records(EU)])
        assert len(lines) == changes


async def test_an_update_with_another_key_changes_nothing(tmp_path: Path) -> None:
    async with bind(tmp_path) as port:
        stranger = DynamicUpdates(LOOPBACK, port, read_key(tmp_path / "other"))
        with pytest.raises(UpdateFailed):
            await asyncio.to_thread(stranger.send, ZONE.name, {FIRST.name: records(FIRST).record_sets})
        assert await asyncio.to_thread(stranger.read, [FIRST.name]) == {FIRST.name: ()}
    with pytest.raises(UpdateFailed, match=LOOPBACK):
        await asyncio.to_thread(stranger.read, [FIRST.name])
