"""Webhooks: URLs, addresses, signatures."""

from __future__ import annotations

import json
from base64 import b64decode
from ipaddress import ip_network

import pytest
from msgspec.structs import replace

from penstock.jobs.webhook import (
    DELAYS_S,
    MAX_AGE_S,
    MAX_ATTEMPTS,
    WebhookStep,
    WebhookUrl,
    after_attempt,
    next_step,
    parse_url,
    refuse_address,
    secret_text,
    signature_of,
    tenant_secret,
    webhook_of,
)


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """The example of the libraries of Standard Webhooks."""
    secret = b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signed = signature_of([secret, b"other"], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signed.split(" ")[0] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert len(signed.split(" ")) == 2
    assert secret_text(secret) == "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_a_webhook_is_sent_when_it_is_due_until_it_is_accepted_or_given_up() -> None:
    new = webhook_of("batch_1", "completed", "https://a.example/hook", 1000.0)
    assert next_step(new, 0, 999.0) is WebhookStep.WAIT
    assert next_step(new, 0, 1000.0) is WebhookStep.SEND
    assert next_step(replace(new, due_at=1e9), 1, 1000.0) is WebhookStep.SEND, "the clock that set it was wrong"
    assert next_step(replace(new, is_accepted=True), 1, 1000.0) is WebhookStep.DELETE
    assert next_step(new, MAX_ATTEMPTS - 1, 1000.0) is WebhookStep.SEND
    assert next_step(new, MAX_ATTEMPTS, 1000.0) is WebhookStep.GIVE_UP
    assert next_step(new, 0, 1000.0 + MAX_AGE_S) is WebhookStep.SEND
    assert next_step(new, 0, 1001.0 + MAX_AGE_S) is WebhookStep.GIVE_UP
    assert next_step(replace(new, url="ftp://a"), 0, 1000.0) is WebhookStep.GIVE_UP


def test_attempts_have_growing_delays() -> None:
    new = webhook_of("batch_1", "completed", "https://a.example/hook", 1000.0)
    due = [after_attempt(new, attempts, 2000.0).due_at - 2000.0 for attempts in range(MAX_ATTEMPTS)]
    assert due == [*DELAYS_S, DELAYS_S[-1]]


def test_each_tenant_has_a_secret_of_its_own() -> None:
    assert len({tenant_secret(key, tenant) for key in (b"k" * 32, b"l" * 32) for tenant in ("a", "b")}) == 4
    # Receivers have the secret: it stays the same across versions.
    assert tenant_secret(b"k" * 32, "a").hex() == "951e8d3a25d37aa9d367690ef70d954641102c4196c320466bb7afd9ace76511"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("https://a.example/hook?x=1", WebhookUrl(True, "a.example", 443, "/hook?x=1")),
        ("https://a.example:8443", WebhookUrl(True, "a.example", 8443, "/")),
        ("https://a.example?x", WebhookUrl(True, "a.example", 443, "/?x")),
        ("http://[2001:db8::1]/", WebhookUrl(False, "2001:db8::1", 80, "/")),
        ("https://user@a.example/", None),
        ("https://a.example/#x", None),
        ("https://a.example/\r\nx: y", None),
        ("https://a.example:99999/", None),
        ("ftp://a.example/", None),
        ("https://a.example/" + "a" * 2030, WebhookUrl(True, "a.example", 443, "/" + "a" * 2030)),
        ("https://a.example/" + "a" * 2031, None),
        ("https://a.example:0/", None),
        ("https://a.example:65535/", WebhookUrl(True, "a.example", 65535, "/")),
        ("https://a.example:65536/", None),
        ("https://a.example\\@169.254.169.254/", None),
    ],
)
def test_urls(text: str, found: WebhookUrl | None) -> None:
    assert parse_url(text) == found


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "192.168.1.1",
        "172.16.0.1",
        "100.64.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "fc00::1",
        "::ffff:10.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "2002:a00:1::1",
    ],
)
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    assert refuse_address(address, (), is_secure=True)


def test_permitted_networks_and_public_addresses() -> None:
    networks = [ip_network("10.0.0.0/8"), ip_network("169.254.0.0/16")]
    assert not refuse_address("93.184.216.34", (), is_secure=True)
    assert not refuse_address("2606:2800:220:1::1", (), is_secure=True)
    assert "http is not used" in refuse_address("93.184.216.34", networks, is_secure=False)
    assert not refuse_address("10.1.2.3", networks, is_secure=False)
    assert not refuse_address("fd00::1%eth0", [ip_network("fd00::/8")], is_secure=False)
    assert "`webhook_networks`" in refuse_address("10.1.2.3", [ip_network("10.2.0.0/16")], is_secure=True)
    assert "metadata" in refuse_address("169.254.169.254", networks, is_secure=True)


def test_the_event_of_the_end_of_a_job_is_the_same_each_time() -> None:
    for job, kind in (("job_", "job"), ("batch_", "batch"), ("msgbatch_", "message_batch")):
        event = webhook_of(f"{job}{'0' * 32}", "completed", "https://a.example/", 7.5)
        body = json.loads(event.body)
        assert body == {
            "id": event.id,
            "object": "event",
            "created_at": 7,
            "type": f"{kind}.completed",
            "data": {"id": f"{job}{'0' * 32}"},
        }
        assert (event.url, event.created_at, event.due_at) == ("https://a.example/", 7, 7.5)
        assert event == webhook_of(f"{job}{'0' * 32}", "completed", "https://a.example/", 7.5)
        assert event.id != webhook_of(f"{job}{'0' * 32}", "completed", "https://a.example/", 7.6).id
    # Agents of two versions may send the same event: receivers must see one identifier.
    event = webhook_of(f"job_{'0' * 32}", "completed", "https://a.example/", 7.5)
    assert event.id == "evt_4050a5ccfdea0c8ed834a18d27432300"
