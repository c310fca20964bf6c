"""Authentication of webhook deliveries by a shared secret. The body is not parsed: a delivery only triggers a poll.

GitHub, Gitea and Forgejo sign the body: `X-Hub-Signature-256: sha256=<HMAC-SHA256, hexadecimal>`
(https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries). GitLab sends the secret itself as
`X-Gitlab-Token` (https://docs.gitlab.com/user/project/integrations/webhooks/).
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from pathlib import Path

from adapters.files.secret_file import read_secret

MIN_SECRET_BYTES = 16


class Delivery:
    """One delivery while its body is received; only the running HMAC is kept."""

    def __init__(self, secret: bytes, signature: str | None, token: str | None) -> None:
        self._secret = secret
        self._signature = signature
        self._token = token
        self._running = hmac.new(secret, digestmod=sha256)

    def update(self, chunk: bytes) -> None:
        """Add a part of the body."""
        self._running.update(chunk)

    def is_genuine(self) -> bool:
        """Whether the signature matches the body, or without a signature the token the secret; in constant time."""
        if self._signature is not None:
            expected = f"sha256={self._running.hexdigest()}"
            return hmac.compare_digest(self._signature.encode("utf-8", "replace"), expected.encode())
        return hmac.compare_digest((self._token or "").encode("utf-8", "replace"), self._secret)


class WebhookSecret:
    """The secret shared with the repository's host."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def __repr__(self) -> str:
        return "WebhookSecret(...)"

    def use(self, renewed: WebhookSecret) -> None:
        """Replace the secret: from now on, only deliveries with the renewed secret are accepted."""
        self._secret = renewed._secret

    def delivery(self, signature: str | None, token: str | None) -> Delivery:
        """Begin to check a delivery by the signature and the token of its headers; None for an absent header."""
        return Delivery(self._secret, signature, token)


def load_webhook_secret(path: Path) -> WebhookSecret:
    """Read the secret: one line.

    Raises:
        BadSecret: the file cannot be used.
    """
    return WebhookSecret(read_secret(path, "webhook's secret", min_bytes=MIN_SECRET_BYTES))
