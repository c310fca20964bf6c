"""Residency and policy: whether data stays where it may be, and which policy is in force where."""

from __future__ import annotations

from dashboards.boards.board import Board
from dashboards.boards.panels import BLUE, GREEN, ORANGE, RED, Prose, Query, Row, lines, number, rows_of
from dashboards.recording_rules import REFUSALS
from penstock.routing.reasons import Reason

RESIDENCY_REASONS = "|".join(
    (
        Reason.RESIDENCY_DENIED,
        Reason.RESIDENCY_NOT_ALLOWED,
        Reason.LOCATION_UNKNOWN,
        Reason.NO_PERMITTED_REGION,
        Reason.MISDIRECTED,
    )
)

RESIDENCY = Board(
    "residency",
    "residency and policy",
    "Whether data stays where it may be, and which policy is in force.",
    (
        Row(
            "Residency",
            (
                number(
                    Prose(
                        "Did a forbidden region receive requests?",
                        "Forwarded requests that the serving region refused because of residency, in the time shown."
                        " Always 0.",
                        "Anything else: runbook of PenstockForwardedResidencyRefused, at once.",
                    ),
                    "sum(increase(penstock_agent_forwarded_residency_refusals_total[$__range]))",
                    "short",
                    [(None, GREEN), (0.001, RED)],
                    span=8,
                ),
                number(
                    Prose(
                        "How many open requests did a new policy end?",
                        "Queued requests, streams, uploads and tunnels that a new policy no longer permits, in the time"
                        " shown.",
                        "After an intended change: inform the tenants. Otherwise `penstock rollout rollback`.",
                    ),
                    "sum(increase(penstock_agent_revocations_total[$__range])) or vector(0)",
                    "short",
                    [(None, BLUE)],
                    span=8,
                ),
                number(
                    Prose(
                        "How many regions reject the newest policy or plan?",
                        "Agents that keep an older policy or plan, over all regions.",
                        "Runbook of PenstockPlanRefused; `penstock status` names each agent and its reason.",
                    ),
                    "sum(penstock_agents_rejecting_config) or vector(0)",
                    "short",
                    [(None, GREEN), (1, ORANGE)],
                    span=8,
                ),
                lines(
                    Prose(
                        "Which requests does residency refuse?",
                        "Requests per second that origins refuse because of residency rules or an unknown location, by"
                        " reason.",
                        "After a change of policy: intended? `location_unknown` rising: the GeoIP database or the"
                        " location header of a proxy is missing.",
                    ),
                    [
                        Query(
                            f"sum by (site, reason) ({REFUSALS.record}"
                            f'{{site=~"$region",reason=~"{RESIDENCY_REASONS}"}})',
                            "{{site}} {{reason}}",
                        )
                    ],
                    "reqps",
                    span=12,
                ),
                rows_of(
                    Prose(
                        "Where does the plan send each class?",
                        "The plan in force: for each origin, model and residency class, the share that each region"
                        " serves.",
                        "An arc to a region outside its class is a defect: freeze the plan and report it.",
                    ),
                    'max by (origin, model, residency, server) (penstock_arc_share{origin=~"$region",model=~"$model"})',
                    {"origin": "origin", "model": "model", "residency": "residency class", "server": "served by"},
                    "share",
                    "percentunit",
                    gauge=True,
                    span=12,
                ),
            ),
        ),
        Row(
            "Policy",
            (
                rows_of(
                    Prose(
                        "Which policy is in force?",
                        "The digest of the policy at each control plane: all equal, except for seconds after a change.",
                        "Different for longer: one cannot read the bundle, or rejects it; its log names file and"
                        " field.",
                    ),
                    "max by (instance, digest) (penstock_policy_info)",
                    {"instance": "control plane", "digest": "policy digest"},
                    "in force",
                    "none",
                ),
                lines(
                    Prose(
                        "In which phase is the rollout?",
                        "The phase of the newest rollout: the line at 1.",
                        "`shadow_held`, `canary_held`: runbook of PenstockRolloutHeld. `rolled_back`:"
                        " PenstockPolicyRolledBack.",
                    ),
                    [Query("max by (phase) (penstock_rollout_phase)", "{{phase}}")],
                    "none",
                ),
                lines(
                    Prose(
                        "How long do rollouts of versions wait?",
                        "Seconds for which each has waited for more than the least time of its phase; 0 in `done` and"
                        " `rolled_back`.",
                        "Growing: `penstock rollout show` states for what. Runbook of PenstockModelRolloutWaits.",
                    ),
                    [
                        Query(
                            "max by (name, to, phase) (penstock_model_rollout_wait_seconds)",
                            "{{name}} {{to}} {{phase}}",
                        )
                    ],
                    "s",
                ),
            ),
        ),
    ),
)
