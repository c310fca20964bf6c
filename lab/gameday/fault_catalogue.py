"""The catalogue of faults: injection, end, and expected outcome of each."""

from __future__ import annotations

import msgspec

from lab.demo.batches.batch_scene import NIGHT_REGION
from lab.gameday.batch_in_progress import DuringBatch, StoreLost
from lab.gameday.budget_pressure import UnderPressure
from lab.gameday.client_flood import SLOW_CONNECTIONS
from lab.gameday.cold_pools import ColdPools
from lab.gameday.credential_faults import (
    expire_agent,
    expire_leader,
    jump,
    jump_leader,
    renew_agent,
    renew_control_planes,
)
from lab.gameday.fault import Fault, TargetKind
from lab.gameday.fault_injection import (
    SLOW_FACTOR,
    fail_fast,
    fail_model,
    flood,
    flush_redis,
    freeze,
    freeze_etcd,
    freeze_leader,
    halve_agents,
    kill_agents,
    kill_engines,
    kill_region,
    partition,
    poison_policy,
    slow_down,
    storm,
)
from lab.gameday.pilot_light import PilotLight
from lab.gameday.session_load import SESSIONS, DuringSessions
from lab.gameday.store_faults import RUNNING_S, STOPPED_S, compact, lose_quorum, slow_etcd
from lab.gameday.version_skew import VersionSkew
from lab.gameday.wake_webhook import Conduct
from lab.planet.topology import CHAT_8B, CHAT_70B, Topology, demo_planet

ETCD_MEMBERS = ("etcd", "etcd-2", "etcd-3")


def gameday_planet(demo: Topology) -> Topology:
    """Return the topology of the demo with three etcd members, so that etcd tolerates the loss of a member."""
    return msgspec.structs.replace(demo, etcd_members=ETCD_MEMBERS)


def agents_of(topology: Topology, region: str) -> list[tuple[str, str]]:
    """Return region and name of each agent of a region."""
    return [(region, agent) for agent in topology.region(region).agents]


PLANET = gameday_planet(demo_planet())
OTHERS = tuple(name for name in PLANET.region_names if name != "eu-es")


LEADER_LOST = UnderPressure(freeze_leader)
REDIS_LOST = UnderPressure(freeze("redis"))
AGENTS_HALVED = UnderPressure(halve_agents("us-east"))
"""Faults while a tenant sends more than its budget to all agents."""

BATCH_AGENT_KILLED = DuringBatch(kill_agents(NIGHT_REGION), max_runs=2)
BATCH_REDIS_LOST = DuringBatch(freeze("redis"), max_runs=1)
BATCH_STORE_LOST = StoreLost()
"""Faults while a batch runs. Requests that a killed agent had begun run once more."""

SESSIONS_ENGINES_KILLED = DuringSessions(kill_engines("eu-de"))
SESSIONS_AGENT_KILLED = DuringSessions(halve_agents("us-east"), lambda topology: agents_of(topology, "us-east")[1:])
SESSIONS_REGION_KILLED = DuringSessions(kill_region("eu-de"), lambda topology: agents_of(topology, "eu-de"))
"""Faults under sessions of agents with tools."""

COLD_POOLS = ColdPools({})
WAKE_HOOK_DOWN = ColdPools({"eu-de": Conduct.FAILS, "eu-es": Conduct.HANGS, "us-east": Conduct.FAILS})
"""Faults in which a burst of requests needs a model of which every pool is cold."""


PILOT_LIGHT = PilotLight("eu-de", "eu-es", "eu-es-small-a100")
VERSION_SKEW = VersionSkew("eu-de", "eu-de-small-a100")


def _endpoints(model: str) -> frozenset[str]:
    return frozenset(each.name for region in PLANET.regions for each in region.engines if each.model == model)


def _cold(name: str, what: str, pools: ColdPools) -> Fault:
    return Fault(
        name,
        what,
        TargetKind.MODEL,
        "",
        pools.inject,
        prepare=pools.prepare,
        conclude=pools.conclude,
        detected_within_s=5.0,
        model=CHAT_70B,
        endpoints=_endpoints(CHAT_70B),
    )


def _of_sessions(name: str, what: str, sessions: DuringSessions, kind: TargetKind, region: str) -> Fault:
    return Fault(
        name,
        f"{what}, under {SESSIONS} sessions of agents with tools",
        kind,
        region,
        sessions.inject,
        prepare=sessions.prepare,
        conclude=sessions.conclude,
        detected_within_s=5.0,
        may_break=True,
    )


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            "region-killed",
            "kill -9 of every agent and engine of eu-de, then a restart of the region",
            TargetKind.REGION,
            "eu-de",
            kill_region("eu-de"),
            detected_within_s=1.0,
            clients_within_s=1.0,
            may_break=True,
        ),
        Fault(
            "agent-frozen",
            "SIGSTOP of the only agent of eu-es",
            TargetKind.REGION,
            "eu-es",
            freeze("agent eu-es/a"),
            # Two probes, 0.25 s apart, each with a timeout of 0.4 s and a round trip; the rest is for a busy machine.
            detected_within_s=2.0,
            # Two health checks of the clients' DNS, 0.25 s apart, each with a timeout of 1 s.
            clients_within_s=3.0,
        ),
        Fault(
            "engines-frozen",
            "SIGSTOP of the process with all engines of eu-de",
            TargetKind.ENDPOINTS,
            "eu-de",
            freeze("engines eu-de"),
            # Four successive probes with a timeout of 2 s, so that a busy engine does not count as failed.
            detected_within_s=10.0,
        ),
        Fault(
            "engine-slow",
            f"the fastest engine of the small model in eu-de becomes {SLOW_FACTOR} times as slow",
            TargetKind.SLOW_ENDPOINT,
            "eu-de",
            slow_down("eu-de-small-a100"),
            endpoint="eu-de-small-a100",
        ),
        Fault(
            "leader-frozen",
            "SIGSTOP of the leading control plane",
            TargetKind.LEADER,
            "",
            freeze_leader,
            detected_within_s=5.0,
        ),
        Fault(
            "engine-failing",
            "the fastest engine of the small model in eu-de refuses every request at once with 503",
            TargetKind.SLOW_ENDPOINT,
            "eu-de",
            fail_fast("eu-de-small-a100"),
            endpoint="eu-de-small-a100",
        ),
        Fault(
            "model-gone",
            f"every engine of {CHAT_70B} refuses requests and health checks",
            TargetKind.MODEL,
            "",
            fail_model(CHAT_70B),
            detected_within_s=5.0,
            model=CHAT_70B,
            endpoints=_endpoints(CHAT_70B),
        ),
        _cold(
            "cold-pools",
            f"every engine of {CHAT_70B}, which is on demand, stops, and a burst of its requests reaches all agents",
            COLD_POOLS,
        ),
        _cold(
            "wake-hook-down",
            "as cold-pools, while the wake webhook answers eu-de and us-east with 500, and eu-es not at all",
            WAKE_HOOK_DOWN,
        ),
        Fault(
            "pilot-light",
            "kill -9 of every agent and engine of eu-de, whose demand the pilot light eu-es takes over",
            TargetKind.REGION,
            "eu-de",
            PILOT_LIGHT.inject,
            prepare=PILOT_LIGHT.prepare,
            conclude=PILOT_LIGHT.conclude,
            detected_within_s=1.0,
            clients_within_s=1.0,
            may_break=True,
        ),
        Fault(
            "version-skew",
            "the fastest engine of the small model in eu-de serves another revision than policy expects",
            TargetKind.SLOW_ENDPOINT,
            "eu-de",
            VERSION_SKEW.inject,
            prepare=VERSION_SKEW.prepare,
            conclude=VERSION_SKEW.conclude,
            endpoint="eu-de-small-a100",
        ),
        Fault(
            "regions-partitioned",
            "no traffic passes between eu-de and eu-es; both regions reach etcd and all other regions",
            TargetKind.PARTITION,
            "eu-es",
            partition([("eu-de", "eu-es"), ("eu-es", "eu-de")]),
            detected_within_s=2.0,
            may_break=True,
            other="eu-de",
        ),
        Fault(
            "region-isolated",
            "no traffic passes between eu-es and any other region; clients, etcd and control planes reach eu-es",
            TargetKind.REGION,
            "eu-es",
            partition([pair for name in OTHERS for pair in ((name, "eu-es"), ("eu-es", name))]),
            detected_within_s=2.0,
            may_break=True,
        ),
        Fault(
            "policy-poisoned",
            "the policy source contains an invalid bundle",
            TargetKind.POLICY,
            "",
            poison_policy,
            detected_within_s=8.0,
        ),
        Fault("redis-flushed", "FLUSHALL deletes all data in Redis", TargetKind.STORE, "", flush_redis),
        Fault(
            "client-flood",
            f"{SLOW_CONNECTIONS} slow connections to the agent of eu-de, and requests without a valid key",
            TargetKind.STORE,
            "",
            flood("eu-de"),
        ),
        Fault(
            "budget-leader-lost",
            "SIGSTOP of the leading control plane, while a tenant sends more than its budget to all agents",
            TargetKind.LEADER,
            "",
            LEADER_LOST.inject,
            prepare=LEADER_LOST.prepare,
            detected_within_s=5.0,
        ),
        Fault(
            "budget-redis-lost",
            "SIGSTOP of Redis, while a tenant sends more than its budget to all agents",
            TargetKind.STORE,
            "",
            REDIS_LOST.inject,
            prepare=REDIS_LOST.prepare,
        ),
        Fault(
            "budget-agents-halved",
            "kill -9 of one of the two agents of us-east, while a tenant sends more than its budget to all agents",
            TargetKind.AGENTS,
            "us-east",
            AGENTS_HALVED.inject,
            prepare=AGENTS_HALVED.prepare,
            detected_within_s=1.0,
            may_break=True,
        ),
        Fault(
            "batch-agent-killed",
            f"kill -9 of the only agent of {NIGHT_REGION}, which runs a batch, then a restart of the agent",
            TargetKind.REGION,
            NIGHT_REGION,
            BATCH_AGENT_KILLED.inject,
            prepare=BATCH_AGENT_KILLED.prepare,
            conclude=BATCH_AGENT_KILLED.conclude,
            # As region-killed; the round trips of probes to Tokyo are longer.
            detected_within_s=1.5,
            may_break=True,
        ),
        Fault(
            "batch-redis-lost",
            f"SIGSTOP of Redis, while an agent of {NIGHT_REGION} runs a batch",
            TargetKind.STORE,
            "",
            BATCH_REDIS_LOST.inject,
            prepare=BATCH_REDIS_LOST.prepare,
            conclude=BATCH_REDIS_LOST.conclude,
        ),
        Fault(
            "batch-store-lost",
            f"loss of the job store of {NIGHT_REGION} while an agent runs a batch, for longer than a claim is valid",
            TargetKind.STORE,
            "",
            BATCH_STORE_LOST.inject,
            prepare=BATCH_STORE_LOST.prepare,
            conclude=BATCH_STORE_LOST.conclude,
        ),
        _of_sessions(
            "sessions-engines-killed",
            "kill -9 of the process with all engines of eu-de",
            SESSIONS_ENGINES_KILLED,
            TargetKind.ENDPOINTS,
            "eu-de",
        ),
        _of_sessions(
            "sessions-agent-killed",
            "kill -9 of one of the two agents of us-east",
            SESSIONS_AGENT_KILLED,
            TargetKind.AGENTS,
            "us-east",
        ),
        _of_sessions(
            "sessions-region-killed",
            "kill -9 of every agent and engine of eu-de",
            SESSIONS_REGION_KILLED,
            TargetKind.REGION,
            "eu-de",
        ),
        Fault("etcd-frozen", "SIGSTOP of every member of etcd", TargetKind.STORE, "", freeze_etcd),
        Fault("redis-frozen", "SIGSTOP of Redis", TargetKind.STORE, "", freeze("redis")),
        Fault(
            "agents-halved",
            "kill -9 of one of the two agents of us-east, then a restart of the agent",
            TargetKind.AGENTS,
            "us-east",
            halve_agents("us-east"),
            detected_within_s=1.0,
            may_break=True,
        ),
        Fault(
            "report-storm",
            "an additional agent of eu-es with a valid certificate sends large reports to the leader without a pause",
            TargetKind.STORE,
            "",
            storm("eu-es", CHAT_8B),
        ),
        Fault(
            "agent-certificate-expired",
            "the certificate of the only agent of eu-es expires and is renewed while the agent runs",
            TargetKind.REGION,
            "eu-es",
            renew_agent("eu-es", "a"),
            detected_within_s=1.0,
            prepare=expire_agent("eu-es", "a"),
        ),
        Fault(
            "leader-certificate-expired",
            "the certificate of the leading control plane expires and is renewed while the process runs",
            TargetKind.STORE,
            "",
            renew_control_planes,
            prepare=expire_leader,
        ),
        Fault(
            "etcd-compacted",
            "every agent is disconnected from etcd, and etcd compacts to its newest revision before they reconnect",
            TargetKind.CONFIG,
            "",
            compact,
            detected_within_s=10.0,
        ),
        Fault(
            "etcd-quorum-lost",
            "kill -9 of two of the three members of etcd, then a restart of the members",
            TargetKind.CONFIG,
            "",
            lose_quorum,
            # etcd ends a watch several election timeouts after it loses its leader.
            detected_within_s=10.0,
        ),
        Fault(
            "etcd-slow",
            f"every member of etcd stops for {STOPPED_S:g} s and runs for {RUNNING_S:g} s, alternately",
            TargetKind.STORE,
            "",
            slow_etcd,
        ),
        Fault(
            "agent-clock-ahead",
            "the clock of the only agent of eu-es jumps an hour ahead and is reset",
            TargetKind.REGION,
            "eu-es",
            jump("agent eu-es/a"),
            # A change of the clock takes effect within 1 s.
            detected_within_s=3.0,
            clocks=("agent eu-es/a",),
        ),
        Fault(
            "leader-clock-ahead",
            "the clock of the leading control plane jumps an hour ahead and is reset",
            TargetKind.STORE,
            "",
            jump_leader,
            clocks=tuple(f"control plane {name}" for name in PLANET.control_planes),
        ),
    )
}
"""Every fault by name."""
