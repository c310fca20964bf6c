"""The control plane: leadership, plans, reports and the store."""

from __future__ import annotations

from dashboards.boards.board import Board
from dashboards.boards.panels import GREEN, RED, Prose, Query, Row, lines, states
from dashboards.boards.region_states import YES_NO, quantiles

CONTROL_PLANE = Board(
    "control-plane",
    "control plane",
    "Whether plans are made from fresh reports and reach the agents.",
    (
        Row(
            "Leadership and plans",
            (
                states(
                    Prose(
                        "Which control plane leads?",
                        "Leadership of each control plane over time.",
                        "Many changes: etcd is slow or leases expire. Check etcd's disk latency.",
                    ),
                    Query("max by (instance) (penstock_leader)", "{{instance}}"),
                    YES_NO,
                    span=8,
                ),
                lines(
                    Prose(
                        "How often does the leader change?",
                        "Changes of the leader in the last hour.",
                        "More than restarts explain: runbook of PenstockLeaderFlapping.",
                    ),
                    [Query("sum(increase(penstock_leader_changes_total[1h]))", "changes")],
                    "short",
                    span=8,
                ),
                lines(
                    Prose(
                        "Do agents follow the plan?",
                        "Generation of the plan in force at agents, newest and oldest, and dashed the leader's epoch.",
                        "Oldest far behind newest: some agents receive no plans; their config age names them.",
                    ),
                    [
                        Query("max(penstock_agent_plan_generation)", "newest at agents"),
                        Query("min(penstock_agent_plan_generation)", "oldest at agents"),
                        Query("max(penstock_fencing_epoch)", "epoch of the leader", dashed=True),
                    ],
                    "none",
                    span=8,
                ),
                quantiles(
                    Prose(
                        "How long does a plan take?",
                        "Seconds to compute a plan: median, and dashed the slowest in a hundred.",
                        "Near 0.5 s, the interval of plans: too many classes, or a slow machine. More CPU for the"
                        " leader.",
                    ),
                    "rate(penstock_planning_duration_seconds_bucket[1m])",
                    by="",
                    span=8,
                ),
                lines(
                    Prose(
                        "What becomes of plans?",
                        "Attempts per second to publish a plan, by outcome.",
                        "Only `published` and `unchanged` are good; runbook of PenstockPlanNotPublished.",
                    ),
                    [Query("sum by (outcome) (rate(penstock_plan_publishes_total[1m]))", "{{outcome}}")],
                    "ops",
                    stacked=True,
                    span=8,
                ),
            ),
        ),
        Row(
            "Reports",
            (
                lines(
                    Prose(
                        "How old is the snapshot?",
                        "Seconds since the newest report of each region. About 1.",
                        "One region: its agents, or their way to the leader. All: the leader receives no reports.",
                    ),
                    [Query('max by (region) (penstock_report_age_seconds{region=~"$region"})', "{{region}}")],
                    "s",
                    span=8,
                    thresholds=[(None, GREEN), (10, RED)],
                ),
                lines(
                    Prose(
                        "Are reports accepted?",
                        "Reports per second by outcome.",
                        "`bad_signature`: a certificate of another fleet, expired or revoked, or an attack. `stale`:"
                        " two agents have one name. `not_leader` for seconds after a change of the leader is normal.",
                    ),
                    [Query("sum by (outcome) (rate(penstock_reports_total[1m]))", "{{outcome}}")],
                    "reqps",
                    stacked=True,
                    span=8,
                ),
                lines(
                    Prose(
                        "Does the intake of reports keep up?",
                        "Reports that are being received, and dashed the seconds that the slowest in a hundred takes.",
                        "Rising together: the event loop of the leader is busy. More CPU, or fewer agents per region.",
                    ),
                    [
                        Query("max by (instance) (penstock_reports_in_progress)", "{{instance}}"),
                        Query(
                            "histogram_quantile(0.99, sum by (le)"
                            " (rate(penstock_report_intake_duration_seconds_bucket[1m])))",
                            "p99 seconds",
                            dashed=True,
                        ),
                    ],
                    "short",
                    span=8,
                ),
            ),
        ),
        Row(
            "Processes",
            (
                quantiles(
                    Prose(
                        "Does the event loop keep up?",
                        "Seconds by which control planes run a timer late: while late, they answer nothing.",
                        "Above 0.05 s again and again: less CPU than the process needs. Seconds: see its log.",
                    ),
                    "rate(penstock_event_loop_delay_seconds_bucket[5m])",
                    by="instance",
                    span=24,
                ),
            ),
        ),
        Row(
            "Store",
            (
                quantiles(
                    Prose(
                        "How fast is the store?",
                        "Seconds of a call to etcd, by operation.",
                        "`keep_alive` above 1 s: leases expire and the leader changes. Check etcd's disk and network.",
                    ),
                    "rate(penstock_store_call_duration_seconds_bucket[5m])",
                    by="operation",
                    span=12,
                ),
                lines(
                    Prose(
                        "Does the store fail?",
                        "Calls to etcd per second by whether they succeed, and dashed watches that began again.",
                        "Failed calls at one control plane: its way to etcd. At all: etcd has no quorum.",
                    ),
                    [
                        Query("sum by (ok) (rate(penstock_store_call_duration_seconds_count[5m]))", "ok: {{ok}}"),
                        Query("sum(rate(penstock_watch_restarts_total[5m]))", "watch restarts", dashed=True),
                    ],
                    "ops",
                    span=12,
                ),
            ),
        ),
    ),
)
