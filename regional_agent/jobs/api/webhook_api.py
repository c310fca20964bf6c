"""The webhook that a request for a job asks for, and the secret of a tenant's webhooks."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from penstock.jobs.webhook import URL_HEADER, parse_url, refuse_address
from penstock.policy.kinds.jobs import JobStore
from regional_agent.http.messages import Request
from regional_agent.jobs.api.api_responses import Answer, BadInput, json_response
from regional_agent.jobs.webhooks.webhook_keys import WebhookKeys


class WebhookApi:
    """Webhooks in one job store."""

    def __init__(self, keys: WebhookKeys, store: JobStore) -> None:
        """Use the keys of the agent, and the networks that `store` permits."""
        self._keys = keys
        self._networks = [ip_network(network) for network in store.webhook_networks]

    def url_of(self, request: Request) -> str:
        """Return the URL of a request's webhook; empty for none. Raises BadInput for one that cannot be used."""
        values = request.every(URL_HEADER)
        if not values:
            return ""
        self._require_keys()
        text = values[0].decode("latin-1")
        url = parse_url(text)
        if url is None or len(values) > 1:
            message = "`x-webhook-url` is not one URL, with https, a host, and without user and fragment"
            raise BadInput(400, "invalid_webhook_url", message)
        problem = "" if url.is_secure or self._networks else "http is not used"
        try:
            address = str(ip_address(url.host))
        except ValueError:
            # The addresses of a name are checked at each attempt.
            pass
        else:
            problem = problem or refuse_address(address, self._networks, is_secure=url.is_secure)
        if problem:
            raise BadInput(400, "webhook_forbidden", f"`x-webhook-url`: {problem}")
        return text

    def secret(self, tenant: str) -> Answer:
        """Return the secret of the signatures of a tenant's webhooks."""
        self._require_keys()
        return json_response({"object": "webhook.secret", "secret": self._keys.shown_to(tenant)})

    def _require_keys(self) -> None:
        if not self._keys.are_set:
            raise BadInput(501, "webhooks_not_offered", "the agents of this region send no webhooks")
