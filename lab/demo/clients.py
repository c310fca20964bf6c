"""The clients of the demo: the entries that each client site tries, and conversion of replay outcomes to records."""

from __future__ import annotations

from lab.demo.demo_workload import Ask
from lab.demo.records import Answer, Attempt, Outcome, Served
from lab.planet.configs import Ports, url
from lab.planet.sites import entry_rtt_ms, nearest_first
from lab.planet.topology import Topology, entry_link
from lab.replay.entry import Entry
from lab.replay.outcome import Outcome as Replayed
from lab.replay.outcome import OutcomeKind, TryResult

_OUTCOMES = {OutcomeKind.OK: Outcome.OK, OutcomeKind.REFUSED: Outcome.REFUSED}

_ANSWERS = {Outcome.OK: Answer.SERVED, Outcome.REFUSED: Answer.REFUSED, Outcome.FAILED: Answer.BROKEN}


def entries_of(topology: Topology, ports: Ports) -> dict[str, list[Entry]]:
    """Return the entries of each site, one for each agent, through the emulated WAN; the nearest region comes first.

    Sites start with different agents of a region in turn. The site nearest to a region checks the health of its agents.
    """
    found: dict[str, list[Entry]] = {}
    distances = {name: [entry_rtt_ms(site, name) for site in topology.sites] for name in topology.region_names}
    for number, site in enumerate(topology.sites):
        found[site.name] = []
        for name in nearest_first(site, topology.region_names):
            agents = topology.region(name).agents
            checker = topology.sites[min(range(len(topology.sites)), key=distances[name].__getitem__)]
            for turn in range(len(agents)):
                agent = agents[(number + turn) % len(agents)]
                link, check = entry_link(site.name, name, agent), entry_link(checker.name, name, agent)
                found[site.name].append(Entry(name, url(ports[link]), url(ports[check])))
    return found


def as_served(replayed: Replayed, ask: Ask) -> Served:
    """Convert an outcome of the replay; the permitted regions and the home region come from `ask`."""
    outcome = _OUTCOMES.get(replayed.kind, Outcome.FAILED)
    attempts = []
    for attempt in replayed.tries:
        if attempt.result is TryResult.REDIRECTED:
            answer = Answer.REDIRECTED
        else:
            answer = _ANSWERS[outcome] if attempt.result is TryResult.ANSWERED else Answer.BROKEN
        attempts.append(Attempt(attempt.at_s, attempt.region, answer))
    return Served(
        id=replayed.id,
        due_s=replayed.scheduled_s,
        site=replayed.site,
        tenant=replayed.tenant,
        model=replayed.model,
        required=ask.planned.required_regions,
        home=ask.home,
        attempts=tuple(attempts),
        outcome=outcome,
        status=replayed.status,
        detail=replayed.code,
        server=replayed.region,
        endpoint=replayed.endpoint,
        ttft_s=replayed.ttft_s,
        e2e_s=replayed.e2e_s if outcome is Outcome.OK else None,
        tokens=replayed.tokens,
    )
