"""The agents themselves: decisions, configuration, shared load, and what they hold."""

from __future__ import annotations

from dashboards.boards.board import Board
from dashboards.boards.panels import GREEN, RED, Prose, Query, Row, lines, states
from dashboards.boards.region_states import UP_DOWN, quantiles

AGENTS = Board(
    "agents",
    "agent internals",
    "Whether the agents decide fast and from fresh data.",
    (
        Row(
            "Decisions",
            (
                quantiles(
                    Prose(
                        "How long does a decision take?",
                        "Seconds from a parsed request to its target or its place in the queue, of one request in 32.",
                        "Above a millisecond: the machine is overloaded, or a region has thousands of endpoints.",
                    ),
                    'rate(penstock_agent_decision_seconds_bucket{site=~"$region"}[1m])',
                    span=12,
                ),
                lines(
                    Prose(
                        "How many requests does each agent hold?",
                        "Requests in progress by region and agent, those of other regions included.",
                        "Not 0 after traffic stops: a leak. Keep the output of /status and report a defect.",
                    ),
                    [
                        Query(
                            'sum by (site, agent) (penstock_agent_requests_in_flight{site=~"$region",model=~"$model"})',
                            "{{site}} {{agent}}",
                        )
                    ],
                    "short",
                    span=12,
                ),
            ),
        ),
        Row(
            "Data",
            (
                lines(
                    Prose(
                        "How old is the configuration?",
                        "Seconds since etcd confirmed the policy and plan of each agent.",
                        "All: etcd is away; serving continues. One region: its way to etcd. Runbook of"
                        " PenstockConfigOld.",
                    ),
                    [
                        Query(
                            'max by (site, agent) (penstock_agent_config_age_seconds{site=~"$region"})',
                            "{{site}} {{agent}}",
                        )
                    ],
                    "s",
                    span=8,
                    thresholds=[(None, GREEN), (120, RED)],
                ),
                states(
                    Prose(
                        "Is the shared load reachable?",
                        "Whether each agent reaches the Redis of its region.",
                        "Down: agents use their own counts, with longer tails. Runbook of PenstockSharedLoadDown.",
                    ),
                    Query(
                        'min by (site, agent) (penstock_agent_shared_load_up{site=~"$region"})', "{{site}} {{agent}}"
                    ),
                    UP_DOWN,
                    span=8,
                ),
                lines(
                    Prose(
                        "How old is the shared load?",
                        "Seconds since each agent read the shared load.",
                        "Growing while Redis is up: Redis or the agent's event loop is overloaded.",
                    ),
                    [
                        Query(
                            'max by (site, agent) (penstock_agent_shared_load_age_seconds{site=~"$region"})',
                            "{{site}} {{agent}}",
                        )
                    ],
                    "s",
                    span=8,
                ),
                lines(
                    Prose(
                        "Are access log lines dropped?",
                        "Lines per second that could not be written.",
                        "Above 0: the disk is full or too slow. Requests are not affected.",
                    ),
                    [
                        Query(
                            "sum by (site, agent)"
                            ' (rate(penstock_agent_access_log_lines_dropped_total{site=~"$region"}[5m]))',
                            "{{site}} {{agent}}",
                        )
                    ],
                    "ops",
                    span=12,
                ),
                lines(
                    Prose(
                        "Which plan is in force?",
                        "Generation of the plan at each agent.",
                        "One line below the others: that agent receives no plans, or rejects them (`penstock status`).",
                    ),
                    [
                        Query(
                            'max by (site, agent) (penstock_agent_plan_generation{site=~"$region"})',
                            "{{site}} {{agent}}",
                        )
                    ],
                    "none",
                    span=12,
                ),
            ),
        ),
        Row(
            "Connections",
            (
                lines(
                    Prose(
                        "How many connections to servers are open?",
                        "Connections to engines, peer agents and control planes, with a request (active), without"
                        " (idle), and those for which requests wait (connecting).",
                        "Active ones grow without more requests: engines are slow; see the pools and endpoints."
                        " Connecting ones stay: the endpoints' times to a connection show which.",
                    ),
                    [
                        Query(
                            'sum by (site, pool, state) (penstock_agent_upstream_connections{site=~"$region"})',
                            "{{site}} {{pool}} {{state}}",
                        )
                    ],
                    "short",
                    span=8,
                ),
                lines(
                    Prose(
                        "How often are connections reused?",
                        "Part of the requests and probes that found an idle connection, by kind of server.",
                        "Near 0: a server or a load balancer before it closes connections after each response.",
                    ),
                    [
                        Query(
                            "sum by (site, pool)"
                            ' (rate(penstock_agent_upstream_connections_reused_total{site=~"$region"}[5m]))'
                            " / (sum by (site, pool)"
                            ' (rate(penstock_agent_upstream_connections_reused_total{site=~"$region"}[5m]))'
                            " + sum by (site, pool)"
                            ' (rate(penstock_agent_upstream_connections_opened_total{site=~"$region"}[5m])))',
                            "{{site}} {{pool}}",
                        )
                    ],
                    "percentunit",
                    span=8,
                ),
                lines(
                    Prose(
                        "Which connections cannot be opened?",
                        "Failed and opened (dashed) connections per second, by kind of server.",
                        "Endpoints: `penstock endpoints --state down` has the reason. Peers: the network between"
                        " regions.",
                    ),
                    [
                        Query(
                            "sum by (site, pool)"
                            ' (rate(penstock_agent_upstream_connections_failed_total{site=~"$region"}[5m]))',
                            "{{site}} {{pool}} failed",
                        ),
                        Query(
                            "sum by (site, pool)"
                            ' (rate(penstock_agent_upstream_connections_opened_total{site=~"$region"}[5m]))',
                            "{{site}} {{pool}} opened",
                            dashed=True,
                        ),
                    ],
                    "ops",
                    span=8,
                ),
                lines(
                    Prose(
                        "How many clients are connected?",
                        "Open connections of each listener.",
                        "Near `max_connections`: more agents, or clients that reuse too few connections.",
                    ),
                    [
                        Query(
                            'sum by (site, agent, listener) (penstock_agent_client_connections{site=~"$region"})',
                            "{{site}} {{agent}} {{listener}}",
                        )
                    ],
                    "short",
                    span=12,
                ),
                lines(
                    Prose(
                        "How many connections do clients open?",
                        "Accepted connections per second, and dashed those above the limits.",
                        "Refused ones: raise `max_connections`, or one network opens too many"
                        " (`max_connections_per_address`, rates).",
                    ),
                    [
                        Query(
                            "sum by (site, listener)"
                            ' (rate(penstock_agent_client_connections_accepted_total{site=~"$region"}[5m]))',
                            "{{site}} {{listener}}",
                        ),
                        Query(
                            "sum by (site, listener)"
                            ' (rate(penstock_agent_client_connections_refused_total{site=~"$region"}[5m]))',
                            "{{site}} {{listener}} refused",
                            dashed=True,
                        ),
                    ],
                    "ops",
                    span=12,
                ),
            ),
        ),
        Row(
            "Processes",
            (
                quantiles(
                    Prose(
                        "Does each agent's event loop keep up?",
                        "Seconds by which agents run a timer late: while late, they answer nothing.",
                        "Above 0.05 s again and again: less CPU than the process needs. Seconds: see its log.",
                    ),
                    'rate(penstock_agent_event_loop_delay_seconds_bucket{site=~"$region"}[5m])',
                    by="instance",
                    span=24,
                ),
            ),
        ),
    ),
)
