"""The judgement of a takeover by a pilot light, and of an engine of another revision."""

from __future__ import annotations

import pytest

from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from lab.gameday.pilot_light import (
    TakeoverDay,
    judge_takeover,
    limited_models,
    pilot_light_regions,
    roomy_spillover,
    without_endpoint,
)
from lab.gameday.version_skew import WRONG_REVISION, expecting_models, judge_skew
from lab.planet.bundle import MODELS_FILE, REGIONS_FILE, SHIPPED_BUNDLE, SPILLOVER_FILE
from lab.planet.topology import CHAT_8B

GOOD = TakeoverDay(0.0, 3.0, 6.5, 4.0, 2.4, 20.0, 0.1)
SKEW = f"{CHAT_8B}: it serves {WRONG_REVISION}, the policy expects {CHAT_8B}"


def test_a_takeover_counts_what_the_standby_region_served() -> None:
    found = judge_takeover(GOOD)
    assert found.events == 24
    assert "ordered after 3.0 s" in found.says
    assert "home 20.0 s after the return" in found.says


@pytest.mark.parametrize(
    "day",
    [
        GOOD._replace(ordered_s=None),
        GOOD._replace(ordered_s=9.0),
        GOOD._replace(ready_s=None),
        GOOD._replace(home_s=None),
        GOOD._replace(home_per_s=2.4),
        GOOD._replace(during_per_s=0.0, home_per_s=0.0),
    ],
)
def test_a_late_order_an_endpoint_that_never_serves_or_traffic_that_stays_leave_nothing(day: TakeoverDay) -> None:
    assert judge_takeover(day).events == 0


def test_a_skew_counts_if_it_is_seen_and_gone_in_time_with_both_revisions() -> None:
    assert judge_skew(5.0, 65.0, SKEW).events == 1
    for seen_s, gone_s, skew in (
        (None, 5.0, SKEW),
        (9.0, 5.0, SKEW),
        (5.0, 69.0, SKEW),
        (5.0, None, SKEW),
        (5.0, 5.0, "another"),
    ):
        assert judge_skew(seen_s, gone_s, skew).events == 0


def test_the_policies_of_the_days_are_valid() -> None:
    files = read_folder(SHIPPED_BUNDLE)
    policy = compile_bundle(
        {
            **files,
            REGIONS_FILE: pilot_light_regions(files[REGIONS_FILE], "eu-es"),
            MODELS_FILE: limited_models(expecting_models(files[MODELS_FILE]), {CHAT_8B: 2}),
            SPILLOVER_FILE: roomy_spillover(files[SPILLOVER_FILE]),
        }
    )
    assert [name for name, region in policy.regions.items() if region.is_standby] == ["eu-es"]
    assert policy.models[CHAT_8B].refuse_skewed is True
    assert (policy.models[CHAT_8B].scaling.max_endpoints, policy.spillover.target_utilisation) == (2, 0.3)


def test_an_endpoint_is_taken_out_of_a_file() -> None:
    assert without_endpoint('[{"name": "a", "slots": 1}, {"name": "b", "slots": 2}]', "a") == "- name: b\n  slots: 2\n"
