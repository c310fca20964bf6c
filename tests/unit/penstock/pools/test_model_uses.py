"""When models of an endpoint were last used."""

from __future__ import annotations

from penstock.pools.model_uses import ModelUses


def test_a_model_is_idle_since_its_last_request_or_its_load() -> None:
    uses = ModelUses()
    uses.tick(["a", "b"], 10.0)
    uses.begun("a")
    assert (uses.idle_s("a", 15.0), uses.idle_s("b", 15.0)) == (0.0, 5.0)
    uses.tick(["a", "b"], 20.0)
    uses.ended("a")
    assert uses.idle_s("a", 21.0) == 0.0, "until the next tick"
    uses.tick(["a", "b"], 22.0)
    assert (uses.idle_s("a", 25.0), uses.running("a")) == (3.0, 0)
    uses.ended("a")
    assert uses.running("a") == 0, "one that began before the uses were counted"
    uses.tick(["b"], 30.0)
    uses.tick(["a", "b"], 40.0)
    assert uses.idle_s("a", 41.0) == 1.0, "loaded again"


def test_uses_elsewhere_count_and_are_not_published_again() -> None:
    uses = ModelUses()
    uses.tick(["a"], 0.0)
    uses.used_elsewhere("a", 0.0, 50.0)
    uses.used_elsewhere("a", 10.0, 50.2)
    assert uses.in_use("a", 50.49)
    assert not uses.in_use("a", 50.51), "agents publish ten times a second"
    assert uses.idle_s("a", 60.0) == 10.0
    assert uses.own(60.0) == {}
    uses.begun("a")
    assert uses.own(60.0) == {"a": 0.0}
    uses.ended("a")
    assert 0.0 < uses.own(60.0)["a"] < 0.01, "not in use"
    uses.tick(["a"], 61.0)
    assert uses.own(64.0) == {"a": 3.0}
