"""The guide to running it yourself, run: every command as it is printed, with free ports in place of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from lab.servers.free_ports import LOOPBACK
from tests.support.guides import Terminal, blocks
from tests.support.paths import ROOT


class Running(NamedTuple):
    """The fleet of docs/running.md."""

    terminal: Terminal
    """In the directory of the fleet, with its context."""
    shown: str
    """What the last commands of the page print."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("checkout")
    (directory / "policies").symlink_to(ROOT / "policies")
    with Terminal(directory) as terminal:
        prepare, control_plane, engine, agent, ask = blocks("running.md")
        client, peer = (f"http://{LOOPBACK}:{port}" for port in (2379, 2380))
        urls = f"--listen-client-urls {client} --advertise-client-urls {client} --listen-peer-urls {peer}"
        urls += f" --initial-advertise-peer-urls {peer} --initial-cluster default={peer}"
        prepare = prepare.replace(". .venv/bin/activate\n", "")
        terminal.run(prepare.replace("etcd --data-dir etcd", f"etcd --data-dir etcd {urls}"))
        for commands in (control_plane, engine, agent):
            terminal.run(commands)
        terminal.until_ready("8602", "8400")
        yield Running(terminal, terminal.run(ask))


def test_its_commands_start_a_fleet_that_serves(fleet: Running) -> None:
    assert "leader cp-1" in fleet.shown
    assert "HTTP/1.1 200 OK" in fleet.shown, fleet.shown
    assert "x-penstock-region: eu-de" in fleet.shown
    assert "→ eu-de (home)" in fleet.shown
