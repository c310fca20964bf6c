"""The terminal: a picture where there is one, plain lines elsewhere, and the counts behind both."""

from __future__ import annotations

import io

from rich.console import Console

from lab.demo.records import Outcome
from lab.demo.screen import LiveScreen, PlainScreen, flows, make_screen
from lab.demo.tally import RECENT_S, Now, Tally
from tests.support.story_run import story_run

CITIES = {"eu-de": "Frankfurt", "eu-es": "Madrid", "eu-gb": "London", "jp-tok": "Tokyo", "us-east": "Washington DC"}
RUN = story_run()


def moment(at_s: float) -> Now:
    tally = Tally(CITIES)
    for one in RUN.served:
        ended_s = one.due_s + (one.e2e_s or 0.0)
        if ended_s <= at_s:
            tally.asked += 1
    for one in sorted(RUN.served, key=lambda one: one.due_s + (one.e2e_s or 0.0)):
        ended_s = one.due_s + (one.e2e_s or 0.0)
        if ended_s <= at_s:
            tally.ended(one, ended_s)
    return tally.now(at_s, "Steady state", {"eu-de": "dead"}, {"eu-es": 3})


def test_a_tally_counts_what_ended_and_forgets_what_is_long_ago() -> None:
    now = moment(40.0)
    ended = [one for one in RUN.served if one.due_s + (one.e2e_s or 0.0) <= 40.0]
    answered = [one for one in ended if one.outcome is Outcome.OK]
    assert (now.answered, now.failed, now.refused) == (len(answered), len(ended) - len(answered), 0)
    assert sum(region.own + region.others for region in now.regions) == len(answered)
    lately = [one for one in answered if one.due_s + one.e2e_s >= 40.0 - RECENT_S]
    assert sum(sum(region.recent.values()) for region in now.regions) == len(lately)
    assert {region.name: region.state for region in now.regions}["eu-de"] == "dead"


def test_flows_are_what_is_served_away_from_home() -> None:
    assert {home for home, _, _ in flows(moment(44.0))} == {"eu-de"}


def test_without_a_terminal_there_are_plain_lines() -> None:
    out = io.StringIO()
    screen = make_screen(Console(file=out, width=60), list(CITIES), 82.0)
    assert isinstance(screen, PlainScreen)
    with screen:
        screen.starting("etcd serves", 1, 2)
        screen.starting("all serve", 2, 2)
        screen.event(36.0, "kill -9 of everything in eu-de [now]", "red")
        screen.show(moment(44.0))
        screen.show(moment(44.1))
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("starting etcd, Redis")
    assert lines[1] == "the planet is up"
    assert lines[2] == "  36.0 s  kill -9 of everything in eu-de [now]"
    assert "away from home: eu-de > eu-" in lines[3]
    assert len(lines) == 4
    assert "\x1b" not in out.getvalue()


def test_on_a_terminal_there_is_a_picture_of_every_region() -> None:
    out = io.StringIO()
    console = Console(file=out, width=130, height=40, force_terminal=True)
    screen = make_screen(console, list(CITIES), 82.0)
    assert isinstance(screen, LiveScreen)
    with screen:
        screen.starting("etcd serves", 1, 2)
        screen.event(36.0, "kill -9 of everything in eu-de", "red")
        screen.show(moment(44.0))
    for word in (*CITIES, *CITIES.values(), "dead", "kill -9", "──▶"):
        assert word in out.getvalue()
