"""The keys from which the signing secrets of tenants are derived."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from adapters.files.secret_file import read_secrets
from penstock.jobs.webhook import secret_text, tenant_secret

MIN_KEY_BYTES: Final = 32
"""Minimum length (bytes) of a key."""


class WebhookKeys:
    """Keys of the fleet; none if agents send no webhooks."""

    def __init__(self, keys: tuple[bytes, ...] = ()) -> None:
        """Use the keys; every one signs, and the first one is shown."""
        self._keys = keys

    def use(self, renewed: WebhookKeys) -> None:
        """Replace the keys."""
        self._keys = renewed._keys

    @property
    def are_set(self) -> bool:
        """Whether agents send webhooks."""
        return bool(self._keys)

    def secrets_of(self, tenant: str) -> list[bytes]:
        """Return the keys of the signatures of a tenant."""
        return [tenant_secret(key, tenant) for key in self._keys]

    def shown_to(self, tenant: str) -> str:
        """Return the secret that a receiver of the tenant's webhooks configures."""
        return secret_text(self.secrets_of(tenant)[0])


def read_webhook_keys(path: Path) -> WebhookKeys:
    """Return the keys of a file. Raises BadSecret."""
    return WebhookKeys(tuple(read_secrets(path, "webhook key", min_bytes=MIN_KEY_BYTES)))
