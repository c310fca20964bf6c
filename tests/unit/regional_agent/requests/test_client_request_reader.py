"""The cache of senders: hits require the same key, address and proxy chain, under the same policy."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from math import inf
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from adapters.access.login_failures import MAX_ADDRESSES
from penstock.cost.cost_estimate import CostEstimator
from penstock.meters.demand_meter import DemandMeter
from penstock.policy.geography import Location
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.regions import EntryMap, Region
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.kinds.tenants import Quota, Tenant
from penstock.policy.policy import Policy
from penstock.routing.reasons import Reason, Refusal
from regional_agent.config.active_config import ActiveConfig
from regional_agent.http.messages import Request
from regional_agent.objects.known_objects import KnownObjects
from regional_agent.requests import authorization, client_request_reader
from regional_agent.requests.authorization import Authorization
from regional_agent.requests.client_location import MAX_CACHED_CHAIN_BYTES, Locator
from regional_agent.requests.client_request_reader import ClientRequestReader
from regional_agent.requests.request_context import RequestContext
from regional_agent.tenants.tenant_index import TenantIndex
from tests.support.budgets import equal_budgets

PROXY = "127.0.0.9"
TOLD = {b"DE": Location("DE"), b"FR": Location("FR"), b"FR,DE": Location("BE")}
PLACES = {b"10.0.0.1": Location("DE"), b"10.0.0.2": Location("FR")}


def policy(*rules: ResidencyRule, keys: tuple[str, ...] = ("red", "blue")) -> Policy:
    regions = {name: Region(name, name[:2].upper(), 50.0, 8.0) for name in ("de-1", "fr-1")}
    tenants = {key: Tenant(key, "open", (sha256(key.encode()).hexdigest(),)) for key in keys}
    return Policy(regions, {"m": Model("m")}, tenants, rules)


class Here:
    def __init__(self, first: Policy) -> None:
        self.active_config = SimpleNamespace(policy=first, tenants=TenantIndex(), issuers=None)
        self.located: list[bytes] = []
        self.locator = SimpleNamespace(
            header=b"x-country", trusts=PROXY.__eq__, locate_client=self._locate, generation=0
        )
        self.locator.client_address = lambda ip, chain: ip
        config, locator = cast(ActiveConfig, self.active_config), cast(Locator, self.locator)
        self.authorization = Authorization("de-1", config, locator, equal_budgets("de-1"))
        demand = DemandMeter(0.0)
        self.reader = ClientRequestReader(self.authorization, CostEstimator(), KnownObjects(), demand, Random(1))

    def ask(self, key: str, *chain: bytes, peer_ip: str = "127.0.0.1", reported: Sequence[bytes] = ()) -> Any:
        request = Request()
        request.whole, request.body = True, msgspec.json.encode({"model": "m"})
        request.headers = [(b"authorization", b"Bearer %b" % key.encode())]
        request.headers += [(b"x-forwarded-for", address) for address in chain]
        request.headers += [(b"x-country", country) for country in reported]
        policy = self.active_config.policy
        sender = self.authorization.sender_of(policy, request, peer_ip)
        return sender if isinstance(sender, Refusal) else self.reader.read(policy, request, sender, 0.0, inf, 600.0)

    def whose(
        self, key: str, *chain: bytes, peer_ip: str = "127.0.0.1", reported: Sequence[bytes] = ()
    ) -> tuple[str, str | None] | Reason:
        context = self.ask(key, *chain, peer_ip=peer_ip, reported=reported)
        if isinstance(context, Refusal):
            return context.reason
        assert isinstance(context, RequestContext)
        return context.facts.tenant, context.facts.location.country

    def _locate(self, ip: str, chain: list[bytes], reported: list[bytes]) -> Location:
        self.located.append(b",".join((*chain, *reported)))
        if reported:
            return TOLD.get(b",".join(reported), Location())
        return PLACES.get(chain[0] if chain else ip.encode(), Location())


def test_a_client_is_looked_up_once() -> None:
    here = Here(policy())
    assert [here.whose("red", b"10.0.0.1") for _ in range(3)] == [("red", "DE")] * 3
    assert here.located == [b"10.0.0.1"]


def test_another_key_address_or_chain_is_somebody_else() -> None:
    here = Here(policy())
    for _ in range(2):
        assert here.whose("red", b"10.0.0.1") == ("red", "DE")
        assert here.whose("blue", b"10.0.0.1") == ("blue", "DE")
        assert here.whose("red", b"10.0.0.2") == ("red", "FR")
        assert here.whose("red", peer_ip="10.0.0.2") == ("red", "FR")
        assert here.whose("none", b"10.0.0.1") is Reason.INVALID_API_KEY


def test_chains_in_several_headers_are_read_whole_each_time() -> None:
    here = Here(policy())
    assert here.whose("red", b"10.0.0.1") == ("red", "DE")
    assert here.whose("red", b"10.0.0.2", b"10.0.0.1") == ("red", "FR"), "its last header alone is another chain"
    assert here.whose("red", b"10.0.0.1", b"10.0.0.2") == ("red", "DE")
    assert here.whose("red", b"10.0.0.2") == ("red", "FR")


def test_who_is_elsewhere_by_a_proxys_word_is_somebody_else() -> None:
    here = Here(policy())
    for _ in range(2):
        assert here.whose("red", b"10.0.0.1", peer_ip=PROXY, reported=[b"FR"]) == ("red", "FR")
        assert here.whose("red", b"10.0.0.1", peer_ip=PROXY, reported=[b"DE"]) == ("red", "DE")
        assert here.whose("red", b"10.0.0.2", peer_ip=PROXY) == ("red", "FR"), "nothing is said: the chain counts"
    assert here.located == [b"10.0.0.1,FR", b"10.0.0.1,DE", b"10.0.0.2"]
    assert here.whose("red", peer_ip=PROXY, reported=[b"FR", b"DE"]) == ("red", "BE"), "both headers count"
    assert here.whose("red", peer_ip=PROXY, reported=[b"DE"]) == ("red", "DE")
    long = b"D" * (MAX_CACHED_CHAIN_BYTES + 1)
    before = len(here.authorization._senders)
    assert here.whose("red", peer_ip=PROXY, reported=[long]) == ("red", None)
    assert len(here.authorization._senders) == before


def test_location_headers_of_other_senders_use_no_memory() -> None:
    here = Here(policy())
    for word in (b"FR", b"DE", b"BE"):
        assert here.whose("red", b"10.0.0.1", reported=[word]) == ("red", "DE")
    assert here.located == [b"10.0.0.1"]


def test_a_new_policy_clears_the_cache_and_decides_anew() -> None:
    here = Here(policy())
    assert here.whose("red", b"10.0.0.2") == ("red", "FR")
    stays = ResidencyRule("at home", client_countries=frozenset({"FR"}), allow=frozenset({"fr-1"}))
    here.active_config.policy = policy(stays)
    assert here.whose("red", b"10.0.0.2") is Reason.MISDIRECTED
    assert here.whose("red", b"10.0.0.1") == ("red", "DE")
    here.active_config.policy = policy(keys=("blue",))
    assert here.whose("red", b"10.0.0.1") is Reason.INVALID_API_KEY


def test_only_what_the_rules_before_permitted_may_be_the_fault_of_a_change() -> None:
    home = ResidencyRule("at home", client_countries=frozenset({"FR"}), allow=frozenset({"fr-1"}))
    here = Here(policy(home))

    def refused(tenant: str, address: bytes) -> bool:
        refusal = here.ask(tenant, address)
        assert refusal.reason is Reason.MISDIRECTED
        return bool(refusal.may_be_by_change)

    assert not refused("red", b"10.0.0.2"), "no earlier policy is known"
    wider = ResidencyRule("no Germans", client_countries=frozenset({"DE"}), allow=frozenset({"fr-1"}))
    here.active_config.policy = policy(home, wider)
    assert (refused("red", b"10.0.0.1"), refused("red", b"10.0.0.2")) == (True, False)
    here.active_config.policy = policy(home, wider, keys=("red",))
    assert refused("red", b"10.0.0.1"), "a policy with the same rules changes nothing"
    entries = (EntryMap("French", frozenset({"FR"}), frozenset(), ("de-1", "fr-1")),)
    here.active_config.policy = msgspec.structs.replace(policy(home, wider), entry_maps=entries)
    assert refused("red", b"10.0.0.2"), "clients were sent here"
    assert not refused("red", b"10.0.0.1")


def test_a_reloaded_geoip_database_locates_every_sender_again() -> None:
    here = Here(policy(ResidencyRule("at home", client_countries=frozenset({"FR"}), allow=frozenset({"fr-1"}))))
    assert here.whose("red", b"10.0.0.1") == ("red", "DE")
    here.locator.locate_client = lambda ip, chain, reported: Location("FR")
    assert here.whose("red", b"10.0.0.1") == ("red", "DE")
    here.locator.generation += 1
    assert here.whose("red", b"10.0.0.1") is Reason.MISDIRECTED


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization, "MAX_SENDERS", 2)
    here = Here(policy())
    for number in range(5):
        here.whose("red", b"10.0.1.%d" % number)
    assert len(here.authorization._senders) == 2
    long_chain = b"10.0.0.1, " * MAX_CACHED_CHAIN_BYTES
    here.whose("red", long_chain)
    here.whose("red", long_chain)
    assert here.located[-2:] == [long_chain] * 2, "long chains are read anew, so that they fill no memory"


def test_trace_ids_differ_and_are_whole() -> None:
    rng = Random(1)
    ids = [trace_id for _ in range(16) for trace_id in client_request_reader._trace_ids(rng)]
    assert len(set(ids)) == 16 * client_request_reader.IDS_AT_ONCE
    assert all(len(trace_id) == 32 and set(trace_id) <= set("0123456789abcdef") for trace_id in ids)


def test_a_usable_request_id_is_kept_and_a_new_trace_is_named_as_the_request() -> None:
    here = Here(policy())
    context = here.ask("red", b"10.0.0.1")
    assert context.traceparent.split("-")[1] == context.request_id
    assert here.ask("red", b"10.0.0.1").request_id != context.request_id


def test_a_failed_reading_releases_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    limited = policy()
    quota = Quota(requests_per_s=None, burst_requests=1, concurrent=1)
    limited.tenants["red"] = msgspec.structs.replace(limited.tenants["red"], quota=quota)
    here = Here(limited)
    with monkeypatch.context() as failing:
        failing.setattr(client_request_reader, "RequestContext", None)
        with pytest.raises(TypeError):
            here.ask("red", b"10.0.0.1")
    assert here.whose("red", b"10.0.0.1") == ("red", "DE")
    assert here.whose("red", b"10.0.0.1") is Reason.QUOTA_EXCEEDED


def test_a_flood_of_wrong_keys_evicts_no_sender_and_is_limited_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization, "MAX_FAILURES", 3)
    monkeypatch.setattr(authorization, "FAILURE_REFILL_S", 1000.0)
    here = Here(policy())
    assert here.whose("red", peer_ip="10.0.0.1") == ("red", "DE")
    located = len(here.located)
    answers = [here.whose(f"wrong-{number}", peer_ip="10.0.0.1") for number in range(50)]
    assert answers[:3] == [Reason.INVALID_API_KEY] * 3
    assert set(answers[3:]) == {Reason.TOO_MANY_FAILURES}
    refusal = here.ask("wrong", peer_ip="10.0.0.1")
    assert refusal.retry_after_s > 0
    assert here.whose("wrong", peer_ip="10.0.0.2") is Reason.INVALID_API_KEY, "another address"
    head = Request()
    head.headers = [(b"authorization", b"Bearer wrong")]
    for peer_ip, reason in (("10.0.0.1", Reason.TOO_MANY_FAILURES), ("10.0.0.2", Reason.INVALID_API_KEY)):
        refused = here.reader.authorization.accept_head(head, peer_ip, 0.0)
        assert isinstance(refused, Refusal)
        assert refused.reason is reason, "a request with a large body is refused by its head"
    # Valid keys are accepted from the same address, and nothing was cached for the others.
    assert here.whose("red", peer_ip="10.0.0.1") == ("red", "DE")
    assert len(here.located) == located
    assert here.whose("blue", peer_ip="10.0.0.1") == ("blue", "DE")
    assert len(here.authorization._senders) == len(here.authorization._keyring._cached) == 2
    assert len(here.authorization._failures) == 2


@pytest.mark.long
def test_a_million_wrong_keys_and_tokens_need_constant_memory() -> None:
    """From one address, from many, and with the form of tokens; measured from the first tenth, when all limits are
    reached."""
    here, pages_bytes = Here(policy()), 4096
    token = b64encode(b'{"alg":"RS256","kid":"%d"}' % 1).decode().rstrip("=")

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * pages_bytes

    early_bytes = 0
    for number in range(1_000_000):
        peer_ip = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}" if number % 2 else "10.0.0.1"
        key = f"{token}.{number}.x" if number % 3 == 0 else f"wrong-{number}"
        assert here.whose(key, peer_ip=peer_ip) in (Reason.INVALID_API_KEY, Reason.TOO_MANY_FAILURES)
        if number == 100_000:
            early_bytes = resident_bytes()
    assert resident_bytes() - early_bytes < 2 * 1024 * 1024
    assert len(here.authorization._failures) <= MAX_ADDRESSES
    assert here.whose("red", peer_ip="10.0.0.1") == ("red", "DE")


def test_long_tokens_are_bounded_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization, "MAX_SENDER_BYTES", 100)
    here = Here(policy())
    for number in range(30):
        here.whose(" " * 20 + "red", peer_ip=f"10.0.1.{number}")
    assert len(here.authorization._senders) == 3
    assert here.authorization._sender_bytes <= 100
    here.active_config.policy = policy()
    here.whose("red")
    assert here.authorization._sender_bytes == len("Bearer red")
