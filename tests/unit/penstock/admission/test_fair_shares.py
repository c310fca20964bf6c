"""The shares of GPU time that tenants with backlog receive on a virtual clock, with answers of unknown lengths."""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from random import Random

import pytest

from penstock.admission.model_queue import ModelQueue, Pass
from penstock.admission.tenant_order import QueuedRequest

SLOTS = 16
MEAN_S = {"long": 1.2, "short": 0.3}
WINDOW_S = 30.0


def run_backlog(weights: dict[str, float], seed: int, ends_s: float = 75.0) -> dict[str, list[tuple[float, float]]]:
    """Run the endless backlogs of tenants; return the start and the end of each of their requests.

    All requests are estimated as one second until the tenant's mean is known, which takes the first 10 s.
    """
    rng, now, number = Random(seed), 0.0, 0
    queue: ModelQueue[str] = ModelQueue(max_length=10_000)
    ran: dict[str, list[tuple[float, float]]] = defaultdict(list)
    free, ends, waiting = SLOTS, [], dict.fromkeys(weights, 0)
    while now < ends_s:
        for tenant, weight in weights.items():
            for _ in range(SLOTS - waiting[tenant]):
                known = ran[tenant][-50:]
                estimate_s = sum(end - start for start, end in known) / len(known) if len(known) > 20 else 1.0
                queue.join(QueuedRequest(tenant, tenant, 0, 1, now, now, 1e9, estimate_s, weight), now)
                waiting[tenant] += 1
        offers = Pass(queue, (), now)
        while free and (request := offers.next(now, has_room=True).request) is not None:
            service_s = MEAN_S[request.tenant] * rng.lognormvariate(-0.18, 0.6)
            counter, number, free = queue.start(request, now), number + 1, free - 1
            waiting[request.tenant] -= 1
            ran[request.tenant].append((now, now + service_s))
            heappush(ends, (now + service_s, number, counter, request.cost_s, service_s))
        now, _, counter, charged_s, used_s = heappop(ends)
        counter.end(charged_s, used_s)
        free += 1
    return ran


def work_s(ran: list[tuple[float, float]], since_s: float) -> float:
    until_s = since_s + WINDOW_S
    return sum(max(0.0, min(end, until_s) - max(start, since_s)) for start, end in ran)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("ratio", [1.0, 2.0])
def test_tenants_receive_gpu_time_by_their_weights_in_any_30_s(seed: int, ratio: float) -> None:
    ran = run_backlog({"long": ratio, "short": 1.0}, seed)
    for second in range(10, 45):
        long, short = work_s(ran["long"], second) / ratio, work_s(ran["short"], second)
        assert abs(long - short) / ((long + short) / 2) <= 0.05, second
