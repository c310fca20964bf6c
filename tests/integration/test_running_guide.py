"""Runs the guides that build on the fleet of docs/running.md as printed, with free ports."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.support.guides import Running, blocks, running_fleet

# Dozens of commands, each a new process.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_fleet(tmp_path_factory.mktemp("checkout")) as running:
        yield running


def test_the_commands_start_a_fleet_that_serves(fleet: Running) -> None:
    assert "leader cp-1" in fleet.shown
    assert "HTTP/1.1 200 OK" in fleet.shown, fleet.shown
    assert "x-penstock-region: eu-de" in fleet.shown
    assert "→ eu-de (home)" in fleet.shown


@pytest.mark.long
def test_the_first_commands_of_troubleshooting_run(fleet: Running) -> None:
    look, check, ready = blocks("troubleshooting.md")
    shown = fleet.terminal.run(look)
    assert "leader cp-1" in shown
    assert "→ eu-de (home)" in shown
    # The other tests of the module begin rollouts.
    assert re.search(r"rollout \d+: [a-z]+", shown), shown
    fleet.terminal.run(check)
    assert "HTTP/1.1 200 OK" in fleet.terminal.run(ready)


@pytest.mark.long
def test_certificates_are_issued_rotated_and_revoked_while_the_fleet_serves(fleet: Running) -> None:
    terminal = fleet.terminal
    issue, rotate, region_key, expiry, revoke, authority = blocks("certificates.md")
    shown = terminal.run(issue)
    assert "etcd-1: spiffe://my-fleet/server/etcd-1, expires" in shown
    terminal.run(rotate)
    before = terminal.run("cat eu-de-1/region.key")
    terminal.run(region_key)
    assert terminal.run("cat eu-de-1/region.key") == terminal.run("cat next.key") != before
    assert 'penstock_certificate_expiry_timestamp_seconds{certificate="identity"}' in terminal.run(expiry)
    terminal.run(revoke)
    # The certificate in `serial` is revoked; the agent serves with the certificate that it received afterwards.
    for identity, log in (("cp-1", "cp-1.log"), ("eu-de-1", "agent.log")):
        latest = terminal.run(f"openssl x509 -noout -serial -in {identity}/tls.crt").strip().partition("=")[2].lower()
        assert latest not in terminal.run(f"cat {identity}/revoked")
        terminal.until(f"grep -q '{latest.lstrip('0')}.*identity reloaded' {log}")
    terminal.until("penstock status | grep -q healthy")
    terminal.run(f'cp -r authority cp-1 eu-de-1 "$(mktemp -d copy.XXXX)"; (cd copy.*; {authority})')
    assert terminal.run("ls copy.*/next-authority").split() == ["ca.crt", "ca.key"]


def test_a_model_is_rolled_out_rolled_back_and_put_behind_a_name(fleet: Running) -> None:
    terminal = fleet.terminal
    engines, check, change, show, promote, watch, roll_back, versions, ask, adapters = blocks("rolling-out-a-model.md")
    request = '{{"model": "{}", "messages": [{{"role": "user", "content": "Hello"}}], "max_tokens": 1}}'
    answers = (
        "curl -s -f -o answer http://127.0.0.1:8600/v1/chat/completions"
        f" -H 'authorization: Bearer example-everybody' -d '{request}'"
    )
    terminal.run(engines)
    assert "Model qwen2.5-32b: added" in terminal.run(check)
    terminal.run(change)
    terminal.until("penstock rollout show | grep -q 'rollout 2:'")
    assert "Model qwen2.5-32b: added" in terminal.run(show)
    terminal.until(promote.strip())
    terminal.until(answers.format("qwen2.5-32b"))
    watched = terminal.run(watch)
    assert "rollout 2: watch" in watched
    assert "x-penstock-endpoint: gpu-2" in watched
    terminal.run(roll_back)
    assert "rollout 2: rolled back" in terminal.run("penstock rollout show")
    terminal.run(versions)
    terminal.until("penstock rollout show | grep -q 'rollout 3:'")
    terminal.until(promote.strip())
    terminal.until(answers.format("chat"))
    assert "x-penstock-model: " in terminal.run(ask)
    assert "→ eu-de (home)" in terminal.run(adapters)
