"""Tokens of an identity provider at an agent: who they identify, which are refused, and how keys are rotated."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from msgspec.structs import replace

from adapters.access.login_failures import LoginFailures
from control_plane.auth import bounded_fetch
from lab.memory_store import MemoryStore
from penstock.policy.kinds.models import Model, ModelVersions, Version
from penstock.routing.reasons import Refusal
from regional_agent.requests import tenant_authentication
from regional_agent.tenants import issuer_registry
from regional_agent.tenants.issuer_registry import IssuerRegistry
from regional_agent.tenants.principal import Principal
from regional_agent.tenants.token_authentication import TokenAuthentication
from tests.support.chats import BODY, ask, code, streams_forever
from tests.support.created_tenants import created, put
from tests.support.issuer import jwk, rsa_key
from tests.support.loopback_server import LoopbackServer
from tests.support.planet import EU_ONLY, MODEL
from tests.support.sockets import RawClient, post
from tests.support.token_fleet import ED, RSA, fleet
from tests.support.wait import PATIENCE_S, until

OTHER = rsa_key()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_fetch, "FETCH_TIMEOUT_S", PATIENCE_S)
    # Nothing answers questions for keys, but in one test.
    monkeypatch.setattr(issuer_registry, "ANSWER_S", 0.0)


async def test_a_token_identifies_a_tenant_of_the_issuer(tmp_path: Path) -> None:
    async with fleet(tmp_path, streams_forever) as running:
        client = await RawClient.connect(running.agent.traffic)
        client.send(post(BODY, f"Authorization: Bearer {running.issuer.token('one')}"))
        await client.head()
        (exchange,) = running.agent.proxy.active
        context = exchange.context
        assert (context.facts.tenant, context.facts.data_class, context.priority) == ("idp:ada", "open", 2)
        assert context.principal.key == f"jwt-idp-{sha256(b'ada').hexdigest()[:12]}"
        # The tenant can be suspended as any other.
        put(running.agent.config.tenants, created("idp:ada", tier="silver", is_suspended=True))
        assert await client.chunk() == b"data: 1\n\n"
        assert code((await client.chunk()).removeprefix(b"data: ")) == "tenant_suspended"


async def test_tokens_that_must_be_refused(tmp_path: Path) -> None:
    public = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    async with fleet(tmp_path) as running:
        issuer, now = running.issuer, time.time()
        good = issuer.token("one")
        head, payload, signature = good.split(".")
        refused = {
            "none": unsigned(payload, {"alg": "none", "kid": "one"}),
            "none with a signature": f"{part({'alg': 'none', 'kid': 'one'})}.{payload}.{signature}",
            "HMAC by the public key": confused(payload, public),
            "another algorithm": issuer.token("one", "PS256"),
            "another key": issuer.token("one", key=OTHER),
            "an unknown kid": issuer.token("one", header={"kid": "two"}),
            "a kid that is no text": f"{part({'alg': 'RS256', 'kid': 7})}.{payload}.{signature}",
            "another issuer": issuer.token("one", iss="https://elsewhere.example"),
            "another audience": issuer.token("one", aud="elsewhere"),
            "no audience": issuer.token("one", aud=None),
            "expired": issuer.token("one", iat=now - 600, exp=now - 60),
            "of the future": issuer.token("one", iat=now + 3600, exp=now + 4000),
            "not yet valid": issuer.token("one", nbf=now + 3600),
            "too long": issuer.token("one", exp=now + 90_000),
            "no expiry": issuer.token("one", exp=None),
            "critical extensions": issuer.token("one", header={"kid": "one", "crit": ["x"], "x": 1}),
            "a changed claim": f"{head}.{part(claims_of(good) | {'sub': 'eve'})}.{signature}",
            "a name of another tenant": issuer.token("one", sub="../open"),
            "too large": issuer.token("one", padding="x" * 9000),
            "no JSON": f"{head}.{base64.urlsafe_b64encode(b'no').decode()}.{signature}",
            "deep JSON": f"{head}.{base64.urlsafe_b64encode(b'[' * 3000).decode()}.{signature}",
        }
        for name, token in refused.items():
            status, message = await running.status(token)
            assert status == 401, name
            assert "ada" not in message
        assert await running.status(good) == (200, "")


async def test_times_that_are_no_float_are_refused(tmp_path: Path) -> None:
    async with fleet(tmp_path) as running:
        for name in ("exp", "iat", "nbf"):
            status, message = await running.status(running.issuer.token("one", **{name: 10**400}))
            assert (status, message) == (401, f"the {name} claim is not a time")


async def test_tokens_of_keys_with_one_identifier_and_of_keys_without_are_accepted(tmp_path: Path) -> None:
    async with fleet(tmp_path) as running:
        issuer = running.issuer
        issuer.private |= {"two": ED, "three": OTHER}

        async def serve(*served: dict[str, Any]) -> None:
            issuer.keys = list(served)
            before = running.agent.config.issuers._sets["idp"]
            await running.publish()
            await until(lambda: running.agent.config.issuers._sets["idp"] is not before)

        await serve(jwk("k", RSA), jwk("k", ED), jwk("k", OTHER))
        header = {"kid": "k"}
        tokens = [issuer.token("one", header=header), issuer.token("three", header=header)]
        tokens.append(issuer.token("two", "EdDSA", header=header))
        for token in tokens:
            assert await running.status(token) == (200, "")
        stranger = issuer.token("one", header=header, key=rsa_key())
        assert await running.status(stranger) == (401, "the token's signature does not verify")
        await serve(jwk(None, RSA), jwk(None, OTHER))
        for kid in ("one", "three"):
            assert await running.status(issuer.token(kid, header={})) == (200, ""), "a provider that rotates its keys"
        await serve(jwk(None, OTHER))
        assert (await running.status(issuer.token("one", header={})))[0] == 401


async def test_keys_are_rotated_within_seconds_and_open_requests_end(tmp_path: Path) -> None:
    async with fleet(tmp_path, streams_forever) as running:
        first = running.issuer.token("one")
        client = await RawClient.connect(running.agent.traffic)
        client.send(post(BODY, f"Authorization: Bearer {first}"))
        await client.head()
        await client.chunk()
        await running.rotate(one=RSA, two=ED)
        assert running.agent.held() == 1, "a further key ends nothing"
        running.issuer.keys = []
        await running.publish()
        running.issuer.answer = (503, b"")
        await running.publish()
        assert "503" in running.publisher._fetched["idp", running.issuer.jwks_url].problem
        assert running.ages == {"idp": 120.0}, "since the last success"
        assert running.agent.held() == 1, "the last keys stay while the provider has none"
        running.issuer.answer = None
        await running.rotate(two=ED)
        assert code((await client.chunk()).removeprefix(b"data: ")) == "invalid_api_key"
        assert (await running.status(first))[0] == 401
        second = await RawClient.connect(running.agent.traffic)
        second.send(post(BODY, f"Authorization: Bearer {running.issuer.token('two', 'EdDSA')}"))
        assert (await second.head())[0] == 200
        second.close()


async def test_an_unknown_key_is_fetched_once_and_invented_ones_cause_no_further_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer_registry, "ANSWER_S", PATIENCE_S)
    monkeypatch.setattr(issuer_registry, "ASK_APART_S", 2 * PATIENCE_S)
    async with fleet(tmp_path) as running:
        issuer, registry, publisher = running.issuer, running.agent.config.issuers, running.publisher
        running.answer_questions()
        running.new_key()
        tokens = [issuer.token("two", "EdDSA", sub=f"ada{number}") for number in range(4)]
        assert await asyncio.gather(*map(running.status, tokens)) == [(200, "")] * 4
        assert (len(running.asked), registry.asked()) == (1, ())
        monkeypatch.setattr(issuer_registry, "ANSWER_S", 0.0)
        for number in range(5):
            assert (await running.status(issuer.token("one", header={"kid": f"invented{number}"})))[0] == 401
        await asyncio.gather(*running.asked)
        assert len(running.asked) == 1
        # Agents that ask at the same time cause one fetch.
        before, fetches = publisher._of(running.document).tried_at, 0
        for _ in range(10):
            running._now[0] += 0.5
            publisher.ask(["idp"])
            await publisher.tick()
            await publisher.fetches.wait()
            fetches += publisher._of(running.document).tried_at != before
            before = publisher._of(running.document).tried_at
        assert fetches == 2


async def test_invalid_tokens_at_routes_with_objects_count_once_and_are_then_not_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[bytes] = []
    identify = TokenAuthentication.identify

    def count(self: TokenAuthentication, token: bytes) -> Principal | Refusal:
        verified.append(token)
        return identify(self, token)

    monkeypatch.setattr(TokenAuthentication, "identify", count)
    async with fleet(tmp_path) as running:
        running.agent.router.requests.authorization._failures = LoginFailures(burst=3, refill_s=1e6)
        statuses = []
        for number in range(5):
            token = running.issuer.token("one", key=OTHER, sub=f"ada{number}")
            answer = await ask(running.agent, f"Authorization: Bearer {token}", path="/v1/responses")
            statuses.append(answer.status)
        assert statuses == [401, 401, 401, 429, 429]
        assert len(verified) == 3


async def test_a_token_without_an_identifier_ends_with_its_key(tmp_path: Path) -> None:
    async with fleet(tmp_path) as running:
        token = running.issuer.token("one", header={})
        assert (await running.status(token))[0] == 200
        await running.rotate(two=ED)
        assert (await running.status(token))[0] == 401


async def test_a_token_expires_for_new_requests_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet(tmp_path, streams_forever) as running:
        authorization, token = running.agent.router.requests.authorization, running.issuer.token("one")
        client = await RawClient.connect(running.agent.traffic)
        client.send(post(BODY, f"Authorization: Bearer {token}"))
        await client.head()
        monkeypatch.setattr(authorization, "_wall_clock", lambda: time.time() + 310)
        assert authorization._keyring.identify(f"Bearer {token}".encode()) is not tenant_authentication.EXPIRED
        monkeypatch.setattr(authorization._keyring, "_clock", lambda: time.time() + 331)
        monkeypatch.setattr(authorization, "_wall_clock", lambda: time.time() + 331)
        assert "expired" in (await running.status(token))[1]
        put(running.agent.config.tenants, created("idp:ada", tier="silver"))
        await until(lambda: all(each.context.principal.version for each in running.agent.proxy.active))
        assert running.agent.held() == 1
        client.close()


async def test_a_data_class_can_only_restrict_and_models_too(tmp_path: Path) -> None:
    fields = {"tenants": ("personal", "open", "made"), "data_class_claim": "data", "models_claim": "models"}
    async with fleet(tmp_path, **fields, tier=None) as running:
        agent, issuer = running.agent, running.issuer
        agent.config.policy = replace(agent.config.policy, models={MODEL: Model(MODEL), "large": Model("large")})
        put(agent.config.tenants, created("made", tier="eu"))
        expected = {
            ("open", None, None): 200,
            ("open", "personal", None): 200,
            ("open", "no-such-class", None): 401,
            ("personal", "personal", None): 200,
            ("personal", "open", None): 451,
            ("made", "open", None): 451,
            ("made", None, None): 200,
            ("other", None, None): 401,
            ("open", None, "large"): 404,
            ("open", None, ("llama-*",)): 200,
            ("made", None, "*"): 200,
        }
        for (tenant, data_class, models), status in expected.items():
            token = issuer.token("one", sub=tenant, data=data_class, models=models)
            assert (await running.status(token))[0] == status, (tenant, data_class, models)
        assert EU_ONLY in agent.config.policy.residency


async def test_the_data_class_of_a_token_selects_the_pool_of_the_class(tmp_path: Path) -> None:
    async with fleet(tmp_path, tenants=("open",), data_class_claim="data", tier=None) as running:
        config = running.agent.config
        named = ModelVersions(MODEL, (Version(MODEL, 100.0),), for_data_classes={"personal": "large"})
        models = {MODEL: Model(MODEL), "large": Model("large", only_data_classes=("personal",))}
        config.policy = replace(config.policy, models=models, versions={MODEL: named})
        token = partial(running.issuer.token, "one", sub="open")
        assert (await running.status(token()))[0] == 200
        assert (await running.status(token(data="personal")))[0] == 503, "the pool has no endpoint"


async def test_the_keys_are_known_after_a_restart_and_bound_to_their_url(tmp_path: Path) -> None:
    async with fleet(tmp_path) as running:
        registry = running.agent.config.issuers
        await until(lambda: registry._file.load() is not None)
        again = IssuerRegistry(MemoryStore(), tmp_path, running.agent.config.tenants, Random(1))
        again.start()
        await again.stop()
        document = running.agent.config.policy.issuers["idp"]
        assert again.find(document, "one")
        assert not again.find(replace(document, jwks_url="https://elsewhere.example/keys"), "one")
        assert again.find(document, None)
        assert again.status()["issuers"]["idp"]["keys"] == 1


class Tagged(LoopbackServer):
    """Serves one body with an ETag, and 304 to those that have it, one with an ETag that is not ASCII; redirects other
    paths."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET /named "):
            tag = "schl\N{LATIN SMALL LETTER U WITH DIAERESIS}ssel".encode()
            writer.write(b'HTTP/1.1 200 X\r\netag: "%b"\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}' % tag)
        elif not head.startswith(b"GET /keys "):
            writer.write(b"HTTP/1.1 302 X\r\nlocation: /keys\r\ncontent-length: 0\r\n\r\n")
        elif b'if-none-match: "v1"' in head.lower():
            writer.write(b"HTTP/1.1 304 X\r\n\r\n")
        else:
            writer.write(b'HTTP/1.1 200 X\r\netag: "v1"\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}')
        writer.close()


async def test_keys_are_fetched_again_only_if_they_have_changed() -> None:
    async with Tagged() as server, httpx.AsyncClient() as http:
        first = await bounded_fetch.fetch_changed(http, f"{server.url}/keys", "")
        assert first == (200, b"{}", '"v1"')
        again = await bounded_fetch.fetch_changed(http, f"{server.url}/keys", first.etag)
        assert (again.status, again.body) == (304, b"")
        elsewhere = await bounded_fetch.fetch_changed(http, f"{server.url}/elsewhere", "")
        assert elsewhere.status == 302, "redirects are not followed"
        named = await bounded_fetch.fetch_changed(http, f"{server.url}/named", "")
        assert await bounded_fetch.fetch_changed(http, f"{server.url}/named", named.etag) == (200, b"{}", "")


def part(content: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()


def unsigned(payload: str, header: dict[str, Any]) -> str:
    return f"{part(header)}.{payload}."


def confused(payload: str, public_key: bytes) -> str:
    signed = f"{part({'alg': 'HS256', 'kid': 'one'})}.{payload}"
    signature = hmac.digest(public_key, signed.encode(), "sha256")
    return f"{signed}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def claims_of(token: str) -> dict[str, Any]:
    payload = token.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return found
