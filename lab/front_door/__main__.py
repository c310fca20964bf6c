"""Run by `make demo-front-door`: clients resolve names by DNS, enter through Envoy or an agent, and a region dies."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

import msgspec

from adapters.servers.errors import NotReady, ServerError
from lab.front_door.entries import ENTRIES, EU_NAME, NAME_SERVERS, OPEN_NAME, TTL_S
from lab.front_door.front_door import FrontDoor, front_door
from lab.front_door.resolving_clients import RETRY_AFTER_S, Answered, Client, NameServers
from lab.open_files import allow_many_open_files

CLIENTS = 24
BEFORE_S, AFTER_S = 8.0, 15.0
VICTIM = "eu-de"
IN_HAMBURG = "198.18.1.7"
POLL_S = 0.02
START_S = 60.0
EU_REGIONS = frozenset({"eu-de", "eu-es"})

MAX_ANSWER_S = 2.5
"""Time (s) within which name servers must have a new answer, on a busy machine."""


class Report(msgspec.Struct):
    """What the run has shown."""

    new_answers_s: dict[str, float]
    """Time (s) from the kill until the other name server no longer names the dead region, by name."""
    last_dead_s: float
    """Time (s) from the kill to the last request to an address of the dead region."""
    requests: dict[str, int]
    """Number of requests before the kill, and after it."""
    lost: dict[str, dict[str, int]]
    """Number of requests that failed at the first try, before the kill and after it, by problem."""
    lost_for_good: dict[str, int]
    """Number of those after the kill that the retries of an SDK do not save, by problem."""
    served_by: dict[str, dict[str, int]]
    """Number of served requests by region: before the kill, and from 5 s after it."""
    forbidden: int
    """Number of requests of the EU that another region served, or whose name resolved to one."""


async def run(fleet: FrontDoor) -> Report:
    """Send requests, kill a region, and return what the clients saw."""
    servers = NameServers(list(NAME_SERVERS.values()), fleet.dns_port)
    await _names_answered(servers)
    found: list[Answered] = []
    began = time.monotonic()
    rng = Random(1)
    until = began + BEFORE_S + AFTER_S
    clients = [Client(number, servers, fleet.port, rng).run(until, found) for number in range(CLIENTS)]
    running = asyncio.gather(*clients)
    await asyncio.sleep(BEFORE_S)
    if len(found) < CLIENTS:
        raise NotReady(f"{len(found)} requests in the first {BEFORE_S:g} s: the machine is too busy")
    killed_at = await asyncio.to_thread(fleet.kill_region, VICTIM)
    left = NameServers([address for region, address in NAME_SERVERS.items() if region != VICTIM], fleet.dns_port)
    names = (EU_NAME, OPEN_NAME)
    took_s = await asyncio.gather(*(_until_changed(left, name, killed_at, until) for name in names))
    await running
    return report_of(found, killed_at, dict(zip(names, took_s, strict=True)))


async def _names_answered(servers: NameServers) -> None:
    for name in (EU_NAME, OPEN_NAME):
        for first in range(len(NAME_SERVERS)):
            deadline = time.monotonic() + START_S
            while time.monotonic() < deadline:
                if ENTRIES[VICTIM] in (await servers.ask(name, IN_HAMBURG, first))[0]:
                    break
                await asyncio.sleep(0.2)


async def _until_changed(servers: NameServers, name: str, killed_at: float, until: float) -> float:
    """Return the time (s) from the kill to the last answer with an address of the dead region."""
    last = time.monotonic()
    while time.monotonic() < until:
        if ENTRIES[VICTIM] in (await servers.ask(name, IN_HAMBURG))[0]:
            last = time.monotonic()
        await asyncio.sleep(POLL_S)
    return last - killed_at


def report_of(found: Sequence[Answered], killed_at: float, new_answers_s: dict[str, float]) -> Report:
    """Return the report of requests; times are monotonic (s)."""
    regions = {address: region for region, address in ENTRIES.items()}
    before = [each for each in found if each.ended_at < killed_at]
    after = [each for each in found if each.ended_at >= killed_at]
    settled = [each for each in after if each.begun_at > killed_at + 5.0]
    dead = [each.begun_at for each in after if each.address == ENTRIES[VICTIM] and each.begun_at > killed_at]
    forbidden = [
        each
        for each in found
        if each.name == EU_NAME and {regions.get(each.address, ""), each.region} - EU_REGIONS - {""}
    ]
    return Report(
        new_answers_s,
        max(dead, default=killed_at) - killed_at,
        {"before": len(before), "after": len(after)},
        {"before": _count(each.problem for each in before), "after": _count(each.problem for each in after)},
        _count(each.problem for each in after if not each.is_saved),
        {"before": _count(each.region for each in before), "from 5 s after": _count(each.region for each in settled)},
        len(forbidden),
    )


def _count(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(value for value in values if value).items()))


def problems_of(report: Report) -> list[str]:
    """Return what the run shows that it must not."""
    found = []
    if report.forbidden:
        found.append(f"{report.forbidden} requests of the EU reached another region")
    if report.lost["before"]:
        found.append(f"requests failed before the region died: {report.lost['before']}")
    if max(report.new_answers_s.values()) > MAX_ANSWER_S:
        found.append(f"the name servers named the dead region for {max(report.new_answers_s.values()):.2f} s")
    if VICTIM in report.served_by["from 5 s after"]:
        found.append("the dead region served")
    if not report.served_by["from 5 s after"]:
        found.append("no request was served from 5 s after the kill")
    return found


def _print(report: Report) -> None:
    print(f"{VICTIM} died: its agent, engines, Envoy and name server. {CLIENTS} clients; TTL {TTL_S} s.")
    for name, took_s in report.new_answers_s.items():
        print(f"  {name}: the other name server had new answers after {took_s:.2f} s")
    lost = sum(report.lost["after"].values())
    print(f"  failed at the first try: {lost} of {report.requests['after']} after the kill ({report.lost['after']})")
    for_good = sum(report.lost_for_good.values())
    print(f"  lost in spite of {len(RETRY_AFTER_S)} retries: {for_good} ({report.lost_for_good})")
    print(f"  last request to the dead entry: {report.last_dead_s:.2f} s after the kill")
    for when, regions in report.served_by.items():
        print(f"  served {when}, by region: {regions}")
    print(f"  requests of the EU that reached another region: {report.forbidden}")


def _write(report: Report, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").write_text(json.dumps(msgspec.to_builtins(report), indent=1) + "\n", encoding="utf-8")


async def _main(out: Path) -> int:
    async with front_door(out / "logs") as fleet:
        print("the fleet serves: Envoy with a picker in eu-de and us-east, agents in eu-es and eu-gb", flush=True)
        report = await run(fleet)
    _write(report, out)
    _print(report)
    problems = problems_of(report)
    for problem in problems:
        print(f"NOT MET: {problem}")
    print(f"the whole report: {out / 'report.json'}")
    return 1 if problems else 0


def main() -> int:
    """Run the demo; returns the exit code, 1 if a promise was broken, 2 if the fleet did not start."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out/front-door"), help="folder of report.json and the logs")
    options = parser.parse_args()
    allow_many_open_files()
    try:
        return asyncio.run(_main(options.out))
    except ServerError as error:
        print(f"demo-front-door: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
