"""Properties of learned limits, for any history of an endpoint and any reports of its engine."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.health.concurrency_limit import MIN_OF_PEAK, PEAK_S, ConcurrencyLimit, LimitBounds
from penstock.health.throughput_fit import ThroughputFit

times = st.floats(0.0, 100.0)
numbers = st.floats(allow_nan=True, allow_infinity=True)
bounds = st.tuples(st.integers(1, 300), st.integers(0, 300)).map(lambda pair: LimitBounds(pair[0], pair[0] + pair[1]))
events = st.one_of(
    st.tuples(st.just("advance"), st.integers(0, 400)),
    st.tuples(st.just("completed"), st.integers(1, 400), numbers, numbers),
    st.tuples(st.just("reported"), st.floats(0, 1e6), st.floats(0, 1e6)),
    st.tuples(st.just("follow"), st.none() | st.integers(0, 1_000_000)),
    st.tuples(st.just("bounds"), bounds),
    st.tuples(st.just("tick"), st.integers(0, 400)),
)


@given(bounds, st.lists(st.tuples(times, events), max_size=120))
def test_a_limit_is_within_its_bounds_for_any_history(within, history) -> None:
    limit, now, areas = ConcurrencyLimit(within, 0.0), 0.0, [0.0]
    for passed_s, (what, *values) in history:
        now += passed_s
        if what == "advance":
            areas.append(limit.advance(values[0], now))
        elif what == "completed":
            limit.completed(areas[len(areas) // 2], *values)
        elif what == "reported":
            limit.reported(*values, now)
        elif what == "follow":
            limit.follow(values[0], now)
        elif what == "bounds":
            within = values[0]
            limit.set_bounds(within, now)
        else:
            limit.tick(values[0], now)
        assert within.min_slots <= limit.limit <= within.max_slots
        assert within.min_slots <= limit.settled <= within.max_slots


@given(st.integers(8, 256), st.lists(st.floats(0.05, 60.0), min_size=20, max_size=200), st.booleans())
def test_no_limit_falls_below_half_of_its_peak_within_minutes(start, service_times, queues) -> None:
    """The throughput of the engine falls with the number of requests, so every trial favours the lower limit."""
    limit, now = ConcurrencyLimit(LimitBounds(start, start), 0.0), 0.0
    limit.set_bounds(LimitBounds(1, 256), now)
    began_at = now
    for service_s in service_times:
        in_flight = limit.limit
        area = limit.advance(in_flight, now)
        now += service_s
        limit.advance(in_flight, now)
        if queues:
            limit.reported(float(in_flight), 0.0, now)
        for _ in range(30):
            limit.completed(area, in_flight, 1.0 / in_flight, service_s)
        limit.tick(in_flight, now)
        if now - began_at <= PEAK_S:
            assert limit.limit >= int(start * MIN_OF_PEAK)


@given(
    st.floats(0.01, 100.0),
    st.lists(st.tuples(st.integers(4, 40), st.floats(0.001, 10.0)), min_size=20, max_size=80),
)
def test_the_growth_of_a_queue_and_of_a_batch_without_loss_is_found(pace, requests) -> None:
    """With concurrency, in a queue only the time grows, and in a perfect batch only the throughput."""
    queue, batch = ThroughputFit(), ThroughputFit()
    for concurrency, work_s in [(4, 1.0), (40, 1.0), *requests]:
        queue.add(concurrency, concurrency, work_s, pace * work_s * concurrency)
        batch.add(concurrency, concurrency, work_s, pace * work_s)
    in_queue, in_batch = queue.growth(8.0, 16.0), batch.growth(8.0, 16.0)

    assert in_queue is not None
    assert abs(in_queue.elasticity) < 0.05
    assert in_batch is not None
    assert abs(in_batch.elasticity - 1.0) < 0.05
