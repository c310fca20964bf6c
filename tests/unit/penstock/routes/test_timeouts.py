"""Time limits of a request: of the model, of the route, of the agent."""

from penstock.routes.route import Timeouts
from penstock.routes.timeouts import NO_TIMEOUTS, TimeLimits, time_limits

AGENT = TimeLimits(connect_s=None, first_byte_s=300, stream_first_byte_s=300, idle_s=60, total_s=600)


def test_each_limit_is_resolved_on_its_own():
    model = Timeouts(first_byte_s=10, total_s=0.5)
    route = Timeouts(connect_s=2, first_byte_s=30, stream_first_byte_s=60, idle_s=5)
    assert time_limits(model, route, AGENT) == TimeLimits(2, 10, 60, 5, 0.5)


def test_the_agents_limits_apply_where_nothing_else_is_set():
    assert time_limits(NO_TIMEOUTS, NO_TIMEOUTS, AGENT) == AGENT


def test_a_streamed_response_has_its_own_limit_of_the_first_byte():
    limits = AGENT._replace(stream_first_byte_s=60)
    assert limits.first_byte_limit_s(streaming=True) == 60
    assert limits.first_byte_limit_s(streaming=False) == 300
