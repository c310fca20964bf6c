"""Jobs and repeated requests: whether batches progress and tell, and what the result cache and coalescing save."""

from __future__ import annotations

from dashboards.boards.board import Board
from dashboards.boards.panels import GREEN, RED, Panel, Prose, Query, Row, lines

_SITE = '{site=~"$region"}'
_CACHE = "penstock_agent_result_cache"


def _rate(metric: str, *labels: str, where: str = _SITE) -> str:
    """The rate of a counter of agents in 5 minutes, by region and further labels."""
    return f"sum by ({', '.join(('site', *labels))}) (rate({metric}_total{where}[5m]))"


def _hits(results: str) -> str:
    return _rate(f"{_CACHE}_requests", where=f'{{site=~"$region",result=~"{results}"}}')


def _panel(prose: Prose, unit: str, *queries: Query) -> Panel:
    return lines(prose, queries, unit, span=8)


JOBS = Board(
    "jobs",
    "jobs and repeated requests",
    "Whether batches progress, whether their webhooks arrive, and what the result cache and coalescing save.",
    (
        Row(
            "Batches",
            (
                _panel(
                    Prose(
                        "Do batches progress?",
                        "Requests of batches per second that completed or failed; ran_again and waited are repeats.",
                        "Waited alone: no slot is idle, or a budget is used up. Failed: the error file of the batch.",
                    ),
                    "reqps",
                    Query(_rate("penstock_agent_batch_requests", "event"), "{{site}} {{event}}"),
                ),
                _panel(
                    Prose(
                        "How many batches run?",
                        "Batches that the agents of each region run under a claim.",
                        "0 while clients wait for batches: no agent reaches the job store; see its panel.",
                    ),
                    "short",
                    Query(f"sum by (site) (penstock_agent_batches_running{_SITE})", "{{site}}"),
                ),
                _panel(
                    Prose(
                        "How do batches end?",
                        "Batches of the last hour by their state at the end.",
                        "Expired: their requests found no idle slot in the completion window; add endpoints.",
                    ),
                    "short",
                    Query(
                        f"sum by (site, state) (increase(penstock_agent_batches_ended_total{_SITE}[1h]))",
                        "{{site}} {{state}}",
                    ),
                ),
                _panel(
                    Prose(
                        "What interrupts batches?",
                        "Running batch requests per second that ended for requests with a priority, and dashed claims"
                        " of batches that another agent replaced.",
                        "Many preemptions: too few endpoints for interactive work. Claims: agents stall or die; see"
                        " agent internals.",
                    ),
                    "ops",
                    Query(_rate("penstock_agent_batch_preemptions"), "{{site}} preempted"),
                    Query(_rate("penstock_agent_batch_claims_lost"), "{{site}} claims lost", dashed=True),
                ),
                _panel(
                    Prose(
                        "Do webhooks arrive?",
                        "Webhooks per second that receivers accepted, attempts that they did not, and those given up.",
                        "Failed everywhere: the way out of the regions. Otherwise one receiver: tell its tenant.",
                    ),
                    "ops",
                    Query(_rate("penstock_agent_webhooks", "outcome"), "{{site}} {{outcome}}"),
                ),
                lines(
                    Prose(
                        "Does the job store work?",
                        "Operations per second that the job store did not execute.",
                        "Above 0: credentials, quota or network of the object store. Jobs wait and lose nothing.",
                    ),
                    [Query(_rate("penstock_agent_job_store_failures"), "{{site}}")],
                    "ops",
                    span=8,
                    thresholds=[(None, GREEN), (0.1, RED)],
                ),
            ),
        ),
        Row(
            "Repeated requests",
            (
                _panel(
                    Prose(
                        "How often does the result cache hit?",
                        "Share of the look-ups that found a kept response which the client accepts.",
                        "A fall: a purge by a new version of a model, a shorter `max_age_s`, or prompts that differ.",
                    ),
                    "percentunit",
                    Query(f"{_hits('hit')} / ({_hits('hit|miss')} > 0)", "{{site}}"),
                ),
                _panel(
                    Prose(
                        "How many GPUs does the result cache replace?",
                        "Estimated GPU seconds per second of the requests that received a kept response.",
                        "Near 0 for weeks: prompts do not repeat; remove the route from the `ResultCache`.",
                    ),
                    "short",
                    Query(_rate(f"{_CACHE}_saved_gpu_seconds"), "{{site}}"),
                ),
                _panel(
                    Prose(
                        "How many requests share a run?",
                        "Requests per second that received the response of an identical request in flight.",
                        "A step: one client repeats itself before the first answer; the access log names its tenant.",
                    ),
                    "reqps",
                    Query(_rate("penstock_agent_coalesced_requests"), "{{site}}"),
                ),
                _panel(
                    Prose(
                        "How many bytes does the result cache move?",
                        "Bytes per second of kept responses that were sent, and dashed of responses that were kept.",
                        "Far more kept than sent: the cache keeps what nobody asks for again; name fewer routes.",
                    ),
                    "Bps",
                    Query(_rate(f"{_CACHE}_sent_bytes"), "{{site}} sent"),
                    Query(_rate(f"{_CACHE}_stored_bytes"), "{{site}} kept", dashed=True),
                ),
                _panel(
                    Prose(
                        "How much memory does the result cache use?",
                        "Bytes of kept responses in the memory of each agent.",
                        "64 MiB is its limit; with few hits there, lower `max_response_bytes` or name fewer routes.",
                    ),
                    "bytes",
                    Query(f"max by (site, agent) ({_CACHE}_memory_bytes{_SITE})", "{{site}} {{agent}}"),
                ),
                _panel(
                    Prose(
                        "Does the result cache reach Redis?",
                        "Look-ups and stores per second that failed or took too long.",
                        "Above 0: requests run as if nothing were kept. Runbook of PenstockSharedLoadDown.",
                    ),
                    "ops",
                    Query(_rate(f"{_CACHE}_redis_failures"), "{{site}}"),
                ),
            ),
        ),
    ),
)
