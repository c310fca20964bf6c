"""Spillover and failover: what leaves home, why, and what happens to requests on the way."""

from __future__ import annotations

from dashboards.boards.board import Board
from dashboards.boards.panels import Prose, Query, Row, graph, lines
from dashboards.boards.region_states import FROM_CLIENTS
from dashboards.recording_rules import AWAY, REQUESTS

_ANSWERED = f'{REQUESTS.record}{{{FROM_CLIENTS},outcome="ok"}} > 0'


def _joined(expr: str, target: str, separator: str, *labels: str) -> str:
    """The series of an expression with one more label, the values of others."""
    names = ", ".join(f'"{label}"' for label in labels)
    return f'label_join({expr}, "{target}", "{separator}", {names})'


def _node(*labels: str) -> str:
    """Nodes of a graph, which the first label names and all identify."""
    return _joined(_joined(f"sum by ({', '.join(labels)}) ({_ANSWERED})", "id", " @ ", *labels), "title", "", labels[0])


_POOLS = _joined(_node("model", "server"), "subtitle", "", "server")
_SOURCES = _joined(f"sum by (site, model, server) ({_ANSWERED})", "source", "", "site")
_EDGES = _joined(_joined(_SOURCES, "target", " @ ", "model", "server"), "id", " > ", "site", "model", "server")

SPILLOVER = Board(
    "spillover",
    "spillover and failover",
    "What other regions serve, why, and what becomes of requests whose endpoint or region fails.",
    (
        Row(
            "Leaving home",
            (
                lines(
                    Prose(
                        "Why are requests served elsewhere?",
                        "Requests per second answered, by why the region served: home, spillover, failover, failback.",
                        "Spillover ends with the surge, failover with the failure. One that stays with every region"
                        " healthy and half empty: frozen plan, or an override (`penstock overrides list`).",
                    ),
                    [Query(f'sum by (kind) ({REQUESTS.record}{{{FROM_CLIENTS},outcome="ok"}})', "{{kind}}")],
                    "reqps",
                    stacked=True,
                ),
                lines(
                    Prose(
                        "Which regions send requests away?",
                        "Share of each origin's answered requests that another region served.",
                        "1 while a region has failed or drains. Near 1 for a healthy one: it lacks capacity.",
                    ),
                    [Query(f'{AWAY.record}{{site=~"$region"}}', "{{site}}")],
                    "percentunit",
                ),
                lines(
                    Prose(
                        "What does the plan send where?",
                        "Share of demand that the plan sends to other regions, the ten largest arcs.",
                        "Far from what the panels above show: requests follow spill credits, or tables of failover.",
                    ),
                    [
                        Query(
                            "topk(10, max by (origin, server, model)"
                            ' (penstock_arc_share{origin=~"$region",model=~"$model"}))',
                            "{{origin}} → {{server}} {{model}}",
                        )
                    ],
                    "percentunit",
                ),
                lines(
                    Prose(
                        "Which overrides are active?",
                        "Active overrides by kind and region; 0 where there is none.",
                        "One that was forgotten: `penstock overrides list` has author, reason and end.",
                    ),
                    [Query("max by (kind, region) (penstock_overrides) or vector(0)", "{{kind}} {{region}}")],
                    "short",
                ),
            ),
        ),
        Row(
            "Dependencies",
            (
                graph(
                    Prose(
                        "Which pools does each region depend on?",
                        "Requests per second from the clients of each region (left) to the pools that answer them.",
                        "A pool that many regions depend on is the loss that costs most: `penstock what-if --lost`. An"
                        " edge to a far pool beside an idle near one: see `penstock explain`.",
                    ),
                    f"{_node('site')} or {_POOLS}",
                    _EDGES,
                    "reqps",
                ),
            ),
        ),
        Row(
            "Second tries",
            (
                lines(
                    Prose(
                        "Why are requests retried?",
                        "Requests per second that had not started and were sent to another target, by reason.",
                        "`peer_refused` rising: origins use old data; see their config age. `connect_failed`: an"
                        " endpoint or peer has stopped.",
                    ),
                    [
                        Query(
                            'sum by (reason) (rate(penstock_agent_retries_total{site=~"$region"}[1m]))',
                            "{{reason}}",
                        )
                    ],
                    "reqps",
                    span=8,
                ),
                lines(
                    Prose(
                        "What becomes of streams that fail?",
                        "Failed streams per second of models with `continue_streams`, by outcome.",
                        "`over_budget`: more streams failed at once than the retry budget permits. `no_target`: no"
                        " permitted vLLM or SGLang had a free slot.",
                    ),
                    [
                        Query(
                            'sum by (outcome) (rate(penstock_agent_stream_continuations_total{site=~"$region"}[1m]))',
                            "{{outcome}}",
                        )
                    ],
                    "reqps",
                    span=8,
                ),
            ),
        ),
    ),
)
