"""The faults of game days: what is done to the fleet, what ends it, and what is expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from lab.gameday.client_flood import SLOW_CONNECTIONS
from lab.gameday.credential_faults import (
    expire_agent,
    expire_leader,
    jump,
    jump_leader,
    renew_agent,
    renew_control_planes,
)
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
    kill_region,
    partition,
    poison_policy,
    slow_down,
    storm,
)
from lab.gameday.store_faults import RUNNING_S, STOPPED_S, compact, lose_quorum, slow_etcd
from lab.planet.planet import Planet
from lab.planet.topology import CHAT_8B, CHAT_70B, Topology, demo_planet

ETCD_MEMBERS = ("etcd", "etcd-2", "etcd-3")


def gameday_planet(demo: Topology) -> Topology:
    """The fleet of the demo, with an etcd that can lose a member."""
    return msgspec.structs.replace(demo, etcd_members=ETCD_MEMBERS)


PLANET = gameday_planet(demo_planet())
OTHERS = tuple(name for name in PLANET.region_names if name != "eu-es")


class TargetKind(StrEnum):
    """What a fault takes away, and thus how its detection and the recovery are observed."""

    REGION = "region"
    """Other regions' agents report it as failed; afterwards they no longer do."""
    ENDPOINTS = "endpoints"
    """The region's agents report none of its endpoints as ready; afterwards all of them."""
    SLOW_ENDPOINT = "slow_endpoint"
    """The region's agents send it fewer requests."""
    LEADER = "leader"
    """Another control plane leads; afterwards exactly one."""
    PARTITION = "partition"
    """Agents of either of two regions report the other as failed, and third regions neither; afterwards none does."""
    POLICY = "policy"
    """Every control plane reports the errors of the policy source, and none of them afterwards."""
    MODEL = "model"
    """No agent reports an endpoint of the model as ready; afterwards all, and none gets more than it can run."""
    AGENTS = "agents"
    """Other regions' agents forward to the rest of its agents only, and none reports the region as failed."""
    CONFIG = "config"
    """No agent's copy of policy and plan is confirmed by etcd; afterwards every one is."""
    STORE = "store"
    """Nothing is to be observed but that serving goes on; afterwards exactly one control plane leads."""


class Fault(NamedTuple):
    """One game day."""

    name: str
    what: str
    """What is done, in a few words."""
    kind: TargetKind
    region: str
    """The region that suffers; empty for the fleet."""
    inject: Callable[[Planet], Callable[[], str | None]]
    """Begins the fault, and returns what ends it, which returns what was measured meanwhile. Both block."""
    detected_within_s: float | None = None
    """Limit (s) for the detection; None where nothing detects it."""
    clients_within_s: float | None = None
    """Limit (s) for the last attempt of a client at the region; None where clients need not leave it."""
    may_break: bool = False
    """Whether requests that entered through the region, or that its engines were running, may fail."""
    endpoint: str = ""
    """The endpoint that suffers; empty for none in particular."""
    other: str = ""
    """The region that `region` is cut off from; empty for none in particular."""
    model: str = ""
    """The model that cannot be served: its requests may be refused meanwhile."""
    slots: Mapping[str, int] = MappingProxyType({})
    """By endpoint of that model: the requests that it can run at once."""
    prepare: Callable[[Planet], float] | None = None
    """Called before the day; returns the time (s) after which the fault begins. Blocks."""
    clocks: tuple[str, ...] = ()
    """The processes whose clocks the fault may change, for which libfaketime is needed."""


def _slots(model: str) -> Mapping[str, int]:
    engines = [engine for region in PLANET.regions for engine in region.engines if engine.model == model]
    return {engine.name: engine.max_num_seqs for engine in engines}


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            "region-killed",
            "kill -9 of every agent and engine of eu-de, which is started again",
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
            # Two probes, a quarter of a second apart, that wait 0.4 s and a round trip; the rest is for a busy machine.
            detected_within_s=2.0,
            # Two health checks of 1 s each, a quarter of a second apart: that of the clients, not of the fleet.
            clients_within_s=3.0,
        ),
        Fault(
            "engines-frozen",
            "SIGSTOP of the process with all engines of eu-de",
            TargetKind.ENDPOINTS,
            "eu-de",
            freeze("engines eu-de"),
            # Four probes in a row that wait 2 s for an answer: a busy engine must not be taken for a dead one.
            detected_within_s=10.0,
        ),
        Fault(
            "engine-slow",
            f"the fastest engine of the small model in eu-de becomes {SLOW_FACTOR} times as slow",
            TargetKind.SLOW_ENDPOINT,
            "eu-de",
            slow_down("eu-de", "eu-de-small-a100"),
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
            fail_fast("eu-de", "eu-de-small-a100"),
            endpoint="eu-de-small-a100",
        ),
        Fault(
            "model-gone",
            f"every engine of {CHAT_70B} refuses requests and health checks, and is back",
            TargetKind.MODEL,
            "",
            fail_model(CHAT_70B),
            detected_within_s=5.0,
            model=CHAT_70B,
            slots=_slots(CHAT_70B),
        ),
        Fault(
            "regions-partitioned",
            "nothing passes between eu-de and eu-es, in either direction; both reach etcd and all others",
            TargetKind.PARTITION,
            "eu-es",
            partition([("eu-de", "eu-es"), ("eu-es", "eu-de")]),
            detected_within_s=2.0,
            may_break=True,
            other="eu-de",
        ),
        Fault(
            "region-isolated",
            "nothing passes between eu-es and any other region; clients, etcd and control planes reach it",
            TargetKind.REGION,
            "eu-es",
            partition([pair for name in OTHERS for pair in ((name, "eu-es"), ("eu-es", name))]),
            detected_within_s=2.0,
            may_break=True,
        ),
        Fault(
            "policy-poisoned",
            "the policy source offers a bundle that is not valid",
            TargetKind.POLICY,
            "",
            poison_policy,
            detected_within_s=8.0,
        ),
        Fault("redis-flushed", "Redis forgets everything", TargetKind.STORE, "", flush_redis),
        Fault(
            "client-flood",
            f"{SLOW_CONNECTIONS} slow connections to the agent of eu-de, and requests without a valid key",
            TargetKind.STORE,
            "",
            flood("eu-de"),
        ),
        Fault("etcd-frozen", "SIGSTOP of every member of etcd", TargetKind.STORE, "", freeze_etcd),
        Fault("redis-frozen", "SIGSTOP of Redis", TargetKind.STORE, "", freeze("redis")),
        Fault(
            "agents-halved",
            "kill -9 of one of the two agents of us-east, which is started again",
            TargetKind.AGENTS,
            "us-east",
            halve_agents("us-east"),
            detected_within_s=1.0,
            may_break=True,
        ),
        Fault(
            "report-storm",
            "one more agent of eu-es, with a valid certificate, sends large reports to the leader without a pause",
            TargetKind.STORE,
            "",
            storm("eu-es", CHAT_8B),
        ),
        Fault(
            "agent-certificate-expired",
            "the certificate of the only agent of eu-es expires, and is renewed while the agent runs",
            TargetKind.REGION,
            "eu-es",
            renew_agent("eu-es", "a"),
            detected_within_s=1.0,
            prepare=expire_agent("eu-es", "a"),
        ),
        Fault(
            "leader-certificate-expired",
            "the certificate of the leading control plane expires, and is renewed while it runs",
            TargetKind.STORE,
            "",
            renew_control_planes,
            prepare=expire_leader,
        ),
        Fault(
            "etcd-compacted",
            "every agent is cut off etcd, which is compacted to its newest revision before they are back",
            TargetKind.CONFIG,
            "",
            compact,
            detected_within_s=10.0,
        ),
        Fault(
            "etcd-quorum-lost",
            "kill -9 of two of the three members of etcd, which are started again",
            TargetKind.CONFIG,
            "",
            lose_quorum,
            # A watch of an etcd without a leader ends after several of its election timeouts.
            detected_within_s=10.0,
        ),
        Fault(
            "etcd-slow",
            f"every member of etcd stands for {STOPPED_S:g} s and runs for {RUNNING_S:g} s, in turn",
            TargetKind.STORE,
            "",
            slow_etcd,
        ),
        Fault(
            "agent-clock-ahead",
            "the clock of the only agent of eu-es jumps an hour ahead, and back",
            TargetKind.REGION,
            "eu-es",
            jump("agent eu-es/a"),
            # The changed clock is in force after up to a second.
            detected_within_s=3.0,
            clocks=("agent eu-es/a",),
        ),
        Fault(
            "leader-clock-ahead",
            "the clock of the leading control plane jumps an hour ahead, and back",
            TargetKind.STORE,
            "",
            jump_leader,
            clocks=tuple(f"control plane {name}" for name in PLANET.control_planes),
        ),
    )
}
"""By name."""
