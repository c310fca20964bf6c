"""Runs the guides to several regions as printed, one after the other in one fleet.

Each fixture follows one guide and keeps what its commands print, so that the tests need no order.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest

from tests.support.guides import Running, Terminal, blocks, running_fleet
from tests.support.wait import PATIENCE_S

# Dozens of commands, each a new process.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_fleet(tmp_path_factory.mktemp("checkout"), "one-region") as running:
        yield running


@pytest.fixture(scope="module")
def second_region(fleet: Running) -> list[str]:
    terminal = fleet.terminal
    check, change, rollout, start, look, shrink, *ask = blocks("second-region.md")
    printed = [terminal.run(check), terminal.run(change)]
    until_in_force(terminal, printed[0])
    printed += [terminal.run(rollout), terminal.run(start)]
    until_shown(terminal, "regions/us-east", '"state":"healthy"')
    printed += [terminal.run(look), terminal.run(shrink)]
    until_shown(terminal, "regions/eu-de", '"slots":2,')
    return printed + [terminal.run(block) for block in ask]


@pytest.fixture(scope="module")
def operating(fleet: Running, second_region: list[str]) -> list[str]:
    terminal = fleet.terminal
    add, look, drain, ask, undrain, refused, kill, lost, restart, close, remove, stop = blocks("operating-regions.md")
    printed = [terminal.run(add)]
    until_shown(terminal, "regions/eu-de", '"slots":64,')
    printed += [terminal.run(look), terminal.run(drain)]
    until_closed(terminal, "us-east")
    printed += [terminal.run(ask), terminal.run(undrain), terminal.run(f"! {{ {refused.strip()}; }} 2>&1")]
    printed.append(terminal.run(kill))
    until_shown(terminal, "regions/us-east", '"state":"failed"')
    printed += [terminal.run(lost), terminal.run(restart)]
    until_shown(terminal, "regions/us-east", '"state":"(recovering|healthy)"')
    printed.append(terminal.run(close))
    until_shown(terminal, "regions/us-east", '"state":"draining"')
    printed.append(terminal.run(remove))
    until_in_force(terminal, printed[-1])
    return [*printed, terminal.run(stop)]


@pytest.mark.long
def test_a_second_region_takes_what_the_first_cannot_serve(second_region: list[str]) -> None:
    policy, _, rollout, _, status, _, spilled, governed, refused, explained = second_region
    assert "no forbidden region or model can be reached" in policy
    assert "Region us-east: added" in policy
    assert f"policy {digest(policy)}" in rollout
    assert "us-east-1" in status
    assert served_by(spilled).keys() == {"eu-de", "us-east"}, spilled
    assert sum(served_by(spilled).values()) == 8
    assert served_by(governed) == {"eu-de": 8}
    assert "HTTP/1.1 421" in refused
    assert "x-penstock-regions: eu-de" in refused
    assert "health-stays-in-germany (clinic.yaml:" in explained


@pytest.mark.long
def test_a_region_is_drained_lost_and_removed(operating: list[str]) -> None:
    _, added, drained, elsewhere, returning, refused, _, lost, _, _, removed, closed = operating
    assert "gpu-3" in added
    assert "new disks" in drained
    assert "x-penstock-region: eu-de" in elsewhere
    assert "returning" in returning
    assert "would leave residency class eu-de no region for llama-3.1-8b (tenants clinic)" in refused
    assert "region_failed" in lost
    assert "load of us-east" in removed
    assert "us-east/us-east-1 is in no use: the policy has no region us-east" in closed


def request(path: str) -> str:
    """The command that sends a request to the control plane's API."""
    return f'curl -s -H "authorization: Bearer $(cat admin.token)" http://127.0.0.1:8400/v1/{path}'


def until_shown(terminal: Terminal, path: str, pattern: str) -> None:
    """Wait until a response of the control plane's API satisfies a condition."""
    terminal.until(f"{request(path)} | grep -qE '{pattern}'")


def until_in_force(terminal: Terminal, checked: str) -> None:
    """Wait until the policy that a block checked is past its shadow phase, and an agent applies it."""
    until_shown(terminal, "rollouts/current", f'"candidate":"{digest(checked)}')
    until_shown(terminal, "rollouts/current", '"phase":"(watch|done)"')
    until_shown(terminal, "agents", f'"policy_digest":"{digest(checked)}')


def until_closed(terminal: Terminal, region: str) -> None:
    """Wait until the agent of a drained region applies the plan that closes it: the drain is shown before that."""
    until_shown(terminal, "plans/current", f'"closed":\\[\\{{"region":"{region}"')
    closing = json.loads(terminal.run(request("plans/current")))[region]["generation"]
    ends = time.monotonic() + PATIENCE_S
    while plan_of(terminal, f"{region}-1") < closing:
        assert time.monotonic() < ends, f"the agent of {region} does not apply plan {closing}"


def plan_of(terminal: Terminal, agent: str) -> int:
    """The generation of the plan that an agent applies."""
    agents = json.loads(terminal.run(request("agents")))["items"]
    return next(int(found["plan_generation"]) for found in agents if found["name"] == agent)


def digest(checked: str) -> str:
    """The digest of the policy that a block verified."""
    found = re.search(r"; policy ([0-9a-f]{12})", checked)
    assert found is not None, checked
    return found[1]


def served_by(counted: str) -> dict[str, int]:
    """The number of requests by the region that served them, as `ask` prints it."""
    return {name: int(count) for count, name in re.findall(r"(\d+) x-penstock-region: (\S+)", counted)}
