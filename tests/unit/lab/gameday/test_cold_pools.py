"""The judgement of the wakes of cold pools, and the webhook of game days."""

from __future__ import annotations

import threading
from collections import Counter

import httpx
import pytest

from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from lab.gameday.cold_pools import Burst, judge_wakes, on_demand_models
from lab.gameday.wake_webhook import Conduct, Order, WakeWebhook
from lab.planet.bundle import MODELS_FILE, SHIPPED_BUNDLE, without_stages
from lab.planet.topology import CHAT_70B

GOOD = Burst(Counter({200: 4}), 6.0, 4)
DE, ES = Order(1.0, "wake", "eu-de", "de-1"), Order(1.1, "wake", "eu-es", "es-1")
DOWN = {"eu-de": Conduct.FAILS, "eu-es": Conduct.HANGS}
PROBLEMS = {"de-1": "POST /wake answers 500", "es-1": "no answer within 2 s"}


def test_one_order_for_each_cold_pool_and_every_answer_count() -> None:
    found = judge_wakes({}, GOOD, [DE, ES], {})
    assert found.events == 4
    assert "de-1 1, es-1 1" in found.says
    assert judge_wakes({}, GOOD, [DE, Order(1.0, "wake", "eu-gb", "")], {}).events == 0, "a region without endpoints"


@pytest.mark.parametrize(
    ("burst", "orders"),
    [
        (Burst(Counter({200: 3, 503: 1}), 6.0, 4), [DE]),
        (Burst(Counter({200: 3}), 6.0, 4), [DE]),
        (Burst(Counter({200: 4}), 60.0, 4), [DE]),
        (GOOD, [DE, DE]),
        (GOOD, []),
    ],
)
def test_a_refused_lost_or_late_request_and_a_second_order_leave_nothing_to_count(
    burst: Burst, orders: list[Order]
) -> None:
    assert judge_wakes({}, burst, orders, {}).events == 0


def test_a_webhook_that_fails_is_called_a_few_times_and_its_problem_is_visible() -> None:
    burst = Burst(Counter({200: 1, 503: 3}), 20.0, 4)
    assert judge_wakes(DOWN, burst, [DE, ES] * 4, PROBLEMS).events == 4
    assert judge_wakes(DOWN, burst, [DE, ES] * 9, PROBLEMS).events == 0
    assert judge_wakes(DOWN, burst, [DE], PROBLEMS).events == 0
    assert judge_wakes(DOWN, burst, [DE, ES], {"de-1": PROBLEMS["de-1"]}).events == 0
    assert judge_wakes(DOWN, Burst(Counter({200: 3, 0: 1}), 20.0, 4), [DE, ES], PROBLEMS).events == 0


def test_the_webhook_starts_endpoints_fails_or_does_not_answer() -> None:
    started = threading.Event()
    hook = WakeWebhook(DOWN, 0.0, lambda name: started.set() if name == "us-1" else None)
    try:
        with httpx.Client(base_url=hook.url, timeout=5.0) as http:
            assert http.post("", json=_order("us-east", "us-1")).status_code == 202
            assert started.wait(5.0)
            assert http.post("", json=_order("us-east", None)).status_code == 409
            assert http.post("", json=_order("eu-de", "de-1")).status_code == 500
            with pytest.raises(httpx.ReadTimeout):
                http.post("", json=_order("eu-es", "es-1"), timeout=0.05)
        assert [(order.region, order.endpoint) for order in hook.orders()] == [
            ("us-east", "us-1"),
            ("us-east", ""),
            ("eu-de", "de-1"),
            ("eu-es", "es-1"),
        ]
    finally:
        hook.close()


def test_the_policy_of_the_day_is_valid_and_has_the_large_model_on_demand() -> None:
    files = without_stages(read_folder(SHIPPED_BUNDLE))
    policy = compile_bundle({**files, MODELS_FILE: on_demand_models(files[MODELS_FILE], "http://127.0.0.1:4567/wake")})
    assert [name for name, model in policy.models.items() if model.on_demand] == [CHAT_70B]
    assert policy.rollout.watch_s == 0
    assert not policy.rollout.canary_regions


def _order(region: str, endpoint: str | None) -> dict[str, str | None]:
    return {"action": "wake", "region": region, "model": CHAT_70B, "endpoint": endpoint}
