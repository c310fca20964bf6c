"""Demand signals are fetched by the leader when they are due, and invalid responses leave the last valid one."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
import msgspec
import pytest

from control_plane.planning import signal_poller
from control_plane.planning.signal_poller import SignalPoller
from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from penstock.planning.forecasting.demand_signals import SignalPoint
from tests.support.paths import POLICIES

FILES = read_folder(POLICIES / "examples" / "spillover")
TEXT = """apiVersion: penstock/v1
kind: DemandSignal
name: matches
url: https://signal.example/demand.json
refresh_s: 60
"""
POLICY = compile_bundle({**FILES, "signals.yaml": TEXT})
GOOD = b'{"points": [{"at": 1000, "factor": 2}]}'


async def test_the_leader_fetches_and_keeps_the_last_valid_response(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    answers: list[tuple[int, bytes] | ValueError] = []
    ages: list[Mapping[str, float]] = []

    async def fetch(http: httpx.AsyncClient, url: str) -> tuple[int, bytes]:
        asked.append(url)
        answer = answers.pop(0)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    monkeypatch.setattr(signal_poller, "fetch", fetch)
    now, leads = 0.0, False
    poller = SignalPoller(lambda: POLICY, lambda: leads, lambda: now, ages.append)
    await poller.tick()
    assert (asked, ages[-1], poller.points()) == ([], {}, {}), "a follower fetches nothing"
    leads, good = True, (SignalPoint(1000.0, 2.0),)
    answers[:] = [(200, GOOD), (200, b"{"), (500, GOOD), ValueError("no response within 3 s")]
    for at in (0.0, 30.0, 60.0, 120.0, 180.0):
        now = at
        await poller.tick()
        await poller.fetches.wait()
        assert poller.points() == {"matches": good}
    await poller.tick()
    assert asked == ["https://signal.example/demand.json"] * 4
    assert ages[-1] == {"matches": 180.0}
    leads = False
    await poller.tick()
    assert poller.points() == {}
    await poller.close()


@pytest.mark.parametrize("url", ["http://signal.example/", "https://user:key@signal.example/", "file:///etc/passwd"])
def test_a_signal_over_plain_http_or_with_credentials_is_refused(url: str) -> None:
    with pytest.raises(PolicyRefused, match=r"signals\.yaml:4: url: "):
        compile_bundle({**FILES, "signals.yaml": TEXT.replace("https://signal.example/demand.json", url)})
    assert b"demand_signals" not in msgspec.json.encode(compile_bundle(FILES))
