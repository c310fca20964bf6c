"""Preemption of batch requests at any times: one victim for a waiting request at most, and every request completes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.admission.batch_preemption import (
    MAX_PREEMPTIONS,
    AgentBatch,
    Preemptions,
    RunningRequest,
    first_to_end,
    preemptions_of,
)
from tests.support.examples import examples

YOUNG_PART = 1 / 3
"""As documented, and not imported: a test fails if a tuned constant changes."""

NAMES = ("a", "b", "c")

counts = st.integers(0, 6)
regions = st.lists(st.tuples(counts, counts), min_size=1, max_size=3)


@settings(max_examples=examples(300), deadline=None)
@given(regions, st.integers(-3, 8))
def test_the_agents_together_end_as_many_as_lack_a_slot(region: list[tuple[int, int]], free_slots: int) -> None:
    agents = [AgentBatch(name, *counts, counts[0]) for name, counts in zip(NAMES, region, strict=False)]
    found = {each.agent: preemptions_of(each.agent, agents, free_slots) for each in agents}
    assert all(each.of_young_ones == 0 for each in found.values()), "all have waited for their patience"
    ends = {agent: each.of_any_age for agent, each in found.items()}
    waiting, preemptible = (sum(column) for column in zip(*region, strict=True))
    assert sum(ends.values()) == min(preemptible, max(0, waiting - max(0, free_slots)))
    assert all(0 <= ends[each.agent] <= each.preemptible for each in agents)
    if waiting > 0 >= free_slots:
        # Of what an agent's own requests need, it ends all that it can before another agent ends any.
        assert all(ends[each.agent] >= min(each.waiting, each.preemptible) for each in agents)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(counts, counts, counts), min_size=1, max_size=3), st.integers(-3, 8))
def test_requests_of_any_age_end_for_those_alone_that_have_waited(
    region: list[tuple[int, int, int]], free_slots: int
) -> None:
    agents = [AgentBatch(name, a + b, c, a) for name, (a, b, c) in zip(NAMES, region, strict=False)]
    found = [preemptions_of(each.agent, agents, free_slots) for each in agents]
    patient, preemptible = sum(each.patient for each in agents), sum(each.preemptible for each in agents)
    assert sum(each.of_any_age for each in found) == min(preemptible, max(0, patient - max(0, free_slots)))
    lacking = max(0, sum(each.waiting for each in agents) - max(0, free_slots))
    assert sum(sum(each) for each in found) >= min(preemptible, lacking)
    assert all(each.of_young_ones >= 0 for each in found)


@given(st.lists(st.floats(0, 100)), counts, counts, st.floats(0, 60))
def test_the_youngest_end_first(since: list[float], of_any_age: int, of_young_ones: int, patience_s: float) -> None:
    running = [RunningRequest(at, number) for number, at in enumerate(since)]
    ends = first_to_end(running, Preemptions(of_any_age, of_young_ones), 100.0, patience_s)
    assert min(of_any_age, len(since)) <= len(ends) <= of_any_age + of_young_ones
    kept = [each.since for each in running if each.number not in ends]
    assert all(since[number] >= max(kept, default=0.0) for number in ends)
    assert all(100.0 - since[number] < YOUNG_PART * patience_s for number in ends[of_any_age:])


def test_a_request_is_young_for_a_third_of_the_patience() -> None:
    running = [RunningRequest(since, number) for number, since in enumerate((70.0, 79.9, 80.1, 99.0))]
    assert first_to_end(running, Preemptions(0, 4), 100.0, 60.0) == [3, 2]
    assert first_to_end(running, Preemptions(1, 4), 100.0, 60.0) == [3, 2]
    assert first_to_end(running, Preemptions(3, 0), 100.0, 60.0) == [3, 2, 1]


class Pool:
    """A pool of slots at one agent whose batch fills what clients leave."""

    def __init__(self, slots: int, items: int) -> None:
        self.slots, self.clients, self.waiting, self.victims, self.waited = slots, 0, 0, 0, 0
        self.queued = list(range(items))
        self.running: dict[int, float] = {}
        self.preempted = dict.fromkeys(range(items), 0)
        self.done: list[int] = []
        self.fill(0.0)

    def fill(self, now: float) -> None:
        """End batch requests for waiting ones, and start what has a slot."""
        free = self.slots - self.clients - len(self.running)
        may_end = [item for item in self.running if self.preempted[item] < MAX_PREEMPTIONS]
        preemptions = preemptions_of("a", [AgentBatch("a", self.waiting, len(may_end), self.waiting)], free)
        ends = first_to_end([RunningRequest(self.running[item], item) for item in may_end], preemptions, now, 0.0)
        for item in ends:
            assert all(self.running[item] >= self.running[other] for other in may_end if other in self.running)
            del self.running[item]
            self.preempted[item] += 1
            self.queued.insert(0, item)
        self.victims += len(ends)
        started = min(self.waiting, self.slots - self.clients - len(self.running))
        self.waiting -= started
        self.clients += started
        while self.queued and not self.waiting and self.clients + len(self.running) < self.slots:
            self.running[self.queued.pop(0)] = now


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.lists(st.sampled_from(["arrive", "leave", "complete"]), max_size=60))
def test_each_request_completes_once_and_a_waiting_request_costs_one_at_most(
    slots: int, items: int, events: list[str]
) -> None:
    pool = Pool(slots, items)
    for now, event in enumerate(events, 1):
        if event == "arrive":
            pool.waiting += 1
            pool.waited += 1
        elif event == "leave" and pool.clients:
            pool.clients -= 1
        elif event == "complete" and pool.running:
            # The oldest one: the others may always be preempted before they complete.
            item = min(pool.running, key=lambda each: (pool.running[each], each))
            del pool.running[item]
            pool.done.append(item)
        pool.fill(float(now))
        assert pool.clients + len(pool.running) <= slots
        assert pool.victims <= pool.waited
        assert max(pool.preempted.values()) <= MAX_PREEMPTIONS
    # Clients that come one after another for ever take a slot of the batch each time; the batch still completes.
    for now in range(1000, 1000 + 20 * items * (MAX_PREEMPTIONS + 1)):
        pool.clients, pool.waiting = 0, 0
        pool.fill(float(now))
        pool.waiting = slots
        pool.fill(float(now))
        for item in [each for each in pool.running if pool.preempted[each] >= MAX_PREEMPTIONS]:
            del pool.running[item]
            pool.done.append(item)
    assert sorted(pool.done) == list(range(items))
