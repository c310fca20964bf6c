"""Reads the instructions of the Containerfile by stage, without a container engine."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from tests.support.paths import ROOT

FILE = ROOT / "deploy" / "container" / "Containerfile"


class Instruction(NamedTuple):
    """One instruction, continuation lines joined."""

    name: str
    value: str


def stages() -> dict[str, list[Instruction]]:
    """The instructions of each stage, in order, including the instructions of its base stage."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE))
    found: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    for line in filter(None, text.splitlines()):
        name, value = line.split(" ", 1)
        if name == "FROM":
            base, stage = value.split(" AS ")
            current = found[stage] = [Instruction(name, base), *found.get(base, ())]
        else:
            current.append(Instruction(name, value))
    return found


def values(stage: str, name: str) -> list[str]:
    return [instruction.value for instruction in stages()[stage] if instruction.name == name]


def health_check(stage: str) -> list[str]:
    """The command of a stage's health check."""
    command: list[str] = json.loads(values(stage, "HEALTHCHECK")[-1].partition("CMD ")[2])
    return command
