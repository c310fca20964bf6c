"""Properties of models on demand: no oscillation, and always a copy in the fleet."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.on_demand.last_copy import CopyView, may_be_last
from penstock.on_demand.model_eviction import IN_USE, HeldModel, find_room
from penstock.on_demand.pool_size import PoolLimits, PoolSeen, PoolSize, missing
from penstock.on_demand.wake_history import StepWakes
from penstock.planning.plan import VersionShare

IDLE_S = 30.0
SETTLED_S = 400
SERVICE_S = 4.0


def directions(steps: list[float], slots: int, cold_start_s: int, target: float) -> list[list[int]]:
    """The changes of the number of awake endpoints, +1 or -1 each, in reply to each step of demand.

    Requests are a fluid: those that no slot serves wait, so that a cold start leaves a queue behind.
    """
    size, limits = PoolSize(), PoolLimits(0, 50, target, IDLE_S, keeps_last=False)
    awake, waking, requests, found = 0, [], 0.0, []
    for number, concurrency in enumerate(steps):
        moves: list[int] = []
        for second in range(number * SETTLED_S, (number + 1) * SETTLED_S):
            requests += (concurrency - min(requests, awake * slots)) / SERVICE_S
            requests = 0.0 if requests < 1e-3 else requests
            awake += sum(ready <= second for ready in waking)
            waking = [ready for ready in waking if ready > second]
            change = size.change(PoolSeen(awake, len(waking), requests, slots), limits, float(second))
            if change > 0:
                waking += [second + cold_start_s] * change
            else:
                awake += change
            moves += [1 if change > 0 else -1] * bool(change)
        found.append(moves)
    return found


@given(
    steps=st.lists(st.sampled_from([0.0, 1.0, 3.0, 7.5, 20.0, 40.0]), min_size=1, max_size=4),
    slots=st.integers(2, 16),
    cold_start_s=st.integers(1, 60),
    target=st.sampled_from([0.5, 0.8, 1.0]),
)
def test_a_step_of_demand_causes_at_most_one_reversal(
    steps: list[float], slots: int, cold_start_s: int, target: float
) -> None:
    for moves in directions(steps, slots, cold_start_s, target):
        assert sum(earlier != later for earlier, later in pairwise(moves)) <= 1


REGIONS = st.lists(st.sampled_from("abcdef"), min_size=1, unique=True)


@given(REGIONS, st.sets(st.frozensets(st.sampled_from("abcdef"), min_size=1), min_size=1, max_size=4))
def test_regions_that_decide_by_old_views_never_let_the_last_copy_sleep(
    regions: list[str], scopes: set[frozenset[str]]
) -> None:
    """Every region sees all others as ready as at the beginning, the worst of old views: two regions that load the same
    model into their last memory put another model to sleep by the same rule."""
    ready, keep = frozenset(regions), set()
    for region in regions:
        of_region = frozenset(scope for scope in scopes if region in scope)
        if may_be_last(CopyView(region, ready - {region}, of_region)):
            keep.add(region)
    for scope in scopes:
        assert not scope & ready or min(scope & ready) in keep


EVICT_AFTER_S = 20.0
COLD_START_S = 5.0


class OneMemory:
    """A memory for `size` models of one unit each, of which each wakes and sleeps by the rules."""

    def __init__(self, size: int, models: str, idle_s: float) -> None:
        self._size = size
        self._sizes = {model: PoolSize() for model in models}
        self._limits = PoolLimits(0, 1, 0.8, idle_s, keeps_last=False)
        self.used_at: dict[str, float] = {}
        """The loaded models, with their last use or load."""
        self._ready_at: dict[str, float] = {}
        self._steps = {model: StepWakes() for model in models}
        self.evicted_at: list[float] = []
        self.evicted_for: list[str] = []

    def second(self, now: float, loads: dict[str, float], step: VersionShare | None = None) -> dict[str, int]:
        """The changes of a second: +1 for models that wake, -1 for models that sleep. `step`: of a rollout, if due."""
        moves: dict[str, int] = {}
        for model in [model for model, ready_at in self._ready_at.items() if ready_at <= now]:
            self.used_at[model] = self._ready_at.pop(model)
        self.used_at.update({model: now for model in self.used_at if loads.get(model)})
        for model, size in self._sizes.items():
            seen = PoolSeen(int(model in self.used_at), int(model in self._ready_at), loads.get(model, 0.0), 8.0)
            due = step if step is not None and step.to == model else None
            self._steps[model].add(due, ["gpu"] if model in self.used_at else [])
            with_step = seen._replace(load=max(seen.load, 1.0)) if due else seen
            change = size.change(with_step, self._limits, now)
            if change < 0:
                del self.used_at[model]
                moves[model] = -1
            elif change > 0 and not self._ready_at:
                held = [
                    HeldModel("gpu", each, 1.0, IN_USE if loads.get(each) else now - at, EVICT_AFTER_S)
                    for each, at in self.used_at.items()
                ]
                room = find_room(1.0, float(self._size), held, dict.fromkeys(self.used_at, 1))
                may_evict = missing(seen, self._limits) > 0 or self._steps[model].may_evict("gpu")
                if not room.problem and (may_evict or not room.leaving):
                    for each in room.leaving:
                        assert not loads.get(each.model), "in use"
                        del self.used_at[each.model]
                        moves[each.model] = -1
                        self.evicted_at.append(now)
                        self.evicted_for.append(model)
                    self._ready_at[model] = now + COLD_START_S
                    moves[model] = 1
        assert len(self.used_at) + len(self._ready_at) <= self._size
        return moves


@given(
    steps=st.lists(st.frozensets(st.sampled_from("abcd")), min_size=1, max_size=4),
    size=st.integers(1, 3),
    idle_s=st.sampled_from([0.0, 15.0, 60.0]),
)
def test_a_step_of_demand_for_models_that_share_a_memory_causes_at_most_one_reversal(
    steps: list[frozenset[str]], size: int, idle_s: float
) -> None:
    memory = OneMemory(size, "abcd", idle_s)
    for number, step in enumerate(steps):
        moves: dict[str, list[int]] = {}
        for second in range(number * 200, (number + 1) * 200):
            for model, move in memory.second(float(second), dict.fromkeys(step, 3.0)).items():
                moves.setdefault(model, []).append(move)
        assert all(sum(one != other for one, other in pairwise(made)) <= 1 for made in moves.values()), moves
        served = step & memory.used_at.keys()
        assert len(served) == min(size, len(step)), "as many models as fit are served"


@given(st.lists(st.tuples(st.integers(1, 60), st.sampled_from("abc")), max_size=30))
def test_single_requests_change_a_memory_no_oftener_than_policy_permits(arrivals: list[tuple[int, str]]) -> None:
    memory, now, times, loads = OneMemory(1, "abc", 0.0), 0, dict[int, str](), 0
    for after_s, model in arrivals:
        now += after_s
        times[now] = model
    for second in range(now + 100):
        # A request waits or runs for 10 s.
        wanted = {model: 1.0 for at, model in times.items() if at <= second < at + 10}
        loads += list(memory.second(float(second), wanted).values()).count(1)
    assert loads <= len(times)
    assert all(later - earlier >= EVICT_AFTER_S for earlier, later in pairwise(memory.evicted_at))


@given(
    arrivals=st.lists(st.tuples(st.integers(1, 90), st.sampled_from("bc")), max_size=30),
    steps=st.lists(st.integers(100, 900), min_size=1, max_size=4),
    size=st.integers(1, 2),
    idle_s=st.sampled_from([0.0, 60.0]),
)
def test_a_step_of_a_rollout_takes_the_memory_of_rarely_used_models_at_most_once(
    arrivals: list[tuple[int, str]], steps: list[int], size: int, idle_s: float
) -> None:
    memory, now, times = OneMemory(size, "abc", idle_s), 0, dict[int, str]()
    for after_s, model in arrivals:
        now += after_s
        times[now] = model
    ends = [sum(steps[: number + 1]) for number in range(len(steps))]
    for second in range(ends[-1]):
        number = sum(second >= end for end in ends)
        wanted = {model: 1.0 for at, model in times.items() if at <= second < at + 10}
        memory.second(float(second), wanted, VersionShare("chat", "a", number, next_percent=number + 1.0))
    assert memory.evicted_for.count("a") <= len(steps), "a reversal for each step"
