"""The tenant of an API key: found by digest, and cached until the policy changes."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
import pytest

from penstock.http.header_rules import TO_ENGINE, Header
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.routes.route import API_KEY_HEADERS, Route
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.messages import Request
from regional_agent.requests import tenant_authentication
from regional_agent.requests.tenant_authentication import EXPIRED, REVOKED, Keyring, credential_of
from regional_agent.tenants.principal import Principal
from regional_agent.tenants.tenant_index import TenantIndex
from tests.support.clocks import SetClock
from tests.support.created_tenants import TIERS, created, created_key, put

KEYS = {"red": b"red-secret", "blue": b"blue-secret"}


def policy(keys: dict[str, bytes], anonymous: str | None = None) -> Policy:
    tenants = {name: Tenant(name, "open", (sha256(key).hexdigest(),)) for name, key in keys.items()}
    tenants["anonymous"] = Tenant("anonymous", "open")
    return Policy({"here": Region("here", "DE", 50.0, 8.0)}, {}, tenants, (), anonymous_tenant=anonymous)


def name(keyring: Keyring, authorization: bytes | None) -> str:
    """The tenant's name, or the reason why there is none."""
    identified = keyring.identify(authorization)
    return identified.reason.value if isinstance(identified, Refusal) else identified.tenant.name


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        (b"Bearer red-secret", "red"),
        (b"bearer  red-secret ", "red"),
        (b"Bearer blue-secret", "blue"),
        (b"Bearer red-secre", Reason.INVALID_API_KEY),
        (b"Bearer red-secret2", Reason.INVALID_API_KEY),
        (b"Basic red-secret", Reason.INVALID_API_KEY),
        (b"Bearer", Reason.INVALID_API_KEY),
        (b"", Reason.INVALID_API_KEY),
        (None, Reason.INVALID_API_KEY),
    ],
)
def test_a_key_names_its_tenant_however_often_it_comes(authorization: bytes | None, expected: str) -> None:
    keyring = Keyring(policy(KEYS), TenantIndex())
    assert [name(keyring, authorization) for _ in range(3)] == [expected] * 3


def test_no_key_is_the_anonymous_tenant_and_a_wrong_one_is_not() -> None:
    keyring = Keyring(policy(KEYS, "anonymous"), TenantIndex())
    assert name(keyring, None) == "anonymous"
    assert name(keyring, b"Bearer wrong") == Reason.INVALID_API_KEY


def test_a_key_that_was_taken_back_is_forgotten_with_the_policy() -> None:
    before = Keyring(policy(KEYS), TenantIndex())
    assert name(before, b"Bearer red-secret") == "red"
    after = Keyring(policy({"red": b"another-secret", "blue": KEYS["blue"]}), TenantIndex())
    assert name(after, b"Bearer red-secret") == Reason.INVALID_API_KEY
    assert name(after, b"Bearer another-secret") == "red"


def test_what_is_remembered_is_bounded_and_holds_no_wrong_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_authentication, "MAX_CACHED_HEADERS", 4)
    keyring = Keyring(policy(KEYS), TenantIndex())
    for number in range(20):
        assert name(keyring, b"Bearer wrong-%d" % number) == Reason.INVALID_API_KEY
    assert not keyring._cached
    for number in range(20):
        assert name(keyring, b"Bearer" + b" " * (number + 1) + b"red-secret") == "red"
        assert len(keyring._cached) <= 4


def request_with(*headers: Header, api_key_header: str = "x-api-key") -> Request:
    request = Request()
    request.headers = list(headers)
    request.route = Route("messages", "/v1/messages", api_key_header=api_key_header)
    return request


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], None),
        ([(b"x-api-key", b"red-secret")], b"Bearer red-secret"),
        ([(b"authorization", b"Bearer red-secret")], b"Bearer red-secret"),
        ([(b"x-api-key", b"red-secret "), (b"authorization", b"bearer  red-secret")], b"Bearer red-secret"),
        ([(b"x-api-key", b"red-secret"), (b"x-api-key", b"red-secret")], b"Bearer red-secret"),
    ],
)
def test_the_key_header_of_a_route_counts_as_authorization(headers: list[Header], expected: bytes | None) -> None:
    assert credential_of(request_with(*headers)) == expected


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x-api-key", b"red-secret"), (b"authorization", b"Bearer blue-secret")],
        [(b"x-api-key", b"red-secret"), (b"authorization", b"")],
        [(b"x-api-key", b"red-secret"), (b"x-api-key", b"blue-secret")],
    ],
)
def test_contradicting_keys_are_refused(headers: list[Header]) -> None:
    refusal = credential_of(request_with(*headers))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.INVALID_API_KEY
    assert "secret" not in refusal.detail


def test_other_routes_ignore_the_key_header() -> None:
    assert credential_of(request_with((b"x-api-key", b"red-secret"), api_key_header="")) is None


@pytest.mark.parametrize("header", ["authorization", "x_api_key", *sorted(API_KEY_HEADERS)])
def test_engines_never_receive_a_client_key(header: str) -> None:
    assert TO_ENGINE.lines([(header.encode(), b"secret"), (b"accept", b"*/*")]) == [b"accept: */*\r\n"]


def test_a_key_header_that_engines_would_receive_is_rejected() -> None:
    with pytest.raises(msgspec.ValidationError, match="x-secret"):
        msgspec.convert({"name": "custom", "path": "/custom", "api_key_header": "x-secret"}, Route)


def with_tiers(**fields: Any) -> Policy:
    return msgspec.structs.replace(policy(KEYS), tiers=TIERS, **fields)


def reason(found: Principal | Refusal) -> str | Reason:
    return found.reason if isinstance(found, Refusal) else found.tenant.name


def test_a_created_tenant_has_the_rules_of_its_tier() -> None:
    index = TenantIndex()
    put(index, created("acme", "one"))
    principal = Keyring(with_tiers(), index).identify(b"Bearer one")
    assert isinstance(principal, Principal)
    assert (principal.tenant.name, principal.tenant.priority, principal.key) == ("acme", 3, "psk-one")


def test_created_keys_are_refused_with_the_reason() -> None:
    index, clock = TenantIndex(), SetClock()
    expired, revoked = created_key("expired", expires_at=99.0), created_key("revoked", revoked_at=1.0)
    put(index, created("acme", "one", expired, revoked), created("gone", "two", tier="no-such-tier"))
    put(index, created("idle", "three", is_suspended=True), created("red", "four"))
    keyring = Keyring(with_tiers(), index, clock)
    keyring_after = Keyring(with_tiers().revoking(frozenset({sha256(b"one").hexdigest()[:16]})), index, clock)
    for _ in range(2):
        assert reason(keyring.identify(b"Bearer one")) == "acme"
        assert keyring.identify(b"Bearer expired") == EXPIRED
        assert keyring.identify(b"Bearer revoked") == keyring_after.identify(b"Bearer one") == REVOKED
        assert reason(keyring.identify(b"Bearer two")) is Reason.TIER_UNKNOWN
        assert reason(keyring.identify(b"Bearer three")) is Reason.TENANT_SUSPENDED
        assert reason(keyring.identify(b"Bearer four")) is Reason.INVALID_API_KEY, "a tenant of the policy wins"


def test_a_key_expires_at_its_time_and_not_for_requests_that_have_started() -> None:
    index, clock = TenantIndex(), SetClock()
    put(index, created("acme", created_key("one", expires_at=101.0)))
    keyring = Keyring(with_tiers(), index, clock)
    assert reason(keyring.identify(b"Bearer one")) == "acme"
    clock.now = 101.0
    assert keyring.identify(b"Bearer one") == EXPIRED
    assert reason(keyring.identify(b"Bearer one", started=True)) == "acme"
    clock.now = 90.0
    assert reason(keyring.identify(b"Bearer one")) == "acme", "the clock was set back"


def test_a_change_of_a_tenant_applies_to_cached_keys() -> None:
    index = TenantIndex()
    put(index, created("acme", "one"), created("other", "two"))
    keyring = Keyring(with_tiers(), index)
    acme, other = keyring.identify(b"Bearer one"), keyring.identify(b"Bearer two")
    put(index, created("acme", created_key("one", revoked_at=1.0)))
    assert keyring.identify(b"Bearer one") == REVOKED
    assert keyring.identify(b"Bearer two") is other is not acme
