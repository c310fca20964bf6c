"""Webhooks of jobs: their URLs, addresses, events, signatures, and the times of their attempts.

Source: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md; events as of
https://platform.openai.com/docs/api-reference/webhook-events.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from enum import Enum
from hashlib import sha256
from hmac import digest
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from penstock.jobs import store_paths
from penstock.wire.reserved_addresses import is_public, is_reserved

URL_HEADER: Final = b"x-webhook-url"
"""Header of a request that creates a job: the URL that receives its event."""

MAX_URL: Final = 2048
"""Maximum length (characters) of a URL."""

DELAYS_S: Final = (5, 30, 120, 600, 1800, 7200, 21_600)
"""Time (s) from each failed attempt to the next one; no attempt follows the last of them but one."""

ACCEPTED_S: Final = 60
"""Time (s) for which an accepted webhook stays in the store."""

MAX_ATTEMPTS: Final = len(DELAYS_S) + 1

MAX_AGE_S: Final = 86_400
"""Age (s) of an event from which its webhook is given up, such as after a time without a key."""

SECRET_PREFIX: Final = "whsec_"

_URL: Final = re.compile(r"(https?)://([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{1,5}))?([/?][!-~]*)?")
_CONTEXT: Final = b"penstock webhook\0"

Networks = Sequence[IPv4Network | IPv6Network]


class WebhookUrl(NamedTuple):
    """The parts of a URL."""

    is_secure: bool
    host: str
    port: int
    target: str
    """Path and query."""


class Webhook(msgspec.Struct, frozen=True):
    """An event that is sent, as the job store has it: one object for each attempt that has begun."""

    url: str
    id: str
    """Identifier of the event, equal in all attempts."""
    created_at: int
    """Unix time (s) of the event."""
    due_at: float
    """Unix time (s) of the next attempt."""
    body: str
    is_accepted: bool = False
    """Whether a receiver has accepted the event. The object stays for ACCEPTED_S, so that no agent begins an attempt
    that is based on an older list of objects."""


class WebhookStep(Enum):
    """What an agent does next about a webhook."""

    WAIT = "wait"
    """Nothing until `due_at`."""
    DELETE = "delete"
    """A receiver has accepted the event."""
    GIVE_UP = "give up"
    SEND = "send"


def next_step(webhook: Webhook, attempts: int, now: float) -> WebhookStep:
    """What follows so many attempts of a webhook at `now` (Unix time, s)."""
    if is_ahead(webhook.due_at, now):
        return WebhookStep.WAIT
    if webhook.is_accepted:
        return WebhookStep.DELETE
    is_late = attempts >= MAX_ATTEMPTS or now > webhook.created_at + MAX_AGE_S
    return WebhookStep.GIVE_UP if is_late or parse_url(webhook.url) is None else WebhookStep.SEND


def is_ahead(due_at: float, now: float) -> bool:
    """Whether a time has yet to come. One further ahead than any delay was set by a wrong clock, and has come."""
    return now < due_at <= now + DELAYS_S[-1]


def after_attempt(webhook: Webhook, attempts: int, now: float) -> Webhook:
    """The webhook, due again, whose attempt begins at `now` (Unix time, s) after so many others."""
    return replace(webhook, due_at=now + DELAYS_S[min(attempts, len(DELAYS_S) - 1)])


def parse_url(text: str) -> WebhookUrl | None:
    """Return the parts of a URL without user and fragment; None if it is malformed."""
    found = _URL.fullmatch(text) if len(text) <= MAX_URL and "#" not in text else None
    if found is None:
        return None
    scheme, host, port, target = found.groups()
    number = int(port) if port else 443 if scheme == "https" else 80
    if not 1 <= number <= 65_535:
        return None
    path = target or "/"
    return WebhookUrl(scheme == "https", host.strip("[]"), number, path if path.startswith("/") else f"/{path}")


def refuse_address(address: str, networks: Networks, *, is_secure: bool) -> str:
    """Why a webhook is not sent to an address; empty if it is.

    Args:
        networks: the networks that the policy permits besides public addresses.
        is_secure: whether the connection uses TLS.
    """
    if is_reserved(address):
        return f"{address} is a link-local, multicast or metadata address"
    number = ip_address(address)
    if any(number in network for network in networks):
        return ""
    if not is_public(address):
        return f"{address} is not a public address, and in none of the `webhook_networks` of the policy"
    return "" if is_secure else f"http is not used to {address}, which is in none of the `webhook_networks`"


def webhook_of(job: str, state: str, url: str, at: float) -> Webhook:
    """The webhook of a job that has ended at `at` (Unix time, s)."""
    kind = job.rpartition("_")[0] if not job.startswith(store_paths.MESSAGE_BATCH) else "message_batch"
    # Not of the job alone: receivers ignore a known event, and a deleted job can be submitted and end again.
    event = f"evt_{sha256(f'{job}.{int(at * 1000)}'.encode()).hexdigest()[:32]}"
    body = {"id": event, "object": "event", "created_at": int(at), "type": f"{kind}.{state}", "data": {"id": job}}
    return Webhook(url, event, int(at), at, msgspec.json.encode(body).decode())


def tenant_secret(key: bytes, tenant: str) -> bytes:
    """The key of the signatures of a tenant, derived from a key of the fleet."""
    return digest(key, _CONTEXT + tenant.encode(), sha256)


def secret_text(secret: bytes) -> str:
    """A key of signatures as receivers configure it."""
    return SECRET_PREFIX + b64encode(secret).decode()


def signature_of(secrets: Sequence[bytes], webhook_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`: one signature for each key, while keys are replaced.

    Args:
        timestamp: Unix time (s) of the attempt.
    """
    content = b"%b.%d.%b" % (webhook_id.encode(), timestamp, body)
    return " ".join(f"v1,{b64encode(digest(secret, content, sha256)).decode()}" for secret in secrets)
