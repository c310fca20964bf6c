"""A burst of requests for a model on demand of which every pool is cold, with a wake webhook that works or fails."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple

import yaml

from adapters.servers.free_ports import LOOPBACK
from lab.demo.demo_workload import TENANT_KEYS
from lab.demo.findings import Measured
from lab.gameday.fault_injection import put_faults, stop_model
from lab.gameday.policy_change import POLL_S, change_policy, statuses
from lab.gameday.wake_webhook import Conduct, Order, WakeWebhook
from lab.gameday.workers import Workers
from lab.planet.bundle import MODELS_FILE
from lab.planet.configs import url
from lab.planet.planet import Planet
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
"""Maximum number of orders for one endpoint while its webhook fails for 12 s: the delays are 1, 2, 4 and 8 s less a
fifth."""

BURST = 6
"""Requests to each agent at once."""

LEAD_S = 7.0
COLD_WITHIN_S = 5.0
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

    def prepare(self, planet: Planet) -> float:
        """Publish a policy with the model on demand; return the time (s) until the fault begins.

        Raises:
            ServerError: an agent does not apply the policy in time.
        """
        self._answers, self._problems = [], {}
        places = {
            engine.name: url(planet.ports[engine_port(region.name, engine.name)])
            for region in planet.topology.regions
            for engine in region.engines
        }
        self._webhook = WakeWebhook(self._conducts, COLD_START_S, lambda name: put_faults(places[name], {}))
        hook = self._webhook.url
        self._restore = change_policy(planet, {MODELS_FILE: lambda text: on_demand_models(text, hook)})
        return LEAD_S

    def inject(self, planet: Planet) -> Callable[[], None]:
        """Stop the engines and, when every agent reports them as stopped, send the burst; return the end."""
        lift = stop_model(CHAT_70B)(planet)
        agents = [
            planet.ports[agent_port(region.name, agent, "traffic")]
            for region in planet.topology.regions
            for agent in region.agents
        ]
        until = time.monotonic() + COLD_WITHIN_S
        while any(each["ready"] for each in _endpoints(planet)) and time.monotonic() < until:
            time.sleep(POLL_S)
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
        return judge_wakes(self._conducts, burst, self._orders, self._problems)

    def _send(self, port: int, _stopped: threading.Event) -> None:
        began, status = time.monotonic(), 0
        # A client with TLS settings of its own for each request would take seconds of CPU time from the observers.
        connection = HTTPConnection(LOOPBACK, port, timeout=2.0 * ANSWERED_WITHIN_S)
        try:
            headers = {"authorization": f"Bearer {TENANT_KEYS['open']}", "content-type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps(_CHAT), headers)
            status = connection.getresponse().status
        except (OSError, HTTPException):
            pass
        finally:
            connection.close()
        with self._lock:
            self._answers.append((status, time.monotonic() - began))


def judge_wakes(
    conducts: Mapping[str, Conduct],
    burst: Burst,
    orders: Sequence[Order],
    problems: Mapping[str, str],
) -> Measured:
    """Return the number of answered requests of a burst, 0 if a promise was broken.

    With a webhook that works, each request is answered with 200 and each endpoint is woken by one order. The orders to
    one that fails are bounded; where it fails, the reason is visible, and each request is answered with 200 or 503 in
    time. Only regions with an endpoint order.

    Args:
        problems: the reported `wake_problem` of each endpoint that has one.
    """
    by_endpoint = Counter(order.endpoint or f"{order.region} without an endpoint" for order in orders)
    regions = {order.endpoint: order.region for order in orders if order.endpoint}
    permitted = {200, 503} if conducts else {200}
    answered = sum(burst.statuses.values()) == burst.sent and burst.statuses.keys() <= permitted
    down = {endpoint: conducts[region] for endpoint, region in regions.items() if region in conducts}
    starts = regions.keys() - down.keys()
    bounded = all(count <= (1 if endpoint in starts else MOST_ORDERS) for endpoint, count in by_endpoint.items())
    # A region without an endpoint asks for none, since other regions have some.
    bounded = bounded and all(order.endpoint for order in orders)
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
        says += f" (at most {MOST_ORDERS} where the webhook fails); reported: {reasons or 'nothing'}"
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


def _endpoints(planet: Planet) -> list[dict[str, Any]]:
    """Return the endpoints of CHAT_70B, as each agent reports them."""
    return [
        endpoint
        for status in statuses(planet).values()
        for endpoint in status.get("endpoints", ())
        if CHAT_70B in endpoint["models"]
    ]
