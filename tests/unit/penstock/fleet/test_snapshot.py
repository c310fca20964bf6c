"""The snapshot keeps the newest plausible report of each agent, with less weight by age, and judges regions."""

from __future__ import annotations

from math import inf, nan

import msgspec
import pytest

from penstock.fleet import snapshot as snapshots
from penstock.fleet.counts.version_counts import VersionCounts, VersionReport
from penstock.fleet.report import AgentReport, CountryReport, DemandReport, PeerReport, PoolReport, SpilloverReport
from penstock.fleet.snapshot import (
    ReportVerdict,
    Snapshot,
    add_report,
    demand,
    freshness,
    inherit,
    pools,
    reporting_regions,
    resume,
    settled,
    tick,
)
from penstock.health.region_health import RegionHealth, RegionState
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.spillover_and_failover import Failover
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class

FADED_S, FORGET_S, FRESH_S, SETTLE_S = 15.0, 300.0, 2.0, 3.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

POLICY = Policy(
    regions={name: Region(name, "DE", 0.0, float(i)) for i, name in enumerate(("a", "b", "c", "d"))},
    models={"m": Model("m")},
    tenants={},
    residency=(),
    failover=Failover(unhealthy_threshold=2, healthy_threshold=2, hold_down_s=1.0, failback_ramp_s=10.0),
)
POOL = PoolReport("m", endpoints=4, ready=4, slots=32, in_flight=3, service_s=2.0)


def report(region: str = "a", agent: str = "1", epoch: int = 1, seq: int = 1, **rest: object) -> AgentReport:
    return msgspec.structs.replace(AgentReport(region, agent, epoch, seq, 0.0, (POOL,)), **rest)


def offered(rate: float, *regions: str) -> DemandReport:
    return DemandReport("m", residency_class(frozenset(regions)).name, regions, rate)


def held(*reports: AgentReport, at: float = 0.0) -> Snapshot:
    whole = Snapshot()
    for agent_report in reports:
        whole, verdict = add_report(whole, agent_report, at, POLICY)
        assert verdict is ReportVerdict.ACCEPTED
    return whole


def seen(*peers: tuple[str, RegionState]) -> tuple[PeerReport, ...]:
    return tuple(PeerReport(region, state, 10.0) for region, state in peers)


class TestTakingIn:
    def test_the_newest_word_of_an_agent_replaces_its_older_one(self) -> None:
        whole = held(report(seq=1), report(seq=2))
        assert whole.agents["a", "1"].report.seq == 2

    @pytest.mark.parametrize(
        ("late", "verdict"),
        [
            (report(epoch=2, seq=5), ReportVerdict.OLD_SEQ),
            (report(epoch=2, seq=4), ReportVerdict.OLD_SEQ),
            (report(epoch=1, seq=9), ReportVerdict.OLD_EPOCH),
            (report(region="nowhere"), ReportVerdict.UNKNOWN_REGION),
        ],
    )
    def test_a_late_or_unknown_word_changes_nothing(self, late: AgentReport, verdict: ReportVerdict) -> None:
        before = held(report(epoch=2, seq=5))
        assert add_report(before, late, 1.0, POLICY) == (before, verdict)

    def test_a_restarted_agent_begins_a_new_count(self) -> None:
        whole = held(report(epoch=1, seq=900), report(epoch=2, seq=1))
        assert whole.agents["a", "1"].report.epoch == 2

    @pytest.mark.parametrize(
        "poison",
        [
            {"pools": (msgspec.structs.replace(POOL, slots=-1),)},
            {"pools": (msgspec.structs.replace(POOL, slots=10**9 + 1),)},
            {"pools": (msgspec.structs.replace(POOL, ready=5),)},
            {"pools": (msgspec.structs.replace(POOL, service_s=nan),)},
            {"demand": (offered(inf, "a"),)},
            {"demand": (msgspec.structs.replace(offered(1.0, "a"), batch_per_s=nan),)},
            {"demand": (offered(-1.0, "a"),)},
            {"peers": (PeerReport("b", RegionState.HEALTHY, nan),)},
            {"seq": -1},
            {"plan_epoch": -1},
            {"plan_epoch": 2**53},
            {"plan_generation": 2**63},
            {"agent": "x" * 256},
            {"countries": (CountryReport("DE", nan),)},
            {"countries": (CountryReport("DEU", 1.0),)},
            {"countries": (CountryReport("DE", 1.0),) * 301},
            {"spillover": (SpilloverReport("m", 0, -1, 0, 0),)},
            {"versions": (VersionReport("chat", "v1", VersionCounts()),) * 201},
            {"certificate_expires_at": inf},
            {"rejected_files": ("x" * 513,)},
            {"rejected_files": ("x",) * 11},
        ],
    )
    def test_impossible_numbers_are_refused(self, poison: dict[str, object]) -> None:
        assert add_report(Snapshot(), report(**poison), 0.0, POLICY) == (Snapshot(), ReportVerdict.IMPOSSIBLE)

    def test_a_residency_class_that_lies_about_its_regions_is_refused(self) -> None:
        lie = DemandReport("m", "a", ("a", "b"), 1.0)
        assert add_report(Snapshot(), report(demand=(lie,)), 0.0, POLICY)[1] is ReportVerdict.IMPOSSIBLE

    def test_agents_are_bounded_and_those_known_keep_their_word(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(snapshots, "MAX_AGENTS", 2)
        full = held(report(agent="1"), report(agent="2"), report(region="b"))
        assert add_report(full, report(agent="3"), 0.0, POLICY)[1] is ReportVerdict.TOO_MANY_AGENTS
        assert add_report(full, report(agent="2", seq=2), 0.0, POLICY)[1] is ReportVerdict.ACCEPTED


class TestAge:
    def test_freshness_falls_from_whole_to_nothing(self) -> None:
        assert freshness(0.0) == freshness(FRESH_S) == 1.0
        assert freshness((FRESH_S + FADED_S) / 2) == pytest.approx(0.5)
        assert freshness(FADED_S) == freshness(1e9) == 0.0

    def test_demand_adds_up_over_agents_and_fades(self) -> None:
        whole = held(report(agent="1", demand=(offered(4.0, "a"),)), report(agent="2", demand=(offered(2.0, "a"),)))
        assert [class_demand.requests_per_s for class_demand in demand(whole, FRESH_S)] == [6.0]
        assert [class_demand.requests_per_s for class_demand in demand(whole, (FRESH_S + FADED_S) / 2)] == [
            pytest.approx(3.0)
        ]
        assert demand(whole, FADED_S) == []

    def test_batch_requests_are_demand_for_capacity_alone(self) -> None:
        mixed, alone = offered(4.0, "a"), offered(0.0, "b")
        rows = tuple(msgspec.structs.replace(row, batch_per_s=3.0) for row in (mixed, alone))
        whole = held(report(demand=rows))
        assert [(row.regions, row.requests_per_s) for row in demand(whole, 0.0)] == [({"a"}, 4.0)]
        found = {next(iter(row.regions)): row.requests_per_s for row in demand(whole, 0.0, with_batch=True)}
        assert found == {"a": 7.0, "b": 3.0}

    def test_demand_is_kept_by_origin_and_class(self) -> None:
        whole = held(
            report("a", demand=(offered(1.0, "a"), offered(2.0, "a", "b"))), report("b", demand=(offered(3.0, "a"),))
        )
        assert {
            (class_demand.origin, class_demand.regions): class_demand.requests_per_s
            for class_demand in demand(whole, 0.0)
        } == {
            ("a", frozenset({"a"})): 1.0,
            ("a", frozenset({"a", "b"})): 2.0,
            ("b", frozenset({"a"})): 3.0,
        }

    def test_a_pool_fades_and_then_is_gone(self) -> None:
        whole = held(report())
        assert pools(whole, 0.0)["a", "m"].weight == 1.0
        assert pools(whole, FADED_S) == {}
        assert reporting_regions(whole, FADED_S - 0.1) >= {"a"}
        assert "a" not in reporting_regions(whole, FADED_S)

    def test_an_agent_that_has_probed_nothing_yet_hides_no_capacity(self) -> None:
        blind = msgspec.structs.replace(POOL, ready=0, slots=0)
        whole, _ = add_report(held(report(agent="1")), report(agent="2", pools=(blind,)), 0.5, POLICY)
        assert pools(whole, 0.5)["a", "m"].report is POOL

    def test_a_dead_agents_last_word_yields_to_a_live_ones(self) -> None:
        fewer = msgspec.structs.replace(POOL, slots=16)
        whole, _ = add_report(held(report(agent="1")), report(agent="2", pools=(fewer,)), 12.0, POLICY)
        assert pools(whole, 12.0)["a", "m"].report is fewer

    def test_a_long_silent_agent_is_forgotten(self) -> None:
        assert len(tick(held(report()), FORGET_S - 1.0, POLICY).agents) == 1
        assert tick(held(report()), FORGET_S, POLICY).agents == {}


class TestJudging:
    def after(self, whole: Snapshot, *times: float) -> Snapshot:
        for now in times:
            whole = tick(whole, now, POLICY)
        return whole

    def test_a_region_that_speaks_and_has_endpoints_is_healthy(self) -> None:
        assert self.after(held(report()), 0.1).state("a") is RegionState.HEALTHY

    def test_a_region_without_any_report_stays_unknown(self) -> None:
        assert self.after(held(report()), 1.0, 2.0, 3.0, 4.0).state("b") is RegionState.UNKNOWN

    def test_silence_fails_a_region_that_spoke(self) -> None:
        whole = self.after(held(report()), 0.1, FRESH_S + 0.1)
        assert whole.state("a") is RegionState.SUSPECT
        assert self.after(whole, FRESH_S + 0.6).state("a") is RegionState.FAILED

    def test_a_region_whose_endpoints_are_lost_fails(self) -> None:
        bare = report(seq=2, pools=(msgspec.structs.replace(POOL, ready=0),))
        whole, _ = add_report(self.after(held(report()), 0.1), bare, 0.2, POLICY)
        assert self.after(whole, 0.6, 1.1).state("a") is RegionState.FAILED

    def test_a_region_whose_endpoints_still_load_has_not_failed_and_is_healthy_with_the_first(self) -> None:
        bare = report(pools=(msgspec.structs.replace(POOL, ready=0),))
        whole = self.after(held(bare), 0.1, 0.6, 1.1, 1.6)
        assert whole.state("a") is RegionState.UNKNOWN
        ready, _ = add_report(whole, report(seq=2), 2.0, POLICY)
        assert self.after(ready, 2.1).state("a") is RegionState.HEALTHY

    def test_a_region_without_ready_endpoints_that_peers_lost_fails_without_an_earlier_report(
        self,
    ) -> None:
        bare = report(pools=(msgspec.structs.replace(POOL, ready=0),))
        whole = held(bare, report("b", peers=seen(("a", RegionState.FAILED))))
        assert self.after(whole, 0.1, 0.6).state("a") is RegionState.FAILED

    def test_what_most_others_see_counts_for_more_than_its_own_word(self) -> None:
        lost = seen(("a", RegionState.FAILED))
        whole = held(report("a"), report("b", peers=lost), report("c", peers=lost), report("d"))
        assert self.after(whole, 0.1, 0.6).state("a") is RegionState.FAILED

    def test_what_most_others_see_counts_for_more_than_its_silence(self) -> None:
        fine = seen(("a", RegionState.HEALTHY))
        whole = held(report("b", peers=fine), report("c", peers=fine))
        assert self.after(whole, 0.1).state("a") is RegionState.HEALTHY

    def test_a_split_vote_leaves_it_to_its_own_word(self) -> None:
        split = (
            report("b", peers=seen(("a", RegionState.FAILED))),
            report("c", peers=seen(("a", RegionState.HEALTHY))),
        )
        assert self.after(held(report("a"), *split), 0.1, 0.6).state("a") is RegionState.HEALTHY
        assert self.after(held(*split), 0.1, 0.6).state("a") is RegionState.FAILED

    def test_a_region_has_one_vote_however_many_agents_it_has(self) -> None:
        lost, fine = seen(("a", RegionState.FAILED)), seen(("a", RegionState.HEALTHY))
        crowd = [report("b", agent=str(i), peers=lost) for i in range(9)]
        whole = held(report("a"), *crowd, report("c", peers=fine), report("d", peers=fine))
        assert self.after(whole, 0.1, 0.6).state("a") is RegionState.HEALTHY

    def test_one_lame_agent_does_not_speak_for_its_region(self) -> None:
        whole = held(
            report("b", agent="1", peers=seen(("a", RegionState.HEALTHY))),
            report("b", agent="2", peers=seen(("a", RegionState.FAILED))),
        )
        assert self.after(whole, 0.1, 0.6).state("a") is RegionState.HEALTHY

    def test_a_region_is_degraded_by_the_model_that_has_the_least(self) -> None:
        scarce = msgspec.structs.replace(POOL, model="n", ready=1)
        whole = held(report(pools=(POOL, scarce)))
        for at in range(1, 8):
            word = report(seq=at + 1, pools=(POOL, scarce))
            whole = tick(add_report(whole, word, float(at), POLICY)[0], float(at), POLICY)
        assert whole.state("a") is RegionState.DEGRADED

    def test_an_agent_that_reaches_few_endpoints_degrades_no_region_whose_others_reach_them(self) -> None:
        few = (msgspec.structs.replace(POOL, ready=1),)
        whole = held(report(agent="1"), report(agent="2", pools=few))
        for at in range(1, 8):
            for word in (report(agent="1", seq=at + 1), report(agent="2", seq=at + 1, pools=few)):
                whole = add_report(whole, word, float(at), POLICY)[0]
            whole = tick(whole, float(at), POLICY)
        assert whole.state("a") is RegionState.HEALTHY

    def test_peers_without_a_view_do_not_vote(self) -> None:
        whole = held(report("a"), report("b", peers=seen(("a", RegionState.UNKNOWN))))
        assert self.after(whole, 0.1, 0.6).state("a") is RegionState.HEALTHY


class TestLeading:
    def test_a_new_leader_drops_old_reports(self) -> None:
        assert resume(held(report("a")), FRESH_S + 0.1) == Snapshot()

    def test_a_new_leader_keeps_recent_reports_but_judges_anew(self) -> None:
        silent = tick(tick(tick(held(report("a")), 0.1, POLICY), 3.0, POLICY), 3.5, POLICY)
        assert silent.state("a") is RegionState.FAILED
        reporting_regions, _ = add_report(silent, report("a", seq=2), 4.0, POLICY)
        resumed = resume(reporting_regions, 4.1)
        assert resumed == Snapshot(reporting_regions.agents)
        assert tick(resumed, 4.1, POLICY).state("a") is RegionState.HEALTHY

    def test_judging_continues_from_the_inherited_state(self) -> None:
        lost = RegionHealth(RegionState.FAILED, since=9.5)
        whole = inherit(tick(held(report("a"), at=10.0), 10.1, POLICY), {"a": lost})
        states = []
        for at in (10.2, 10.4, 10.6):
            whole = tick(whole, at, POLICY)
            states.append(whole.state("a"))
        assert states == [RegionState.FAILED, RegionState.FAILED, RegionState.RECOVERING], "hold-down of 1 s, 2 hits"

    def test_a_region_on_its_ramp_continues_it(self) -> None:
        whole = inherit(held(report("a"), at=10.0), {"a": RegionHealth(RegionState.RECOVERING, since=6.0)})
        assert tick(whole, 10.0, POLICY).health["a"].weight(10.0, POLICY.failover) == pytest.approx(0.4)

    def test_an_inherited_state_without_reports_is_no_silence(self) -> None:
        whole = inherit(Snapshot(), {"a": RegionHealth(RegionState.RECOVERING, since=15.0)})
        for at in range(10, 20):
            whole = tick(whole, float(at), POLICY)
            assert whole.state("a") is RegionState.UNKNOWN
        whole, _ = add_report(whole, report("a"), 20.0, POLICY)
        assert tick(whole, 20.0, POLICY).state("a") is RegionState.RECOVERING

    @pytest.mark.parametrize("handed_over", [{}, {"a": RegionHealth(RegionState.DRAINING, since=6.0, drained=True)}])
    def test_a_drained_region_does_not_fail_before_its_first_report(self, handed_over: dict[str, RegionHealth]) -> None:
        whole = inherit(Snapshot(), handed_over)
        for at in range(10, 20):
            whole = tick(whole, float(at), POLICY, ("a",))
            assert whole.state("a") is RegionState.UNKNOWN
        whole = tick(add_report(whole, report("a"), 20.0, POLICY)[0], 20.0, POLICY, ("a",))
        assert whole.state("a") is RegionState.DRAINING
        assert tick(whole, 20.5, POLICY, ("a",)).state("a") is RegionState.DRAINING
        assert tick(whole, 20.5, POLICY).state("a") is RegionState.RECOVERING

    def test_a_drained_region_whose_endpoints_still_load_has_not_failed(self) -> None:
        bare = msgspec.structs.replace(POOL, ready=0)
        whole = held(report("a", pools=(bare,)))
        for at in (0.5, 1.0, 1.5):
            whole = tick(whole, at, POLICY, ("a",))
            assert whole.state("a") is RegionState.UNKNOWN

    def test_an_inherited_drain_that_was_lifted_meanwhile_comes_back_by_the_ramp(self) -> None:
        drained = {"a": RegionHealth(RegionState.DRAINING, since=6.0, drained=True)}
        whole = inherit(held(report("a"), at=10.0), drained)
        assert tick(whole, 10.0, POLICY, ("a",)).health["a"] == RegionHealth(RegionState.DRAINING, 6.0, 0, 1, True)
        assert tick(whole, 10.0, POLICY).health["a"] == RegionHealth(RegionState.RECOVERING, 10.0, 0, 1)

    def test_settled_when_every_region_spoke_or_it_took_too_long(self) -> None:
        some = held(report("a"), report("b"), report("c"))
        assert not settled(some, 0.5, POLICY, leading_since=0.0)
        assert settled(some, SETTLE_S, POLICY, leading_since=0.0)
        assert settled(add_report(some, report("d"), 0.5, POLICY)[0], 0.5, POLICY, leading_since=0.0)

    @pytest.mark.parametrize(
        ("state", "until"),
        [(RegionState.HEALTHY, FADED_S), (RegionState.FAILED, SETTLE_S), (RegionState.UNKNOWN, SETTLE_S)],
    )
    def test_a_region_that_others_reach_is_waited_for_longer(self, state: RegionState, until: float) -> None:
        peers = seen(("d", state))
        for at, enough in ((until - 0.1, False), (until, True)):
            some = held(report("a", peers=peers), report("b", peers=peers), report("c"), at=at)
            assert settled(some, at, POLICY, leading_since=0.0) is enough


def deaf() -> Snapshot:
    """Three regions whose last reports are from 0 s."""
    return tick(held(report("a"), report("b"), report("c", demand=(offered(4.0, "c"),))), 0.5, POLICY)


def test_silence_of_all_regions_at_once_is_a_fault_of_the_control_plane() -> None:
    still = deaf()
    for at in range(1, 100):
        still = tick(still, float(at), POLICY)
    assert {region_health.state for region_health in still.health.values()} == {RegionState.HEALTHY}
    assert reporting_regions(still, 99.0) == {"a", "b", "c"}
    assert [class_demand.requests_per_s for class_demand in demand(still, 99.0)] == [4.0]


def test_agents_are_kept_while_the_control_plane_receives_no_report() -> None:
    still = deaf()
    for at in (FORGET_S - 1.0, FORGET_S, FORGET_S + 1.0, FORGET_S + 2.0):
        still = tick(still, at, POLICY)
    assert {region: region_health.state for region, region_health in still.health.items()} == dict.fromkeys(
        ("a", "b", "c"), RegionState.HEALTHY
    )
    assert reporting_regions(still, FORGET_S + 2.0) == {"a", "b", "c"}


def test_the_first_report_after_a_silence_does_not_make_the_others_old() -> None:
    again, _ = add_report(deaf(), report("a", seq=2), 60.0, POLICY)
    assert {region_health.state for region_health in tick(again, 60.1, POLICY).health.values()} == {RegionState.HEALTHY}
    assert reporting_regions(again, 60.1) == {"a", "b", "c"}
    for at in range(1, 20):
        again, _ = add_report(again, report("a", seq=at + 2), 60.0 + at, POLICY)
        again = tick(again, 60.0 + at, POLICY)
    assert again.state("b") is RegionState.FAILED, "but it must speak up before long"
    assert reporting_regions(again, 79.0) == {"a"}


def test_the_only_region_that_ever_spoke_is_lost_when_it_is_silent() -> None:
    alone = held(report("a"))
    for at in range(1, 10):
        alone = tick(alone, float(at), POLICY)
    assert alone.state("a") is RegionState.FAILED


def test_a_region_whose_endpoints_all_sleep_or_drain_is_not_lost() -> None:
    def after(pool: PoolReport) -> RegionState:
        alone = tick(held(report("a")), 0.0, POLICY)
        for at in range(1, 10):
            alone, _ = add_report(alone, report("a", seq=at + 1, pools=(pool,)), float(at), POLICY)
            alone = tick(alone, float(at), POLICY)
        return alone.state("a")

    none_ready = msgspec.structs.replace(POOL, ready=0, slots=0)
    assert after(none_ready) is RegionState.FAILED
    assert after(msgspec.structs.replace(none_ready, endpoints=0)) is RegionState.HEALTHY
