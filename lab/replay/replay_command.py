"""`penstock-lab replay`: replays a trace, or a workload like one, against any OpenAI-compatible server."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Annotated

import msgspec
import typer
import uvloop

from lab.geoip import SITES, ClientSite, GeoDatabaseError, sites_from_database
from lab.open_files import allow_many_open_files
from lab.refusal import refuse
from lab.replay.connection_pool import BadUrl
from lab.replay.entry import Entry
from lab.replay.outcome import Outcome
from lab.replay.replay_results import Latency, Results, summarise
from lab.replay.replay_workload import PlannedRequest, Sender, lay_over
from lab.replay.replayer import Replayer
from lab.traces.generate import generate
from lab.traces.read import read_trace
from lab.traces.shape import cap_tokens, scale_rate
from lab.traces.trace import TraceError, TraceRequest

"""Exit code for input that cannot be used."""

BUCKET_S = 5.0


def replay(
    entry: Annotated[list[str], typer.Option(help="Where to send: http://host:port, or region=http://host:port.")],
    trace: Annotated[Path | None, typer.Option(help="Azure CSV or Mooncake JSONL; else one is generated.")] = None,
    model: Annotated[str, typer.Option(help="Model to ask for.")] = "llama-3.1-8b",
    key: Annotated[str, typer.Option(envvar="PENSTOCK_API_KEY", help="API key of the tenant.")] = "",
    seconds: Annotated[float, typer.Option(min=0.1, help="How much of the workload to replay.")] = 60.0,
    rate: Annotated[float, typer.Option(min=0.001, help="Factor on the rate: thinned or superposed.")] = 1.0,
    max_prompt_tokens: Annotated[int, typer.Option(min=1, help="Longer prompts are cut.")] = 8_000,
    max_output_tokens: Annotated[int, typer.Option(min=1, help="Longer outputs are cut.")] = 1_000,
    hang_up: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of clients that leave mid-stream.")] = 0.0,
    geoip: Annotated[Path | None, typer.Option(help="Take client addresses from this City database.")] = None,
    drain: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for the last answers.")] = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of everything drawn.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the results here as JSON.")] = None,
) -> None:
    """Send a workload open loop and print the results.

    Entries are tried in the given order by every client. Latencies count from when a request was due.
    """
    rng = Random(seed)
    try:
        requests = _requests(trace, seconds, rate, rng)
        requests = cap_tokens(requests, max_prompt_tokens, max_output_tokens)
        sites = sites_from_database(geoip, rng) if geoip is not None else SITES
        senders = [Sender("", key, model)]
        workload = lay_over(requests, sites, senders, lambda site, sender: (), hang_up, rng)
        allow_many_open_files()
        outcomes = uvloop.run(_run(workload, sites, [_entry(text) for text in entry], drain))
    except (TraceError, GeoDatabaseError, BadUrl) as error:
        refuse("replay", str(error))
    results = summarise(outcomes, BUCKET_S)
    print(in_words(results))
    if out is not None:
        try:
            out.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
        except OSError as error:
            refuse("replay", f"{out}: {error.strerror}; give a path that can be written")


def _requests(trace: Path | None, seconds: float, rate: float, rng: Random) -> list[TraceRequest]:
    requests = generate(seconds, rng) if trace is None else read_trace(trace, rng, seconds)
    return scale_rate(requests, rate, seconds, rng)


def _entry(text: str) -> Entry:
    region, found, url = text.partition("=")
    return Entry(region, url) if found else Entry("", text)


async def _run(
    workload: list[PlannedRequest],
    sites: tuple[ClientSite, ...] | list[ClientSite],
    entries: list[Entry],
    drain_s: float,
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    replayer = Replayer(workload, {site.name: entries for site in sites}, on_outcome=outcomes.append)
    await replayer.run(drain_s)
    return outcomes


def in_words(results: Results) -> str:
    """The results for a terminal."""
    counts = results.requests
    lines = [
        f"{counts.total} requests: {counts.ok} ok, {counts.refused} refused, {counts.failed} failed, "
        f"{counts.cancelled} cancelled; {results.retried} went to more than one entry",
        f"all        {_latency_in_words(results.latency)}",
        *(f"{region:<10} {_latency_in_words(latency)}" for region, latency in results.by_region.items()),
        *(f"{number} x {code}" for code, number in results.codes.items()),
        f"the replayer itself was late by at most {results.lag_p99_ms} ms for 99 % of them",
    ]
    return "\n".join(lines)


def _latency_in_words(latency: Latency) -> str:
    return (
        f"first token p50 {latency.ttft_p50_ms} ms, p99 {latency.ttft_p99_ms} ms; "
        f"whole p50 {latency.e2e_p50_ms} ms, p99 {latency.e2e_p99_ms} ms ({latency.requests} answers)"
    )
