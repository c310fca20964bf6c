"""The overview's upper half: is every region well, who asks for what, who serves whom, and is there room."""

from __future__ import annotations

from dashboards.panels import (
    BLUE,
    GREEN,
    GREY,
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
    rows_of,
    states,
)
from dashboards.recording_rules import (
    AWAY,
    DEMAND,
    IN_FLIGHT,
    PEER_STATE,
    REGION_STATE,
    REQUESTS,
    SHORTFALL,
    SLOTS,
    STATE_CODES,
    UTILISATION,
)
from penstock.health.region_health import RegionState

STATE_COLOURS = {
    RegionState.UNKNOWN: GREY,
    RegionState.HEALTHY: GREEN,
    RegionState.RECOVERING: BLUE,
    RegionState.DRAINING: YELLOW,
    RegionState.DEGRADED: YELLOW,
    RegionState.SUSPECT: ORANGE,
    RegionState.FAILED: RED,
}
STATE_WORDS = {code: (state.value, STATE_COLOURS[state]) for state, code in STATE_CODES.items()}

FROM_CLIENTS = 'site=~"$region",model=~"$model",kind!="forwarded"'
"""Requests as their origin counts them, so that a forwarded one is counted once."""

HEALTH = Row(
    "Is it well?",
    (
        number(
            Prose(
                "Residency refusals at server",
                "Requests that reached a region their residency class forbids, over the time shown. Always 0.",
                "Anything else: follow the runbook of PenstockForwardedResidencyRefused at once.",
            ),
            "sum(increase(penstock_agent_forwarded_residency_refusals_total[$__range]))",
            "short",
            [(None, GREEN), (0.001, RED)],
        ),
        number(
            Prose(
                "Regions not healthy",
                "Regions that the leader holds to be neither healthy nor unknown.",
                "See the strip below for which, and the runbook of PenstockRegionFailed.",
            ),
            f"count({REGION_STATE.record} > {STATE_CODES[RegionState.HEALTHY]}) or vector(0)",
            "short",
            [(None, GREEN), (1, ORANGE), (2, RED)],
        ),
        number(
            Prose(
                "Leaders",
                "Control planes that hold leadership. Exactly 1, but for seconds when one takes over.",
                "0: nothing re-plans, though serving goes on; see PenstockNoLeader. 2: see PenstockSeveralLeaders.",
            ),
            "sum(penstock_leader) or vector(0)",
            "short",
            [(None, RED), (1, GREEN), (2, ORANGE)],
        ),
        number(
            Prose(
                "Requests",
                "Requests a second that ended, as their origins count them.",
                "A sudden fall with healthy regions means that clients do not reach the agents: look at DNS and edges.",
            ),
            f"sum({REQUESTS.record}{{{FROM_CLIENTS}}})",
            "reqps",
            [(None, BLUE)],
            decimals=1,
        ),
        number(
            Prose(
                "Answered in full",
                "Share of admitted requests that ended well; those that clients cancelled or got wrong are left out.",
                "Below 99.9 %: the row on refusals and errors says whether engines fail or Penstock refuses.",
            ),
            f'sum({REQUESTS.record}{{{FROM_CLIENTS},outcome="ok"}})'
            f' / sum({REQUESTS.record}{{{FROM_CLIENTS},outcome!~"cancelled|client_error"}})',
            "percentunit",
            [(None, RED), (0.99, ORANGE), (0.999, GREEN)],
            decimals=2,
        ),
        number(
            Prose(
                "Served away from home",
                "Share of answered requests that another region than the nearest permitted one served.",
                "Some is what Penstock is for. Above a quarter for long: capacity is in the wrong place.",
            ),
            f'sum({REQUESTS.record}{{{FROM_CLIENTS},kind!="home",outcome="ok"}})'
            f' / sum({REQUESTS.record}{{{FROM_CLIENTS},outcome="ok"}})',
            "percentunit",
            [(None, GREEN), (0.25, YELLOW), (0.5, ORANGE)],
            decimals=1,
        ),
        states(
            Prose(
                "Regions",
                "The state of each region as the leader holds it, by its reports and what its peers see.",
                "Failed, degraded: runbooks of PenstockRegionFailed and PenstockRegionDegraded. Suspect again and "
                "again: its network is unsteady; drain it.",
            ),
            Query(f'{REGION_STATE.record}{{region=~"$region"}}', "{{region}}"),
            STATE_WORDS,
        ),
        states(
            Prose(
                "Peers",
                "What each region's agents believe of each other region, by their own probes: observer to observed.",
                "One observer alone in its belief: the path between the two is at fault, not the region.",
            ),
            Query(f'{PEER_STATE.record}{{site=~"$region"}}', "{{site}} → {{region}}"),
            STATE_WORDS,
        ),
    ),
)

DEMAND_AND_ARCS = Row(
    "Demand, and who serves whom",
    (
        lines(
            Prose(
                "Demand by origin",
                "Requests a second that clients offered at each region, before any routing.",
                "A surge here and not elsewhere explains spillover. A fall to nothing: that region's entry is down.",
            ),
            [Query(f'sum by (origin) ({DEMAND.record}{{origin=~"$region",model=~"$model"}})', "{{origin}}")],
            "reqps",
            stacked=True,
        ),
        matrix(
            Prose(
                "Who served whom",
                "Requests a second answered in the last minute: a row an origin, a column a serving region.",
                "Off the diagonal is spillover, failover or failback; the row on leaving home says which.",
            ),
            f'sum by (site, server) ({REQUESTS.record}{{{FROM_CLIENTS},outcome="ok"}})',
            "site",
            "server",
            "reqps",
        ),
        rows_of(
            Prose(
                "Planned arcs",
                "The plan in force: for each origin, model and residency class, the share each region serves.",
                "An arc to a region outside its class is a defect: freeze the plan and report it. No row for a class: "
                "the planner has not seen it yet and agents go by its fallbacks.",
            ),
            'max by (origin, model, residency, server) (penstock_arc_share{origin=~"$region",model=~"$model"}) > 0',
            {"origin": "origin", "model": "model", "residency": "residency class", "server": "served by"},
            "share",
            "percentunit",
            gauge=True,
            span=24,
        ),
    ),
)

CAPACITY = Row(
    "Capacity",
    (
        lines(
            Prose(
                "In flight and slots",
                "Requests on each region's endpoints, and dashed what its ready endpoints can run at once.",
                "In flight at the slots: full. Slots falling: endpoints go away; see the next panels.",
            ),
            [
                Query(f'sum by (region) ({IN_FLIGHT.record}{{region=~"$region",model=~"$model"}})', "{{region}}"),
                Query(
                    f'sum by (region) ({SLOTS.record}{{region=~"$region",model=~"$model"}})',
                    "{{region}} slots",
                    dashed=True,
                ),
            ],
            "short",
        ),
        bars(
            Prose(
                "Utilisation",
                "In flight as a share of slots, by region and model, now.",
                "Past the target the plan spills. Above 0.95 everywhere a class may go: add capacity or shed.",
            ),
            Query(f'{UTILISATION.record}{{region=~"$region",model=~"$model"}}', "{{region}} {{model}}"),
            [(None, GREEN), (0.8, YELLOW), (0.95, RED)],
        ),
        bars(
            Prose(
                "Endpoints ready",
                "Share of each region's configured endpoints that may take a request.",
                "Below 1: the agents' /status names the endpoints that are away and why.",
            ),
            Query(
                'avg by (site) (max by (site, endpoint) (penstock_agent_endpoint_ready{site=~"$region"}))',
                "{{site}}",
            ),
            [(None, RED), (0.5, ORANGE), (1, GREEN)],
        ),
        lines(
            Prose(
                "Capacity shortfall",
                "Slots that a model lacks, by region where they could be added: now, to serve within the utilisation "
                "target, and (dashed) after the worst loss of one region.",
                "Input for an autoscaler: add that many slots in any one region shown for the model, the current "
                "shortfall first. If none of them can grow, permit another region.",
            ),
            [
                Query(
                    f'{SHORTFALL.record}{{region=~"$region",model=~"$model",scenario="current"}} > 0',
                    "{{region}} {{model}}",
                ),
                Query(
                    f'{SHORTFALL.record}{{region=~"$region",model=~"$model",scenario="region_loss"}} > 0',
                    "{{region}} {{model}} after a region loss",
                    dashed=True,
                ),
            ],
            "short",
            span=24,
        ),
    ),
)


LEAVING_HOME = Row(
    "Leaving home",
    (
        lines(
            Prose(
                "Spillover, failover, failback",
                "Requests a second answered away from home, by why.",
                "Spillover ends with the surge; failover with the failure, by way of failback. One that stays on "
                "with every region healthy and half empty: look at the planned arcs and at frozen overrides.",
            ),
            [
                Query(
                    f'sum by (kind) ({REQUESTS.record}{{{FROM_CLIENTS},kind!="home",outcome="ok"}})',
                    "{{kind}}",
                )
            ],
            "reqps",
            stacked=True,
            span=8,
        ),
        lines(
            Prose(
                "Share served away, by origin",
                "Share of each origin's answered requests that another region served.",
                "1 for an origin that has failed or drains. Anything near 1 for a healthy one: it lacks capacity.",
            ),
            [Query(f'{AWAY.record}{{site=~"$region"}}', "{{site}}")],
            "percentunit",
            span=8,
        ),
        lines(
            Prose(
                "Retries",
                "Requests that had not started and were tried elsewhere, by reason.",
                "`peer_refused` rising: origins act on old news, so look at config age. `connect_failed`: an endpoint "
                "or peer has just gone.",
            ),
            [
                Query(
                    'sum by (reason) (rate(penstock_agent_retries_total{site=~"$region"}[1m])) > 0',
                    "{{reason}}",
                )
            ],
            "reqps",
            span=8,
        ),
        lines(
            Prose(
                "Failed streams",
                "Failed streams of models with `continue_streams`, by outcome.",
                "`resumed`: another endpoint finished the answer. `over_budget`: more streams failed at once than the "
                "retry budget permits. `no_target`: no permitted vLLM or SGLang had room.",
            ),
            [
                Query(
                    'sum by (outcome) (rate(penstock_agent_stream_continuations_total{site=~"$region"}[1m])) > 0',
                    "{{outcome}}",
                )
            ],
            "reqps",
            span=8,
        ),
    ),
)

ROWS = (HEALTH, DEMAND_AND_ARCS, CAPACITY, LEAVING_HOME)
