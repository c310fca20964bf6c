"""What a kept planet prints to try is what a shell anywhere can run."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from lab.demo.listing import print_where_everything_listens
from lab.planet.bundle import load_bundle, matrix_of
from lab.planet.planet import Planet
from lab.planet.topology import demo_planet


def listing(tmp_path: Path) -> list[str]:
    topology = demo_planet()
    ports = {name: 10_000 + index for index, name in enumerate(topology.port_names())}
    directory = tmp_path / "a planet"
    directory.mkdir()
    planet = Planet(
        topology,
        ports,
        matrix_of(load_bundle()),
        directory=directory,
        logs=tmp_path / "logs",
        policy_dir=directory / "policy",
        geoip_file=directory / "sites.mmdb",
    )
    out = io.StringIO()
    print_where_everything_listens(planet, Console(file=out, width=60), directory)
    return [line.strip() for line in out.getvalue().splitlines()]


def test_what_runs_and_the_policy_that_may_be_edited_are_named(tmp_path: Path) -> None:
    told = dict(line.split("  ", 1) for line in listing(tmp_path) if "  " in line)
    assert told["policy, edit it"].strip() == str(tmp_path / "a planet" / "policy")
    assert told["agent us-east/b, traffic"].strip().startswith("http://127.0.0.1:")


def test_the_commands_find_the_program_the_fleet_and_the_token_from_anywhere(tmp_path: Path) -> None:
    exports = [line for line in listing(tmp_path) if line.startswith("export ")]
    script = "; ".join([*exports, "command -v penstock", 'echo "$PENSTOCK_URL"', 'echo "$PENSTOCK_ADMIN_TOKEN_FILE"'])
    done = subprocess.run(
        ["/bin/sh", "-c", script], env={"PATH": os.defpath}, cwd="/", capture_output=True, text=True, check=True
    )
    program, where, token = done.stdout.splitlines()
    assert program == str(Path(sys.executable).parent / "penstock")
    assert [one.rpartition(":")[0] for one in where.split(",")] == ["http://127.0.0.1"] * 2
    assert token == str(tmp_path / "a planet" / "admin.token")
