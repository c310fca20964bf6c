"""What the overview and the alerts read: sums over agents and control planes, evaluated once instead of per viewer.

An agent's own metrics carry no region: `site`, the region a scraped process stands in, comes from the scrape
configuration. A metric's own `region` label is always the region that it is about.
"""

from __future__ import annotations

from collections.abc import Callable

from dashboards.rules import Recording
from penstock.accounts.outcome_rules import RULES, Counts, Outcome
from penstock.health.region_health import RegionState

STATE_CODES: dict[RegionState, int] = {
    RegionState.UNKNOWN: 0,
    RegionState.HEALTHY: 1,
    RegionState.RECOVERING: 2,
    RegionState.DRAINING: 3,
    RegionState.DEGRADED: 4,
    RegionState.SUSPECT: 5,
    RegionState.FAILED: 6,
}
"""A number for each state, so that a strip can be coloured and `max` keeps the worst state that any agent reports."""


def _state_code(metric: str) -> str:
    return " or ".join(f'{metric}{{state="{state.value}"}} * {code}' for state, code in STATE_CODES.items())


def _aggregate(operator: str, metric: str, *labels: str) -> Recording:
    return Recording(labels, f"{metric}:{operator}", f"{operator} by ({', '.join(labels)}) ({metric})")


def _rate(metric: str, *labels: str, where: str = "") -> Recording:
    """Return the rate of a counter in the last minute; `where` selects series, in braces."""
    name = f"{metric.removesuffix('_total')}:rate1m"
    return Recording(labels, name, f"sum by ({', '.join(labels)}) (rate({metric}{where}[1m]))")


REQUESTS = _rate("penstock_agent_requests_total", "site", "server", "model", "kind", "outcome")
TTFT = _rate("penstock_agent_ttft_seconds_bucket", "site", "model", "le")
REQUEST_SECONDS = _rate("penstock_agent_request_duration_seconds_bucket", "site", "model", "le")
TTFT_TAIL = Recording(
    ("site", "model"),
    "penstock_agent_ttft_seconds:p99_to_p50",
    f"max by (site, model) (histogram_quantile(0.99, {TTFT.record}))"
    f" / (max by (site, model) (histogram_quantile(0.5, {TTFT.record})) > 0)",
)
WAITS = _rate("penstock_agent_queue_wait_seconds_bucket", "site", "model", "le", where='{outcome="dispatched"}')
REFUSALS = _rate("penstock_agent_refusals_total", "site", "reason")
USE_VARIATION = _aggregate("avg", "penstock_agent_pool_use_variation_ratio", "site", "model")
AWAY = Recording(
    ("site",),
    "penstock_agent_requests_away:ratio_rate1m",
    'sum by (site) (rate(penstock_agent_requests_total{kind=~"spillover|failover|failback",outcome="ok"}[1m]))'
    ' / sum by (site) (rate(penstock_agent_requests_total{kind!="forwarded",outcome="ok"}[1m]))',
)
REGION_STATE = Recording(
    ("region",),
    "penstock_region_state:code",
    f"max by (region) ({_state_code('penstock_region_state')})",
)
PEER_STATE = Recording(
    ("site", "region"),
    "penstock_agent_peer_state:code",
    f"max by (site, region) ({_state_code('penstock_agent_peer_state')})",
)
IN_FLIGHT = _aggregate("max", "penstock_region_in_flight", "region", "model")
SLOTS = _aggregate("max", "penstock_region_slots", "region", "model")
UTILISATION = Recording(
    ("region", "model"),
    "penstock_region_utilisation:ratio",
    "max by (region, model) (penstock_region_in_flight) / (max by (region, model) (penstock_region_slots) > 0)",
)
DEMAND = _aggregate("max", "penstock_demand_requests_per_second", "origin", "model")
HOURLY_DEMAND = Recording(
    ("origin", "model"),
    "penstock_demand_requests_per_second:avg1h",
    f"max by (origin, model) (avg_over_time({DEMAND.record}[1h]))",
)


def _usual(name: str, before: Callable[[int], str]) -> Recording:
    """The mean of the last four weeks, or those that Prometheus keeps; `before` has the series of a week before."""
    weeks = (f'label_replace({before(week)}, "weeks", "{week}", "", "")' for week in range(1, 5))
    return Recording(
        ("origin", "model"),
        f"penstock_demand_requests_per_second:{name}",
        f"avg by (origin, model) ({' or '.join(weeks)})",
    )


def _mean_demand(at: str = "") -> str:
    return f"max by (origin, model) (avg_over_time({DEMAND.record}[5m]{at}))"


USUAL_DEMAND = _usual("usual", lambda week: f"{HOURLY_DEMAND.record} offset {week}w")
"""The mean of the same hour of the week."""
DEMAND_GROWTH = Recording(
    ("origin", "model"),
    "penstock_demand_requests_per_second:growth10m",
    f"{_mean_demand()} / clamp_min({_mean_demand(' offset 10m')}, 0.5)",
)
"""Ratio of the demand to that of ten minutes ago; less than 0.5 requests/s count as 0.5, since they are chance."""
USUAL_GROWTH = _usual(
    "usual_growth10m", lambda week: f"max_over_time({DEMAND_GROWTH.record}[30m] offset {week - 1}w6d23h45m)"
)
"""The mean of the highest growth within a quarter of an hour of the same time of the week."""
SHORTFALL = _aggregate("max", "penstock_capacity_shortfall_slots", "region", "model", "scenario")

GPU_SECONDS = _rate("penstock_agent_gpu_seconds_total", "site", "tenant", "model")
TOKENS_IN = _rate("penstock_agent_input_tokens_total", "site", "tenant", "model")
TOKENS_OUT = _rate("penstock_agent_output_tokens_total", "site", "tenant", "model")
TOKENS_PER_GPU_SECOND = Recording(
    ("site", "model"),
    "penstock_agent_output_tokens:per_gpu_second",
    f"sum by (site, model) ({TOKENS_OUT.record}) / (sum by (site, model) ({GPU_SECONDS.record}) > 0)",
)
GPU_COST = _aggregate("max", "penstock_gpu_hourly_cost", "region", "model")
EGRESS_COST = _aggregate("max", "penstock_egress_hourly_cost", "origin", "server")

AVAILABILITY_TARGET = 0.999
"""Share of the requests of each origin that are answered: the objective behind the alerts on availability."""

_FAILURES = "|".join(outcome for outcome, rules in RULES.items() if rules.objectives is Counts.FAILURE)
_FAILED = f'kind!="forwarded",outcome=~"{_FAILURES}"'
_COUNTED = f'kind!="forwarded",outcome=~"{Outcome.OK}|{Outcome.CACHED}|{_FAILURES}"'


def _failing(window: str) -> Recording:
    """Share (0-1) of the requests of an origin that failed."""
    return Recording(
        ("site",),
        f"penstock_agent_failed_requests:ratio_rate{window}",
        f"(sum by (site) (rate(penstock_agent_requests_total{{{_FAILED}}}[{window}]))"
        f" or sum by (site) (rate(penstock_agent_requests_total{{{_COUNTED}}}[{window}])) * 0)"
        f" / sum by (site) (rate(penstock_agent_requests_total{{{_COUNTED}}}[{window}]))",
    )


FAILING_5M, FAILING_30M, FAILING_1H, FAILING_6H = map(_failing, ("5m", "30m", "1h", "6h"))
AVAILABILITY = Recording(
    ("site",),
    "penstock_agent_answered_requests:ratio_rate5m",
    f'sum by (site) (rate(penstock_agent_requests_total{{kind!="forwarded",outcome=~"ok|cached"}}[5m]))'
    f" / sum by (site) (rate(penstock_agent_requests_total{{{_COUNTED}}}[5m]))",
)

_ANSWERS = "penstock_agent_slo_requests_total"


def _burn(window: str) -> Recording:
    """How many times as fast as the objective allows its answers are late or fail; at 1 it is just met."""
    missed = f'sum by (model, measure) (rate({_ANSWERS}{{met="false"}}[{window}]))'
    return Recording(
        ("model", "measure"),
        f"penstock_slo_burn:rate{window}",
        f"{missed} / sum by (model, measure) (rate({_ANSWERS}[{window}]))"
        " / (1 - max by (model, measure) (penstock_agent_slo_target_ratio))",
    )


BURN_5M, BURN_30M, BURN_1H, BURN_6H = map(_burn, ("5m", "30m", "1h", "6h"))
ATTAINED = Recording(
    ("site", "model", "measure"),
    "penstock_slo_attained:ratio_rate5m",
    f'sum by (site, model, measure) (rate({_ANSWERS}{{met="true"}}[5m]))'
    f" / sum by (site, model, measure) (rate({_ANSWERS}[5m]))",
)

RECORDINGS = (
    REQUESTS,
    TTFT,
    TTFT_TAIL,
    REQUEST_SECONDS,
    WAITS,
    USE_VARIATION,
    REFUSALS,
    AWAY,
    REGION_STATE,
    PEER_STATE,
    IN_FLIGHT,
    SLOTS,
    UTILISATION,
    DEMAND,
    HOURLY_DEMAND,
    USUAL_DEMAND,
    DEMAND_GROWTH,
    USUAL_GROWTH,
    SHORTFALL,
    BURN_5M,
    BURN_30M,
    BURN_1H,
    BURN_6H,
    ATTAINED,
    GPU_SECONDS,
    TOKENS_IN,
    TOKENS_OUT,
    TOKENS_PER_GPU_SECOND,
    GPU_COST,
    EGRESS_COST,
    FAILING_5M,
    FAILING_30M,
    FAILING_1H,
    FAILING_6H,
    AVAILABILITY,
)
