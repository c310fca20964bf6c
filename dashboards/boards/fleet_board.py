"""The fleet at a glance: health, demand, and the regions that serve it."""

from __future__ import annotations

from dashboards.boards.board import Board
from dashboards.boards.panels import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    YELLOW,
    Prose,
    Query,
    Row,
    bars,
    lines,
    matrix,
    number,
    states,
)
from dashboards.boards.region_states import FROM_CLIENTS, STATE_WORDS, quantiles
from dashboards.recording_rules import AVAILABILITY, DEMAND, REGION_STATE, REQUESTS, STATE_CODES, TTFT, UTILISATION
from penstock.health.region_health import RegionState

FLEET = Board(
    "fleet",
    "fleet",
    "Start here: whether clients are served, and which region is the exception.",
    (
        Row(
            "Health",
            (
                number(
                    Prose(
                        "Are requests answered?",
                        "Share of admitted requests that ended well; those that clients cancelled or got wrong are left"
                        " out.",
                        "Below 99.9 %: panel `How do requests fail?`, then the dashboard of the region.",
                    ),
                    f'sum({REQUESTS.record}{{{FROM_CLIENTS},outcome="ok"}})'
                    f' / sum({REQUESTS.record}{{{FROM_CLIENTS},outcome!~"client_left|client_error|expired|revoked"}})',
                    "percentunit",
                    [(None, RED), (0.99, ORANGE), (0.999, GREEN)],
                    decimals=2,
                ),
                number(
                    Prose(
                        "How many requests are there?",
                        "Requests per second that ended, as their origins count them.",
                        "A sudden fall with healthy regions: clients do not reach the agents. Check DNS and edges.",
                    ),
                    f"sum({REQUESTS.record}{{{FROM_CLIENTS}}})",
                    "reqps",
                    [(None, BLUE)],
                    decimals=1,
                ),
                number(
                    Prose(
                        "How many regions are not healthy?",
                        "Regions whose state at the leader is neither healthy nor unknown.",
                        "The strip below names them; the runbook of PenstockRegionFailed has the steps.",
                    ),
                    f"count({REGION_STATE.record} > {STATE_CODES[RegionState.HEALTHY]}) or vector(0)",
                    "short",
                    [(None, GREEN), (1, ORANGE), (2, RED)],
                ),
                number(
                    Prose(
                        "Is there one leader?",
                        "Control planes that lead. Exactly 1, except for seconds during a takeover.",
                        "0: runbook of PenstockNoLeader; serving continues. 2: runbook of PenstockSeveralLeaders.",
                    ),
                    "sum(penstock_leader) or vector(0)",
                    "short",
                    [(None, RED), (1, GREEN), (2, ORANGE)],
                ),
                number(
                    Prose(
                        "Was residency breached?",
                        "Requests that reached a region which their residency class forbids, in the time shown. Always"
                        " 0.",
                        "Anything else: follow the runbook of PenstockForwardedResidencyRefused at once.",
                    ),
                    "sum(increase(penstock_agent_forwarded_residency_refusals_total[$__range]))",
                    "short",
                    [(None, GREEN), (0.001, RED)],
                ),
                number(
                    Prose(
                        "How much is served away from home?",
                        "Share of answered requests that another region than the nearest permitted one served.",
                        "Above a quarter for long: capacity is in the wrong place. See the dashboard on spillover.",
                    ),
                    f'sum({REQUESTS.record}{{{FROM_CLIENTS},kind!="home",outcome="ok"}})'
                    f' / sum({REQUESTS.record}{{{FROM_CLIENTS},outcome="ok"}})',
                    "percentunit",
                    [(None, GREEN), (0.25, YELLOW), (0.5, ORANGE)],
                    decimals=1,
                ),
                states(
                    Prose(
                        "In which state is each region?",
                        "The state of each region at the leader, from its reports and the probes of its peers.",
                        "Failed or degraded: runbooks of PenstockRegionFailed and PenstockRegionDegraded. Suspect again"
                        " and again: its network is unsteady; drain it.",
                    ),
                    Query(f'{REGION_STATE.record}{{region=~"$region"}}', "{{region}}"),
                    STATE_WORDS,
                ),
                lines(
                    Prose(
                        "How available is each region to its clients?",
                        "Share of the requests of each origin that were answered, over five minutes: refused ones,"
                        " errors of engines and timeouts are missing.",
                        "One origin: its dashboard of the region. All: engines of one model, or policy.",
                    ),
                    [Query(f'{AVAILABILITY.record}{{site=~"$region"}}', "{{site}}")],
                    "percentunit",
                ),
            ),
        ),
        Row(
            "Load",
            (
                lines(
                    Prose(
                        "Where does demand come from?",
                        "Requests per second that clients offer in each region, before routing.",
                        "A surge in one region explains spillover. A fall to nothing: its entry is down.",
                    ),
                    [Query(f'sum by (origin) ({DEMAND.record}{{origin=~"$region",model=~"$model"}})', "{{origin}}")],
                    "reqps",
                    stacked=True,
                ),
                matrix(
                    Prose(
                        "Which region serves which?",
                        "Requests per second answered in the last minute: a row an origin, a column a serving region.",
                        "Off the diagonal is spillover, failover or failback: see the dashboard on spillover.",
                    ),
                    f'sum by (site, server) ({REQUESTS.record}{{{FROM_CLIENTS},outcome="ok"}})',
                    "site",
                    "server",
                    "reqps",
                ),
                bars(
                    Prose(
                        "How full is each region?",
                        "Requests in flight as a share of slots, by region and model, now.",
                        "Above the target the plan spills. Above 95 % everywhere: add capacity (`penstock capacity`).",
                    ),
                    Query(f'{UTILISATION.record}{{region=~"$region",model=~"$model"}}', "{{region}} {{model}}"),
                    [(None, GREEN), (0.8, YELLOW), (0.95, RED)],
                ),
                bars(
                    Prose(
                        "How many endpoints are ready?",
                        "Share of each region's endpoints that accept requests.",
                        "Below 1: `penstock endpoints --region` names the others and their state.",
                    ),
                    Query(
                        'avg by (site) (max by (site, endpoint) (penstock_agent_endpoint_ready{site=~"$region"}))',
                        "{{site}}",
                    ),
                    [(None, RED), (0.5, ORANGE), (1, GREEN)],
                ),
                quantiles(
                    Prose(
                        "How long until responses begin?",
                        "Seconds from a client's request to the first byte of the response body, by origin: median, and"
                        " dashed the slowest in a hundred. Queue, round trip and spillover are included.",
                        "p99 up and p50 not: some endpoints are slow or full. Both: the region is saturated, or served"
                        " from afar.",
                    ),
                    TTFT,
                    where='site=~"$region",model=~"$model"',
                ),
            ),
        ),
    ),
)
