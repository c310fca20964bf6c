"""The Containerfile: all files, settings and commands in it exist, and nothing runs as root."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.containerfile import FILE, Instruction, stages, values
from tests.support.deployed import NAMES, SCRIPTS
from tests.support.paths import ROOT

DAEMONS = ("control-plane", "agent")


def copied() -> set[str]:
    """The files of the checkout that the build needs."""
    return {source for value in values("build", "COPY") for source in value.split()[:-1]}


def test_every_instruction_is_one_of_the_format() -> None:
    known = {"FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "CMD"}
    assert {instruction.name for stage in stages().values() for instruction in stage} <= known


def test_the_build_has_all_that_the_wheel_consists_of_and_no_more() -> None:
    assert all((ROOT / source).exists() for source in copied())
    project = (ROOT / "pyproject.toml").read_text()
    packages = re.search(r"^packages = \[(.*)\]$", project, re.MULTILINE)
    assert packages
    assert set(re.findall(r'"(\w+)"', packages[1])) <= copied()
    ignored = FILE.with_name("Containerfile.dockerignore").read_text().splitlines()
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == copied()


def test_the_router_is_compiled() -> None:
    wheel = next(value for value in values("build", "RUN") if "pip wheel" in value)
    assert "HATCH_BUILD_HOOKS_ENABLE=1" in wheel


@pytest.mark.parametrize("stage", DAEMONS)
def test_a_daemon_runs_as_an_ordinary_user_and_stops_in_order(stage: str) -> None:
    user = values(stage, "USER")[-1]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert stages()[stage].index(Instruction("USER", user)) > max(
        position for position, each in enumerate(stages()[stage]) if each.name in ("RUN", "COPY")
    )
    assert values(stage, "STOPSIGNAL") == ["SIGTERM"]
    command = json.loads(values(stage, "CMD")[-1])
    assert command[0] in SCRIPTS
    variables = {pair.split("=")[0] for value in values(stage, "ENV") for pair in value.split()}
    assert {name for name in variables if name.startswith("PENSTOCK_")} <= NAMES
