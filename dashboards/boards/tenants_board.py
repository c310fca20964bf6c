"""Tenants and cost: use of each tenant, and the cost of the fleet."""

from __future__ import annotations

from dashboards.boards.board import Board
from dashboards.boards.panels import BLUE, Prose, Query, Row, lines, number
from dashboards.recording_rules import EGRESS_COST, GPU_COST, GPU_SECONDS, TOKENS_IN, TOKENS_OUT

WHO = 'site=~"$region",model=~"$model",tenant=~"$tenant"'

TENANTS = Board(
    "tenants",
    "tenants and cost",
    "Who uses the GPUs, and what the fleet costs.",
    (
        Row(
            "Use",
            (
                lines(
                    Prose(
                        "Who uses the GPUs?",
                        "GPUs in use by tenant: GPU seconds per second, shared among the requests of an endpoint.",
                        "One tenant above its part: set `concurrent` in its quota, or lower its priority.",
                    ),
                    [Query(f"sum by (tenant) ({GPU_SECONDS.record}{{{WHO}}})", "{{tenant}}")],
                    "short",
                    stacked=True,
                ),
                lines(
                    Prose(
                        "Which models use the GPUs?",
                        "GPUs in use by model.",
                        "A model that uses little and has many endpoints: lower `min_endpoints`, or share endpoints.",
                    ),
                    [Query(f"sum by (model) ({GPU_SECONDS.record}{{{WHO}}})", "{{model}}")],
                    "short",
                    stacked=True,
                ),
                lines(
                    Prose(
                        "Who sends long prompts?",
                        "Prompt tokens per second by tenant, as responses state them.",
                        "A step: a new application, or longer contexts. Compare with the first byte's time.",
                    ),
                    [Query(f"sum by (tenant) ({TOKENS_IN.record}{{{WHO}}})", "{{tenant}}")],
                    "short",
                ),
                lines(
                    Prose(
                        "Who receives long answers?",
                        "Generated tokens per second by tenant, as engines report them, else as agents count them.",
                        "Unlike the engines' own counters: see the next panel.",
                    ),
                    [Query(f"sum by (tenant) ({TOKENS_OUT.record}{{{WHO}}})", "{{tenant}}")],
                    "short",
                ),
                lines(
                    Prose(
                        "How many requests have estimated usage?",
                        "Requests per second whose tokens the agent counted, at least in part, by tenant.",
                        "Clients that leave streams have it. Otherwise, the engine reports no usage: see"
                        " `usage` of the route.",
                    ),
                    [
                        Query(
                            f"sum by (tenant) (rate(penstock_agent_estimated_usage_total{{{WHO}}}[5m]))",
                            "{{tenant}}",
                        )
                    ],
                    "reqps",
                ),
                lines(
                    Prose(
                        "How much of the prompts was cached?",
                        "Share of the prompt tokens that a prefix cache had, by tenant.",
                        "Low for a tenant with long system prompts: they differ at their start, such as by a date.",
                    ),
                    [
                        Query(
                            f"sum by (tenant) (rate(penstock_agent_cached_input_tokens_total{{{WHO}}}[5m]))"
                            f" / sum by (tenant) (rate(penstock_agent_input_tokens_total{{{WHO}}}[5m]))",
                            "{{tenant}}",
                        )
                    ],
                    "percentunit",
                ),
            ),
        ),
        Row(
            "Budgets",
            (
                lines(
                    Prose(
                        "Whose budget is nearly used up?",
                        "Used part of budgets, of the 20 fullest of each agent, by tenant and unit.",
                        "At 100 %: requests are refused. `penstock tenant show` says why; see `throttled-tenant.md`.",
                    ),
                    [
                        Query(
                            'max by (tenant, unit) (penstock_agent_budget_used_ratio{site=~"$region",'
                            'tenant=~"$tenant"})',
                            "{{tenant}} {{unit}}",
                        )
                    ],
                    "percentunit",
                ),
                lines(
                    Prose(
                        "Which budgets refuse requests?",
                        "Requests refused per second because a budget is used up, by unit.",
                        "All units rise where no leader divides the budgets: see `budgets_without_leader`.",
                    ),
                    [
                        Query(
                            'sum by (unit) (rate(penstock_agent_budget_refusals_total{site=~"$region"}[5m]))',
                            "{{unit}}",
                        ),
                        Query('max(penstock_agent_budgets_without_leader{site=~"$region"})', "without a leader"),
                    ],
                    "reqps",
                ),
            ),
        ),
        Row(
            "Cost",
            (
                number(
                    Prose(
                        "What do the GPUs cost an hour?",
                        "The price of all endpoints, busy or not, in the currency of the policy.",
                        "Above plan: `penstock capacity` names endpoints that are not needed.",
                    ),
                    f'sum({GPU_COST.record}{{region=~"$region",model=~"$model"}})',
                    "short",
                    [(None, BLUE)],
                    decimals=2,
                    span=12,
                ),
                number(
                    Prose(
                        "What does traffic between regions cost an hour?",
                        "The price of the traffic that the plan sends to other regions, at the measured demand.",
                        "Above plan: capacity is in the wrong place, or limit spillover by policy (SpilloverLimit).",
                    ),
                    f'sum({EGRESS_COST.record}{{origin=~"$region"}}) or vector(0)',
                    "short",
                    [(None, BLUE)],
                    decimals=2,
                    span=12,
                ),
                lines(
                    Prose(
                        "Where is the money spent?",
                        "The price of the GPUs an hour, by region and model.",
                        "A region with a high price and free slots elsewhere: raise `latency_ms_per_cost` in policy, or"
                        " move endpoints.",
                    ),
                    [Query(f'{GPU_COST.record}{{region=~"$region",model=~"$model"}}', "{{region}} {{model}}")],
                    "short",
                    stacked=True,
                ),
                lines(
                    Prose(
                        "How much of the paid GPUs is used?",
                        "Slots in use as a share of all, by region and model: the rest is reserve, or idle.",
                        "Below the target for long beyond the reserve for a loss: fewer endpoints do.",
                    ),
                    [
                        Query(
                            'sum by (region) (penstock_region_in_flight{region=~"$region",model=~"$model"})'
                            ' / sum by (region) (penstock_region_slots{region=~"$region",model=~"$model"})',
                            "{{region}}",
                        )
                    ],
                    "percentunit",
                ),
            ),
        ),
    ),
    variables=("region", "model", "tenant"),
)
