"""A burst of requests for a model on demand of which every pool is cold, with a wake webhook that works or fails."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import httpx
import yaml

from adapters.servers.errors import ServerError
from lab.demo.demo_workload import TENANT_KEYS
from lab.demo.findings import Measured
from lab.gameday.fault_injection import put_faults, stop_model
from lab.gameday.wake_webhook import Conduct, Order, WakeWebhook
from lab.gameday.workers import Workers
from lab.planet.bundle import MODELS_FILE
from lab.planet.configs import url
from lab.planet.planet import Planet, ask
from lab.planet.topology import CHAT_70B, agent_port, engine_port

COLD_START_S = 4.0
"""Time (s) from an order until the endpoint serves."""

PRIOR_S = 8.0
"""`cold_start_s` of the policy: the expected cold start before the first is measured."""

MAX_WAIT_S = 20.0
HOOK_TIMEOUT_S = 2.0

ANSWERED_WITHIN_S = MAX_WAIT_S + 5.0
"""Maximum time (s) until each request of the burst is answered or refused."""

MOST_ORDERS = 6
"""Maximum number of orders of each agent for one endpoint while its webhook fails for 12 s: the delays are 1, 2, 4 and
8 s less a fifth."""

BURST = 6
"""Requests to each agent at once."""

LEAD_S = 7.0
COLD_WITHIN_S = 5.0
IN_FORCE_WITHIN_S = 20.0

_CHAT = {"model": CHAT_70B, "messages": [{"role": "user", "content": "x"}], "max_tokens": 8}


class Burst(NamedTuple):
    """The responses to the requests of a burst."""

    statuses: Counter[int]
    slowest_s: float
    sent: int


class ColdPools:
    """A fault that stops every engine of CHAT_70B and sends a burst of its requests to every agent.

    Args:
        conducts: what the webhook does with the orders of each region; none for a webhook that works everywhere.
    """

    def __init__(self, conducts: Mapping[str, Conduct]) -> None:
        self._conducts = conducts
        self._webhook: WakeWebhook | None = None
        self._restore: Callable[[], None] = lambda: None
        self._burst: Workers | None = None
        self._problems: dict[str, str] = {}
        self._orders: list[Order] = []
        self._lock = threading.Lock()
        self._answers: list[tuple[int, float]] = []
        self._sent = 0
        self._agents: dict[str, int] = {}

    def prepare(self, planet: Planet) -> float:
        """Publish a policy with the model on demand; return the time (s) until the fault begins.

        Raises:
            ServerError: an agent does not apply the policy in time.
        """
        self._answers, self._problems = [], {}
        self._agents = {region.name: len(region.agents) for region in planet.topology.regions}
        places = {
            engine.name: url(planet.ports[engine_port(region.name, engine.name)])
            for region in planet.topology.regions
            for engine in region.engines
        }
        self._webhook = WakeWebhook(self._conducts, COLD_START_S, lambda name: put_faults(places[name], {}))
        path = planet.policy_dir / MODELS_FILE
        before = path.read_text()
        path.write_text(on_demand_models(before, self._webhook.url))
        digests = _digests(planet)

        def restore() -> None:
            path.write_text(before)

        self._restore = restore
        until = time.monotonic() + IN_FORCE_WITHIN_S
        while not all(now and now != digests[name] for name, now in _digests(planet).items()):
            if time.monotonic() > until:
                raise ServerError(f"an agent did not apply the policy with {CHAT_70B} on demand")
            time.sleep(0.2)
        return LEAD_S

    def inject(self, planet: Planet) -> Callable[[], None]:
        """Stop the engines and, when every agent reports them as stopped, send the burst; return the end."""
        lift = stop_model(CHAT_70B)(planet)
        agents = [
            url(planet.ports[agent_port(region.name, agent, "traffic")])
            for region in planet.topology.regions
            for agent in region.agents
        ]
        until = time.monotonic() + COLD_WITHIN_S
        while any(each["ready"] for each in _endpoints(planet)) and time.monotonic() < until:
            time.sleep(0.05)
        self._sent = BURST * len(agents)
        self._burst = Workers(*(partial(self._send, agent) for agent in agents for _ in range(BURST)))

        def end() -> None:
            assert self._webhook is not None
            self._problems = {each["name"]: each["wake_problem"] for each in _endpoints(planet) if each["wake_problem"]}
            self._orders = [order for order in self._webhook.orders() if order.action == "wake"]
            lift()

        return end

    def conclude(self) -> Measured:
        """Wait for the burst, restore the policy, and return the number of answers, 0 if a promise was broken."""
        assert self._burst is not None
        assert self._webhook is not None
        self._burst.stop()
        self._restore()
        self._webhook.close()
        statuses = Counter(status for status, _ in self._answers)
        slowest_s = max((took_s for _, took_s in self._answers), default=0.0)
        burst = Burst(statuses, slowest_s, self._sent)
        return judge_wakes(self._conducts, burst, self._orders, self._problems, self._agents)

    def _send(self, agent: str) -> None:
        began, status = time.monotonic(), 0
        try:
            headers = {"authorization": f"Bearer {TENANT_KEYS['open']}"}
            status = httpx.post(
                agent + "/v1/chat/completions", json=_CHAT, headers=headers, timeout=2.0 * ANSWERED_WITHIN_S
            ).status_code
        except httpx.HTTPError:
            pass
        with self._lock:
            self._answers.append((status, time.monotonic() - began))


def judge_wakes(
    conducts: Mapping[str, Conduct],
    burst: Burst,
    orders: Sequence[Order],
    problems: Mapping[str, str],
    agents: Mapping[str, int],
) -> Measured:
    """Return the number of answered requests of a burst, 0 if a promise was broken.

    With a webhook that works, each request is answered with 200 and each endpoint is woken by one order. The orders to
    one that fails, or has no endpoint to start, are bounded; where it fails, the reason is visible, and each request is
    answered with 200 or 503 in time.

    Args:
        problems: the reported `wake_problem` of each endpoint that has one.
        agents: the number of agents of each region.
    """
    by_endpoint = Counter(order.endpoint or f"{order.region} without an endpoint" for order in orders)
    of_region = Counter((order.region, order.endpoint) for order in orders)
    regions = {order.endpoint: order.region for order in orders if order.endpoint}
    permitted = {200, 503} if conducts else {200}
    answered = sum(burst.statuses.values()) == burst.sent and burst.statuses.keys() <= permitted
    down = {endpoint: conducts[region] for endpoint, region in regions.items() if region in conducts}
    starts = regions.keys() - down.keys()
    bounded = all(
        count <= (1 if endpoint in starts else MOST_ORDERS * agents[region])
        for (region, endpoint), count in of_region.items()
    )
    visible = all(
        ("no answer" if conduct is Conduct.HANGS else "answers 500") in problems.get(endpoint, "")
        for endpoint, conduct in down.items()
    )
    tried = {regions[endpoint] for endpoint in down} == conducts.keys()
    holds = answered and bounded and visible and tried and burst.slowest_s <= ANSWERED_WITHIN_S
    statuses = ", ".join(f"{count} with {status}" for status, count in sorted(burst.statuses.items()))
    woken = ", ".join(f"{endpoint} {count}" for endpoint, count in sorted(by_endpoint.items()))
    says = (
        f"burst of {burst.sent}: {statuses or 'no response'}, the slowest after {burst.slowest_s:.1f} s (at most "
        f"{ANSWERED_WITHIN_S:g} s); orders to wake: {woken or 'none'}"
    )
    if conducts:
        reasons = "; ".join(f"{endpoint}: {problem}" for endpoint, problem in sorted(problems.items()))
        says += f" (at most {MOST_ORDERS} of each agent where the webhook fails); reported: {reasons or 'nothing'}"
    return Measured(burst.statuses.total() if holds and regions else 0, says)


def on_demand_models(documents: str, webhook: str) -> str:
    """Return the policy file of the models, with CHAT_70B on demand by a webhook. No endpoint falls asleep."""
    models: list[dict[str, Any]] = list(yaml.safe_load_all(documents))
    for model in models:
        if model["name"] == CHAT_70B:
            model["scaling"] = {"cold_start_s": PRIOR_S, "min_endpoints": 0}
            model["queueing"] = {"max_wait_s": MAX_WAIT_S}
            model["on_demand"] = {"wake": "webhook", "webhook": webhook, "timeout_s": HOOK_TIMEOUT_S, "idle_s": 0}
    return yaml.safe_dump_all(models, sort_keys=False)


def _statuses(planet: Planet) -> dict[str, dict[str, Any]]:
    return {name: ask(where + "/status", planet.agents_key) or {} for name, where in planet.admin_urls().items()}


def _digests(planet: Planet) -> dict[str, str]:
    """Return the digest of the policy in force at each agent; empty for one that does not respond."""
    return {name: status.get("policy_digest", "") for name, status in _statuses(planet).items()}


def _endpoints(planet: Planet) -> list[dict[str, Any]]:
    """Return the endpoints of CHAT_70B, as each agent reports them."""
    return [
        endpoint
        for status in _statuses(planet).values()
        for endpoint in status.get("endpoints", ())
        if CHAT_70B in endpoint["models"]
    ]
