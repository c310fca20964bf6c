"""What Prometheus tells people about, and what they are to do.

Serving does not need the control plane (static stability), so what only it suffers from is a ticket unless it also
takes away the means to react to the next failure.
"""

from __future__ import annotations

from dashboards.recording_rules import (
    BURN_1H,
    BURN_5M,
    BURN_6H,
    BURN_30M,
    REGION_STATE,
    REQUESTS,
    STATE_CODES,
    UTILISATION,
)
from dashboards.rules import Alert
from penstock.health.region_health import RegionState
from penstock.rollout.state_machine import Phase

_OBJECTIVE_RUNBOOK = """
            1. Panel "Service objectives attained": is it one region or all? `penstock status` has the last minutes.
            2. Panel "Requests that did not end well": failures count as missed. See to what fails first.
            3. One region: panel "Utilisation" there, and "Time in the queue". It is short of endpoints.
            4. All regions: has policy or the model's version changed (`penstock rollout show`)? Take it back.
        """

ALERTS = (
    Alert(
        name="PenstockForwardedResidencyRefused",
        expr="sum by (site) (increase(penstock_agent_forwarded_residency_refusals_total[5m])) > 0",
        for_s=0,
        severity="page",
        summary="{{ $labels.site }} was sent requests whose residency class forbids it",
        impact="The requests were refused there and not served, but their contents crossed a border they must not.",
        runbook="""
            1. This is a defect or two policies in force at once: an origin chose a region that its own mask forbids.
               While a rollout widens where data may be, its canary regions obey the wider policy and others do not yet
               (`penstock rollout show`): then what was sent is what the new policy permits.
            2. Find the origin: the log of the agents at this site has one line a refusal, with origin and class.
            3. Compare the policy digest of that origin's agents with the leader's (`/status` on each admin port,
               and the panel "Policy in force"). If the origin is behind, restart its agent; it takes the newest.
            4. If the digests agree, drain the origin, keep its log and /status output, and report a defect.
            5. Tell whoever answers for data protection how many requests there were, from this counter.
        """,
    ),
    Alert(
        name="PenstockNoLeader",
        expr="(sum(penstock_leader) or vector(0)) == 0",
        for_s=30,
        severity="page",
        summary="No control plane leads",
        impact="None yet: agents serve by the last plan. Nothing will re-plan when demand or regions change.",
        runbook="""
            1. Are the control planes up? Look at their /livez and logs; start one if none runs.
            2. Is etcd up and with a quorum? `etcdctl endpoint status --cluster`. Without it nobody can lead:
               restore a majority first.
            3. Both fine, and still no leader: look for the LEADER key and its lease (`etcdctl get
               /penstock/v1/leader`). A lease ends by itself within its time to live.
        """,
    ),
    Alert(
        name="PenstockSeveralLeaders",
        expr="sum(penstock_leader) > 1",
        for_s=30,
        severity="ticket",
        summary="{{ $value }} control planes believe that they lead",
        impact="None: the fencing epoch refuses every write of the older one.",
        runbook="""
            1. Panel "Leadership": the one with the lower fencing epoch is the stale one.
            2. It is cut off from etcd, or hangs. Restart it.
        """,
    ),
    Alert(
        name="PenstockPlanNotPublished",
        expr='sum(increase(penstock_plan_publishes_total{outcome=~"published|unchanged"}[2m])) == 0'
        " and sum(penstock_leader) > 0",
        for_s=60,
        severity="page",
        summary="There is a leader, but no plan was published or confirmed for minutes",
        impact="None yet: agents serve by the last plan, and fail over by the tables in it.",
        runbook="""
            1. Panel "Publishing": which outcome grows? `store_unavailable`: see to etcd. `conflict` or `fenced`:
               another writer is there; see the alert on several leaders.
            2. No outcome grows: the planner fails before it publishes. Read the leader's log; a report or policy
               that it cannot take is named there. Stop the leader, so that the other one takes over.
        """,
    ),
    Alert(
        name="PenstockRegionFailed",
        expr=f"{REGION_STATE.record} == {STATE_CODES[RegionState.FAILED]}",
        for_s=10,
        severity="page",
        summary="Region {{ $labels.region }} has failed",
        impact="Its traffic goes to the other permitted regions; classes that only it may serve are refused.",
        runbook="""
            1. Panel "Peers": do other regions see it? If they do, only its reports are lost: see its agents' logs.
            2. Nobody sees it: is the site, its network or its load balancer down? Ask whoever runs the site.
            3. Panel "Utilisation": do the regions that took over cope? If one is near 1, take load off it: lower
               what you can, or bring up endpoints there.
            4. It comes back by itself, slowly, over the failback ramp. If it flaps, drain it until it is well.
        """,
    ),
    Alert(
        name="PenstockRegionDegraded",
        expr=f"{REGION_STATE.record} == {STATE_CODES[RegionState.DEGRADED]}",
        for_s=300,
        severity="ticket",
        summary="Fewer than half of the endpoints of a model are ready in region {{ $labels.region }}",
        impact="It serves what the ready ones can, and the plan takes the rest to other regions; the reserve shrinks.",
        runbook="""
            1. `penstock endpoints --region` that region: which are not ready, and in which state are they?
            2. `down`: see the engines' logs. `ejected` or `suspect`: panel "Ejections by reason". `unloaded`:
               does the engine have the model on its disk? `draining`: somebody means it; nothing to do.
            3. Do the others cope? Panel "Capacity shortfall" shows the slots missing after the next loss.
        """,
    ),
    Alert(
        name="PenstockReportsOld",
        expr="max by (region) (penstock_report_age_seconds) > 10",
        for_s=30,
        severity="ticket",
        summary="No agent of {{ $labels.region }} has reported for {{ $value | humanizeDuration }}",
        impact="None directly; the plan goes by old numbers there, and trusts them less and less.",
        runbook="""
            1. Panel "Reports": are its reports refused, or do none arrive? `bad_signature`: the certificate is of
               another fleet, expired or revoked; `malformed`: another version; `stale`: two agents of one name.
            2. None arrive: can its agents reach the leader's address? Their logs name the error.
        """,
    ),
    Alert(
        name="PenstockPlanRefused",
        expr="sum by (region) (penstock_agents_rejecting_config) > 0",
        for_s=30,
        severity="ticket",
        summary="{{ $value }} agents of {{ $labels.region }} refuse what was published to them",
        impact="They serve by an older plan or policy: drains, failovers and new rules do not reach them.",
        runbook="""
            1. `penstock status` names each agent with its reason.
            2. A policy or plan that only newer releases can read: upgrade those agents.
            3. It does not supersede what they obey: another control plane or store publishes there; see to that first.
            4. Anything else is a fault of this release: keep the value at the region's plan key and the agent's log.
        """,
    ),
    Alert(
        name="PenstockRolloutHeld",
        expr=f'sum by (phase) (penstock_rollout_phase{{phase=~"{Phase.SHADOW_HELD}|{Phase.CANARY_HELD}"}}) > 0',
        for_s=60,
        severity="ticket",
        summary="A change of policy waits for a person: {{ $labels.phase }}",
        impact="None: what was in force stays, but what people want of the fleet is not done.",
        runbook="""
            1. `penstock rollout show` says why it is held, what it changes, and whose traffic it would move.
            2. It is meant to: `penstock rollout resume --reason ...`, or `promote` where it is urgent.
            3. It is not: `penstock rollout rollback --reason ...`, and mend the policy's source.
        """,
    ),
    Alert(
        name="PenstockPolicyRolledBack",
        expr=f'sum(penstock_rollout_phase{{phase="{Phase.ROLLED_BACK}"}}) > 0',
        for_s=0,
        severity="ticket",
        summary="A change of policy was rolled back",
        impact="Every region obeys the policy from before it; the source's is not in force.",
        runbook="""
            1. `penstock rollout show` says why: agents that refused it, requests that failed, or who did it.
            2. It does not begin by itself again. Mend the policy's source: its next revision is rolled out anew.
            3. It was not at fault: `penstock policy apply <digest> --reason ...`.
        """,
    ),
    Alert(
        name="PenstockConfigOld",
        expr="max by (site, agent) (penstock_agent_config_age_seconds) > 120",
        for_s=60,
        severity="ticket",
        summary="Agent {{ $labels.agent }} in {{ $labels.site }} has not heard from the store for "
        "{{ $value | humanizeDuration }}",
        impact="None yet: it serves by its last policy and plan, but takes no new policy, drain or plan.",
        runbook="""
            1. All agents at once: etcd is down or without a quorum. See to it first.
            2. One site: its way to etcd is cut (firewall, certificate, name). The agent's log names the error.
            3. Do not restart the agent to fix this: it would come up with the same last-known-good from disk.
        """,
    ),
    Alert(
        name="PenstockSaturated",
        expr=f"{UTILISATION.record} > 0.95",
        for_s=120,
        severity="ticket",
        summary="{{ $labels.model }} in {{ $labels.region }} is at {{ $value | humanizePercentage }} of its slots",
        impact="Requests wait in engines, or spill to regions farther away.",
        runbook="""
            1. Panel "Leaving home": does its overflow leave? If not, who could take it: are the other permitted
               regions full too, or suspect, or out of credit?
            2. Panel "Endpoints ready": are some of its endpoints away? Bring them back before adding any.
            3. Demand has outgrown the pool: add endpoints, or raise priority where it belongs.
        """,
    ),
    Alert(
        name="PenstockShedding",
        expr=f'sum by (site) ({REQUESTS.record}{{kind!="forwarded",outcome="refused"}})'
        f' / sum by (site) ({REQUESTS.record}{{kind!="forwarded"}}) > 0.01',
        for_s=60,
        severity="page",
        summary="{{ $labels.site }} admits requests and refuses {{ $value | humanizePercentage }} of them",
        impact="Clients are told to try again.",
        runbook="""
            1. Panel "Refusals by reason": `none_ready` means endpoints are down, `saturated` that they are full.
            2. Down: see the endpoints' own logs and health. Full: see the alert on saturation.
            3. Only governed traffic is refused: the regions its residency class allows are too few. Add one.
        """,
    ),
    Alert(
        name="PenstockObjectiveMissed",
        expr=f"{BURN_1H.record} > 14.4 and {BURN_5M.record} > 14.4",
        for_s=60,
        severity="page",
        summary="Answers of {{ $labels.model }} miss its objective {{ $value | humanize }} times as often as it allows",
        impact="Clients wait or are refused; in two days so many are as the objective allows in a month.",
        runbook=_OBJECTIVE_RUNBOOK,
    ),
    Alert(
        name="PenstockObjectiveMissedSlowly",
        expr=f"{BURN_6H.record} > 6 and {BURN_30M.record} > 6",
        for_s=900,
        severity="ticket",
        summary="For hours answers of {{ $labels.model }} miss its objective {{ $value | humanize }} times as often"
        " as it allows",
        impact="Some clients wait or are refused; in five days so many are as the objective allows in a month.",
        runbook=_OBJECTIVE_RUNBOOK,
    ),
    Alert(
        name="PenstockEndpointSuspect",
        expr="avg_over_time(max by (site, endpoint) (penstock_agent_endpoint_suspect)[10m:15s]) > 0.3",
        for_s=120,
        severity="ticket",
        summary="Endpoint {{ $labels.endpoint }} in {{ $labels.site }} accepts requests and makes no progress",
        impact="Each trial request there waits for seconds before another endpoint serves it. The slots are missing.",
        runbook="""
            1. `suspect_because` on the agent's status page: `readings show no request`: the server responds and its
               engine core has stopped. `nothing has arrived`: look at the GPU (Xid errors, NCCL timeouts) and the log.
            2. Take the endpoint out of the endpoints file, or drain it, and restart the engine.
            3. The engine works and its prefills are longer than estimated: correct the cost of its model in policy.
        """,
    ),
    Alert(
        name="PenstockSharedLoadDown",
        expr="min by (site, agent) (penstock_agent_shared_load_up) == 0",
        for_s=60,
        severity="ticket",
        summary="Agent {{ $labels.agent }} in {{ $labels.site }} cannot reach the shared load (Redis)",
        impact="Agents of the site choose endpoints by what each sees alone: somewhat longer tails under load.",
        runbook="""
            1. All agents of the site: Redis is down. Restart it; it needs no data back.
            2. One agent: its way to Redis is cut, or its address is wrong.
        """,
    ),
)
