import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from regional_agent.endpoints.discovery.dns_discovery import MAX_ADDRESSES, MAX_NAME, DnsEntry, DnsResolver, dns_address
from regional_agent.endpoints.endpoint_fields import CHECKS, EndpointSpec
from regional_agent.upstream.address import Address
from regional_agent.upstream.host_addresses import HostAddresses


def entry(name: str = "gpus") -> DnsEntry:
    return DnsEntry(EndpointSpec(name, Address("engines.test", 8000), ("m",), 4))


def test_each_address_is_an_endpoint_with_a_stable_name() -> None:
    specs = entry().expanded(["10.0.0.2", "fd00::1", "10.0.0.1", "10.0.0.2"])
    assert [(spec.name, spec.address) for spec in specs] == [
        ("gpus-10.0.0.1", Address("10.0.0.1", 8000)),
        ("gpus-10.0.0.2", Address("10.0.0.2", 8000)),
        ("gpus-fd00--1", Address("fd00::1", 8000)),
    ]


def test_longest_generated_names_are_valid() -> None:
    longest = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
    for spec in entry("x" * MAX_NAME).expanded([longest, "::1", "fe80::"]):
        assert CHECKS["name"][1](spec.name) == spec.name


def test_limits_the_addresses_of_one_host() -> None:
    assert len(entry().expanded([f"10.0.{n // 256}.{n % 256}" for n in range(1000)])) == MAX_ADDRESSES


@pytest.mark.parametrize(
    "value", ["engines", "engines:", ":80", "engines:0", "engines:65536", "a b:80", "http://x:80", "[::1]:80", 7, None]
)
def test_rejects_what_is_not_host_and_port(value: object) -> None:
    assert dns_address(value) is None


async def test_resolver_timeout_keeps_the_last_answer_and_its_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, hangs = 100.0, False

    async def resolve(host: str) -> Sequence[str]:
        if hangs:
            await asyncio.Event().wait()
        return ["10.0.0.1"]

    dns = DnsResolver(Random(1), lambda: None, resolve, lambda: now)
    dns.use(["engines.test"], {})
    assert not dns.has_resolved()
    assert await dns.resolve(["engines.test", "forgotten.test"])
    assert dns.has_resolved()
    now, hangs = 107.0, True
    monkeypatch.setattr("regional_agent.endpoints.discovery.dns_discovery.TIMEOUT_S", 0.02)
    assert not await dns.resolve(["engines.test"])
    dns.use(["engines.test"], {})
    assert dns.answers["engines.test"].addresses == ("10.0.0.1",)
    assert dns.status() == {
        "engines.test": {"addresses": ("10.0.0.1",), "age_s": 7.0, "problem": "no answer within 0.02 s"}
    }
    dns.use([], {})
    assert dns.status() == {}


@pytest.mark.parametrize(
    ("answer", "taken"),
    [
        (["10.0.0.2", "fd00::2", "10.0.0.1", "fd00::1"], ("10.0.0.1", "10.0.0.2")),
        (["fd00::2", "fd00::1"], ("fd00::1", "fd00::2")),
    ],
)
async def test_prefers_ipv4_if_a_host_has_both_families(answer: list[str], taken: tuple[str, ...]) -> None:
    async def resolve(host: str) -> Sequence[str]:
        return answer

    dns = DnsResolver(Random(1), lambda: None, resolve)
    dns.use(["engines.test"], {})
    assert await dns.resolve(["engines.test"])
    assert dns.status()["engines.test"]["addresses"] == taken


@pytest.mark.parametrize(
    "reserved",
    ["169.254.169.254", "fe80::1", "fe80::1%eth0", "::ffff:169.254.169.254", "0.0.0.0", "224.0.0.1", "fd00:ec2::254"],
)
async def test_names_do_not_lead_to_link_local_and_metadata_addresses(reserved: str) -> None:
    addresses = ["10.0.0.1", reserved]

    async def resolve(host: str) -> Sequence[str]:
        return addresses

    dns, hosts = DnsResolver(Random(1), lambda: None, resolve), HostAddresses(resolve)
    dns.use(["engines.test"], {})
    assert await dns.resolve(["engines.test"])
    assert dns.answers["engines.test"].addresses == ("10.0.0.1",)
    assert list(await hosts.of("engines.test")) == ["10.0.0.1"]
    addresses = [reserved]
    assert not await dns.resolve(["engines.test"])
    assert dns.answers["engines.test"].addresses == ("10.0.0.1",)
    assert "link-local" in dns.answers["engines.test"].problem
    with pytest.raises(OSError, match="link-local"):
        await HostAddresses(resolve).of("engines.test")
    assert list(await hosts.of(reserved.partition("%")[0])) == [reserved.partition("%")[0]], "configured as such"
